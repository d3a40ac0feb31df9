#include "core/optim/rules/sgd.h"

#include "platform/base/target_clones.hpp"

namespace concord {
namespace {

template <class G, class T>
void update_sgd(const SgdStep step, const G* __restrict grads, float* __restrict weights, float* __restrict momentum,
                T* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    // g + weight_decay w, where g is clipped and without the loss scale
    const float g = static_cast<float>(grads[i]) * step.grad_scale + step.weight_decay * weights[i];
    // b_t = momentum b + g
    momentum[i] = step.momentum * momentum[i] + g;
    // w_t = w - lr b_t
    weights[i] -= step.lr * momentum[i];
    // the 16-bit parameter is the rounded fp32 weight
    if constexpr (!std::is_same_v<T, float>) values[i] = rounded<T>(weights[i]);
  }
}

}  // namespace

CONCORD_TARGET_CLONES __attribute__((flatten)) void sgd(const SgdStep& step, const MomentumArrays& arrays,
                                                        int64_t begin, int64_t end) {
  visit(arrays.grads, [&](const auto* grads) {
    visit(arrays.values, [&](auto* values) {
      update_sgd(step, grads + begin, arrays.weights + begin, arrays.momentum + begin,
                 values == nullptr ? values : values + begin, end - begin);
    });
  });
}

}  // namespace concord
