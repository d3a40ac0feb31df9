#include "core/optim/lion.h"

namespace concord {
namespace {

template <class G, class T>
void update_by_sign(const LionStep step, const G* __restrict grads, float* __restrict weights,
                    float* __restrict momentum, T* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = static_cast<float>(grads[i]) * step.grad_scale;
    const float direction = step.beta1 * momentum[i] + (1 - step.beta1) * g;
    const float sign = static_cast<float>((direction > 0) - (direction < 0));
    weights[i] -= step.lr * (sign + step.weight_decay * weights[i]);
    momentum[i] = step.beta2 * momentum[i] + (1 - step.beta2) * g;
    if constexpr (!std::is_same_v<T, float>) values[i] = rounded<T>(weights[i]);
  }
}

}  // namespace

void lion(const LionStep& step, const LionArrays& arrays, int64_t begin, int64_t end) {
  visit(arrays.grads, [&](const auto* grads) {
    visit(arrays.values, [&](auto* values) {
      update_by_sign(step, grads + begin, arrays.weights + begin, arrays.momentum + begin,
                     values == nullptr ? values : values + begin, end - begin);
    });
  });
}

}  // namespace concord
