#include "core/optim/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/config_error.h"

namespace concord {
namespace {

bool positive(double value) { return value > 0 && std::isfinite(value); }

void check(const LossScalerSettings& settings) {
  std::vector<std::string> problems;
  const auto require = [&](bool holds, std::string_view name, auto value, std::string_view allowed) {
    if (!holds) problems.push_back(fmt::format("{} is {}; must be {}", name, value, allowed));
  };
  require(settings.constant == 0 || positive(settings.constant), "loss_scale", settings.constant,
          "> 0, or 0 for a dynamic scale");
  require(positive(settings.initial_scale), "initial_loss_scale", settings.initial_scale, "> 0");
  require(positive(settings.min_scale) && settings.min_scale <= settings.initial_scale, "min_loss_scale",
          settings.min_scale, fmt::format("> 0 and <= initial_loss_scale {}", settings.initial_scale));
  require(settings.growth_factor > 1 && std::isfinite(settings.growth_factor), "loss_scale_growth_factor",
          settings.growth_factor, "> 1");
  require(settings.backoff_factor > 0 && settings.backoff_factor < 1, "loss_scale_backoff_factor",
          settings.backoff_factor, "> 0 and < 1");
  require(settings.growth_interval > 0, "loss_scale_window", settings.growth_interval, ">= 1");
  require(settings.hysteresis > 0, "hysteresis", settings.hysteresis, ">= 1");
  if (!problems.empty()) throw ConfigError(fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace

LossScaler::LossScaler(const LossScalerSettings& settings) : settings_(settings) {
  check(settings);
  state_ = {settings.constant > 0 ? settings.constant : settings.initial_scale, 0, settings.hysteresis};
}

bool LossScaler::update(bool found_inf) {
  if (settings_.constant > 0) return !found_inf;
  if (found_inf) {
    state_.growth_tracker = 0;
    // Stops at 0, which means the same as any negative value: repeated overflows cannot wrap it around.
    state_.hysteresis_tracker = std::max<int64_t>(state_.hysteresis_tracker - 1, 0);
    if (state_.hysteresis_tracker == 0)
      state_.scale = std::max(state_.scale * settings_.backoff_factor, settings_.min_scale);
    return false;
  }
  if (++state_.growth_tracker < settings_.growth_interval) return true;
  state_.growth_tracker = 0;
  state_.hysteresis_tracker = settings_.hysteresis;
  // A scale beyond float range would make every loss infinite; it stays at the last finite one.
  const double grown = state_.scale * settings_.growth_factor;
  if (std::isfinite(static_cast<float>(grown))) state_.scale = grown;
  return true;
}

void LossScaler::set_state(const LossScalerState& state) {
  if (!positive(state.scale) || state.growth_tracker < 0 || state.hysteresis_tracker < 0)
    throw ConfigError(fmt::format(
        "invalid loss scaler state: loss scale {}, {} good steps, hysteresis {}; is the checkpoint damaged?",
        state.scale, state.growth_tracker, state.hysteresis_tracker));
  if (settings_.constant == 0) state_ = state;
}

}  // namespace concord
