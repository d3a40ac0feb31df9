#include "core/optim/lr_schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/config_error.h"

namespace concord {
namespace {

// The remaining fraction of the way from the upper to the lower value after |ratio| of the length.
double remaining(LrCurve curve, double ratio, double cycles) {
  switch (curve) {
    case LrCurve::constant:
    case LrCurve::inverse_sqrt: return 1;
    case LrCurve::linear: return 1 - ratio;
    case LrCurve::cosine: return 0.5 * (std::cos(std::numbers::pi * (2 * cycles) * ratio) + 1);
    case LrCurve::exponential: return 2 * std::pow(0.5, ratio) - 1;  // reaches 0, which a half-life never does
    case LrCurve::minus_sqrt: return 1 - std::sqrt(ratio);
  }
  throw ConfigError(fmt::format("unknown learning rate curve {}", static_cast<int>(curve)));
}

double ratio_of(int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

double inverse_sqrt_at(const LrSettings& settings, int64_t point) {
  const double moved = std::max(static_cast<double>(point) + settings.shift, 1.0);
  return std::max(settings.min_lr, settings.lr * std::sqrt(settings.timescale) / std::sqrt(moved));
}

}  // namespace

double lr_at(const LrSettings& settings, int64_t point) {
  if (settings.warmup > 0 && point <= settings.warmup)
    return settings.init_lr + (settings.lr - settings.init_lr) * ratio_of(point, settings.warmup);
  if (settings.curve == LrCurve::constant) return settings.lr;
  if (point > settings.last) return settings.min_lr;
  if (settings.curve == LrCurve::inverse_sqrt) return inverse_sqrt_at(settings, point);
  if (point <= settings.decay_start) return settings.lr;
  const double ratio = ratio_of(point - settings.decay_start, settings.decay_end - settings.decay_start);
  return settings.min_lr + remaining(settings.curve, ratio, settings.cycles) * (settings.lr - settings.min_lr);
}

double weight_decay_at(const LrSettings& settings, int64_t point) {
  if (settings.weight_decay_curve == LrCurve::constant || point >= settings.weight_decay_length)
    return settings.end_weight_decay;
  const double left = remaining(settings.weight_decay_curve, ratio_of(point, settings.weight_decay_length), 0.5);
  return settings.start_weight_decay + (1 - left) * (settings.end_weight_decay - settings.start_weight_decay);
}

void LrSchedule::set_counter(int64_t counter) {
  if (counter < 0) throw ConfigError(fmt::format("the learning rate schedule's counter is {}; must be >= 0", counter));
  counter_ = counter;
}

}  // namespace concord
