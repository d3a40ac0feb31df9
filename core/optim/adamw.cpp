#include "core/optim/adamw.h"

#include <cmath>

namespace concord {
namespace {

template <class G, class T>
void update(const AdamWStep step, const G* __restrict grads, float* __restrict weights, float* __restrict m,
            float* __restrict v, T* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = static_cast<float>(grads[i]) * step.grad_scale;
    m[i] += step.beta1_rest * (g - m[i]);
    v[i] = step.beta2 * v[i] + step.beta2_rest * g * g;
    const float root = std::sqrt(v[i]) / step.sqrt_bias_correction2 + step.eps;
    weights[i] = weights[i] * step.decay - step.step_size * (m[i] / root);
    if constexpr (!std::is_same_v<T, float>) values[i] = rounded<T>(weights[i]);
  }
}

}  // namespace

AdamWStep adamw_step(const AdamWSettings& settings, double lr, double weight_decay, double grad_scale, int64_t t) {
  const double steps = static_cast<double>(t);
  const auto narrow = [](double x) { return static_cast<float>(x); };
  return {narrow(grad_scale),
          narrow(1 - lr * weight_decay),
          narrow(1 - settings.beta1),
          narrow(settings.beta2),
          narrow(1 - settings.beta2),
          narrow(lr / (1 - std::pow(settings.beta1, steps))),
          narrow(std::sqrt(1 - std::pow(settings.beta2, steps))),
          narrow(settings.eps)};
}

void adamw(const AdamWStep& step, const AdamWArrays& arrays, int64_t begin, int64_t end) {
  visit(arrays.grads, [&](const auto* grads) {
    visit(arrays.values, [&](auto* values) {
      update(step, grads + begin, arrays.weights + begin, arrays.m + begin, arrays.v + begin,
             values == nullptr ? values : values + begin, end - begin);
    });
  });
}

}  // namespace concord
