// The factor on the loss that keeps fp16 gradients from vanishing. The policy only: pure arithmetic on one flag per
// step, which the caller has made the same on all ranks (overflow anywhere is overflow everywhere).
//
// Dynamic, as Megatron's DynamicGradScaler: a step whose gradients hold inf or NaN is skipped and uses up one of
// |hysteresis|; from then on each such step multiplies the scale by |backoff_factor|, not below |min_scale|. After
// |growth_interval| good steps in a row the scale grows by |growth_factor| and the hysteresis is full again. Note that
// good steps alone do not refill it, nor in Megatron. Constant: the scale never changes; a step with overflow must
// still be skipped.
#pragma once

#include <cstdint>

namespace concord {

struct LossScalerSettings {
  double constant = 0;                  // the scale of a constant scaler; 0: dynamic
  double initial_scale = 4294967296.0;  // 2^32
  double min_scale = 1;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 1000;
  int64_t hysteresis = 2;
  bool operator==(const LossScalerSettings&) const = default;
};

// State of the scaler in checkpoints.
struct LossScalerState {
  double scale = 1;
  int64_t growth_tracker = 0;
  int64_t hysteresis_tracker = 0;
  bool operator==(const LossScalerState&) const = default;
};

// Threads: one at a time.
class LossScaler {
 public:
  // Throws one ConfigError for all invalid numbers.
  explicit LossScaler(const LossScalerSettings& settings);

  double scale() const { return state_.scale; }  // the loss is multiplied by it before backward
  double inverse_scale() const { return 1 / state_.scale; }

  // Call after every step. Returns true if the step should be applied, false if it should be skipped.
  bool update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // Throws ConfigError for one that no run can have left. A constant scale stays the one of the settings.
  void set_state(const LossScalerState& state);

 private:
  LossScalerSettings settings_;
  LossScalerState state_;
};

}  // namespace concord
