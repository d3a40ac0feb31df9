#include "core/optim/rules/adamw.h"

#include <algorithm>
#include <cmath>

#include "platform/base/target_clones.hpp"

namespace concord {
namespace {

constexpr int64_t kPiece = 64;  // elements

// Processors follow few streams of memory by themselves: these are fetched a few pieces before their update.
template <class G>
void fetch_ahead(const G* grads, const float* weights, const float* m, const float* v, int64_t first, int64_t count) {
  constexpr int64_t kAhead = 8 * kPiece, kLine = 16;
  const int64_t begin = first + kAhead, end = std::min(begin + kPiece, count);
  for (int64_t i = begin; i < end; i += kLine) {
    __builtin_prefetch(grads + i, 0);
    for (const float* written : {weights, m, v}) __builtin_prefetch(written + i, 1);
  }
}

template <class G, class T>
void update_piece(const AdamWStep& step, const G* __restrict grads, float* __restrict weights, float* __restrict m,
                  float* __restrict v, T* __restrict values, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    // g_t: the gradient, clipped and without the loss scale
    const float g = static_cast<float>(grads[i]) * step.grad_scale;
    // m_t = beta1 m + (1 - beta1) g, as m + (1 - beta1) (g - m)
    m[i] += step.one_minus_beta1 * (g - m[i]);
    // v_t = beta2 v + (1 - beta2) g^2
    v[i] = step.beta2 * v[i] + step.one_minus_beta2 * g * g;
    // sqrt(v^) + eps, where v^ = v_t / (1 - beta2^t)
    const float denominator = std::sqrt(v[i]) / step.sqrt_bias_correction2 + step.eps;
    // w_t = (1 - lr weight_decay) w - lr m^ / (sqrt(v^) + eps), where m^ = m_t / (1 - beta1^t)
    weights[i] = weights[i] * step.decay - step.step_size * (m[i] / denominator);
    // the 16-bit parameter is the rounded fp32 weight
    if constexpr (!std::is_same_v<T, float>) values[i] = rounded<T>(weights[i]);
  }
}

template <class G, class T>
void update_adamw(const AdamWStep step, const G* __restrict grads, float* __restrict weights, float* __restrict m,
                  float* __restrict v, T* __restrict values, int64_t count) {
  for (int64_t first = 0; first < count; first += kPiece) {
    fetch_ahead(grads, weights, m, v, first, count);
    update_piece(step, grads, weights, m, v, values, first, std::min(first + kPiece, count));
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

// Flattened: the loop is a part of each version.
CONCORD_TARGET_CLONES __attribute__((flatten)) void adamw(const AdamWStep& step, const AdamWArrays& arrays,
                                                          int64_t begin, int64_t end) {
  visit(arrays.grads, [&](const auto* grads) {
    visit(arrays.values, [&](auto* values) {
      update_adamw(step, grads + begin, arrays.weights + begin, arrays.m + begin, arrays.v + begin,
                   values == nullptr ? values : values + begin, end - begin);
    });
  });
}

}  // namespace concord
