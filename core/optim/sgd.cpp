#include "core/optim/sgd.h"

namespace concord {
namespace {

template <class G, class T>
void update(const SgdStep step, const G* __restrict grads, float* __restrict weights, float* __restrict momentum,
            T* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = static_cast<float>(grads[i]) * step.grad_scale + step.weight_decay * weights[i];
    momentum[i] = step.momentum * momentum[i] + g;
    weights[i] -= step.lr * momentum[i];
    if constexpr (!std::is_same_v<T, float>) values[i] = rounded<T>(weights[i]);
  }
}

}  // namespace

void sgd(const SgdStep& step, const SgdArrays& arrays, int64_t begin, int64_t end) {
  visit(arrays.grads, [&](const auto* grads) {
    visit(arrays.values, [&](auto* values) {
      update(step, grads + begin, arrays.weights + begin, arrays.momentum + begin,
             values == nullptr ? values : values + begin, end - begin);
    });
  });
}

}  // namespace concord
