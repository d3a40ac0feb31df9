#include "core/optim/rules/lion.h"

#include "platform/base/target_clones.hpp"

namespace concord {
namespace {

template <class G, class T>
void update_lion(const LionStep step, const G* __restrict grads, float* __restrict weights, float* __restrict momentum,
                 T* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    // g: the gradient, clipped and without the loss scale
    const float g = static_cast<float>(grads[i]) * step.grad_scale;
    // c = beta1 m + (1 - beta1) g
    const float c = step.beta1 * momentum[i] + (1 - step.beta1) * g;
    const float sign = static_cast<float>((c > 0) - (c < 0));
    // w_t = w - lr (sign(c) + weight_decay w)
    weights[i] -= step.lr * (sign + step.weight_decay * weights[i]);
    // m_t = beta2 m + (1 - beta2) g
    momentum[i] = step.beta2 * momentum[i] + (1 - step.beta2) * g;
    // the 16-bit parameter is the rounded fp32 weight
    if constexpr (!std::is_same_v<T, float>) values[i] = rounded<T>(weights[i]);
  }
}

}  // namespace

CONCORD_TARGET_CLONES __attribute__((flatten)) void lion(const LionStep& step, const MomentumArrays& arrays,
                                                         int64_t begin, int64_t end) {
  visit(arrays.grads, [&](const auto* grads) {
    visit(arrays.values, [&](auto* values) {
      update_lion(step, grads + begin, arrays.weights + begin, arrays.momentum + begin,
                  values == nullptr ? values : values + begin, end - begin);
    });
  });
}

}  // namespace concord
