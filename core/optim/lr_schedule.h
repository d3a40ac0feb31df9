// The learning rate and the weight decay of every update: pure functions of one counter.
//
// The curves are those of Megatron's OptimizerParamScheduler and of Hugging Face's get_scheduler; where the two differ,
// their names do (inverse_sqrt is HF's, inverse-square-root Megatron's), and both are kept. '-' and '_' mean the same
// in names, and case does not matter.
//
//   linear                up to learning_rate over the warm-up, then down to min_lr at the last step
//   cosine                the same along half a cosine; kwargs: num_cycles (HF; 0.5)
//   cosine_with_min_lr    cosine; kwargs: min_lr or min_lr_rate (a share of learning_rate), num_cycles
//   constant              learning_rate after the warm-up, as in Megatron and ROLL (HF ignores warmup_steps)
//   constant_with_warmup  the same
//   inverse_sqrt          learning_rate * sqrt(t / (step + t - warmup)); kwargs: timescale t (the warm-up; 10000
//                         without)
//   inverse_square_root   learning_rate * sqrt(max(warmup, 1) / step), never below min_lr, which also holds after the
//                         end
//   wsd                   Megatron's WSD: warm-up, stable, decay over the last lr_wsd_decay_steps by
//                         lr_wsd_decay_style
//   warmup_stable_decay   HF's; kwargs: num_decay_steps, num_stable_steps, min_lr_ratio (warm-up and decay both touch
//                         it), decay_type linear, cosine or 1-sqrt, num_cycles
//
// The counter counts updates, or samples if a length is given in samples (as Megatron does). It advances only when the
// optimizer has made its update: a step skipped for an overflow does not advance it. It is the only state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/base/enum_names.h"

namespace concord {

// The form of a curve, of the learning rate after the warm-up or of the weight decay.
enum class LrCurve { constant, linear, cosine, exponential, minus_sqrt, inverse_sqrt };
template <>
inline constexpr std::string_view kEnumNames<LrCurve>[] = {"constant",    "linear",     "cosine",
                                                           "exponential", "minus_sqrt", "inverse_sqrt"};

// Arguments of the schedule, named as in TrainingArguments. Zero means "not given" for lengths.
struct LrArguments {
  std::string lr_scheduler_type = "linear";
  std::map<std::string, std::string> lr_scheduler_kwargs = {};
  double learning_rate = 5e-5;
  double min_lr = 0;
  double lr_warmup_init = 0;  // where the warm-up begins
  int64_t warmup_steps = 0;   // at most one of the three: HF prefers warmup_steps to warmup_ratio, here it is an error
  int64_t warmup_samples = 0;
  double warmup_ratio = 0;     // fraction of the curve's steps, rounded up as in HF
  int64_t lr_decay_steps = 0;  // where the curve ends; not given: max_steps
  int64_t lr_decay_samples = 0;
  int64_t lr_wsd_decay_steps = 0;
  int64_t lr_wsd_decay_samples = 0;
  LrCurve lr_wsd_decay_style = LrCurve::exponential;  // or linear, cosine, minus_sqrt
  double weight_decay = 0;
  // From start to end over max_steps; a negative number is "not given": weight_decay.
  double start_weight_decay = -1;
  double end_weight_decay = -1;
  LrCurve weight_decay_incr_style = LrCurve::constant;  // or linear, cosine
  int64_t max_steps = 0;
  // The length of the run in samples, which are then counted (as Megatron does); not given: max_steps.
  int64_t train_samples = 0;
  int64_t global_batch_size = 1;  // samples of an update
  // 0: the first update uses the curve's value at point 0, which is 0 under a warm-up from 0 (HF and Megatron); 1: the
  // value at point 1, so that the last update reaches the curve's final value.
  int64_t lr_step_offset = 0;
  bool operator==(const LrArguments&) const = default;
};

// The curve in numbers. Lengths are in units of the counter.
struct LrSettings {
  double lr = 0;
  double min_lr = 0;
  double init_lr = 0;  // at the counter's 0, if there is a warm-up
  int64_t warmup = 0;
  LrCurve curve = LrCurve::constant;
  int64_t decay_start = 0;  // lr is constant from the warm-up to here
  int64_t decay_end = 0;    // end of the curve
  int64_t last = 0;         // the last point on the curve; after it min_lr
  double cycles = 0.5;      // of the cosine
  double timescale = 1;     // of inverse_sqrt
  double shift = 0;         // inverse_sqrt: added to the counter
  double start_weight_decay = 0;
  double end_weight_decay = 0;
  LrCurve weight_decay_curve = LrCurve::constant;  // constant, linear or cosine
  int64_t weight_decay_length = 1;
  int64_t increment = 1;  // added to the counter by an update
  int64_t offset = 0;     // added to the counter
};

// Throws ConfigError for names that do not exist (listing those that do), numbers out of range and lengths that do not
// fit together; all errors together, one line each.
LrSettings resolve_lr(const LrArguments& arguments);
// Only the first of these, for callers that do not know the lengths yet.
void check_lr_scheduler_type(const std::string& name);

// Pure: the values at a point of the curve, which is the counter plus the offset.
double lr_at(const LrSettings& settings, int64_t point);
double weight_decay_at(const LrSettings& settings, int64_t point);

// Threads: one at a time.
class LrSchedule {
 public:
  explicit LrSchedule(const LrArguments& arguments) : settings_(resolve_lr(arguments)) {}
  explicit LrSchedule(const LrSettings& settings) : settings_(settings) {}

  // Returns the learning rate of the next update.
  double lr() const { return lr_at(settings_, counter_ + settings_.offset); }
  double weight_decay() const { return weight_decay_at(settings_, counter_ + settings_.offset); }

  // Advances the counter; call after an update, but not after a skipped one.
  void step() { step(settings_.increment); }
  // Like step(), for an update that was smaller than others.
  void step(int64_t increment) { counter_ += increment; }

  int64_t counter() const { return counter_; }
  void set_counter(int64_t counter);  // throws ConfigError below 0
  const LrSettings& settings() const { return settings_; }

 private:
  LrSettings settings_;
  int64_t counter_ = 0;
};

}  // namespace concord
