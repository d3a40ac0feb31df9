// From the user's settings to the parameters of the curve; all errors are reported at once.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/enum_names.h"
#include "core/base/quoted.h"
#include "core/optim/lr_schedule.h"

namespace concord {

enum class LrType {
  constant,
  constant_with_warmup,
  linear,
  cosine,
  cosine_with_min_lr,
  inverse_sqrt,
  inverse_square_root,
  wsd,
  warmup_stable_decay
};
template <>
inline constexpr std::string_view kEnumNames<LrType>[] = {
    "constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr", "inverse_sqrt", "inverse_square_root",
    "wsd",      "warmup_stable_decay"};

namespace {

constexpr double kTimescaleWithoutWarmup = 10'000;  // of HF's inverse_sqrt
constexpr int64_t kMaxLength = int64_t{1} << 53;    // lengths are exact as doubles

std::string canonical(std::string_view name) {
  std::string text(name);
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    if (letter == '-') letter = '_';
  }
  return text;
}

std::optional<LrType> find_type(std::string_view name) { return find_enum<LrType>(canonical(name)); }

std::string unknown_type(const std::string& name) {
  return fmt::format("lr_scheduler_type is {}; must be one of {}", quoted(name), comma_separated(kEnumNames<LrType>));
}

class Resolver {
 public:
  explicit Resolver(const LrArguments& arguments) : given_(arguments), type_(find_type(arguments.lr_scheduler_type)) {}

  LrSettings resolve() {
    check_numbers();
    if (problems_.empty()) resolve_lengths();
    if (problems_.empty()) resolve_curve();
    resolve_weight_decay();
    for (const auto& [name, value] : given_.lr_scheduler_kwargs) {
      if (problems_.empty() && !used_.contains(name))
        refuse(fmt::format("lr_scheduler_kwargs: {} has no option {}{}", name_of(*type_), quoted(name), taken()));
    }
    if (!problems_.empty()) throw ConfigError(fmt::format("{}", fmt::join(problems_, "\n")));
    return settings_;
  }

 private:
  void refuse(std::string problem) { problems_.push_back(std::move(problem)); }

  std::string taken() const {
    return asked_.empty() ? "; it has none" : fmt::format("; options are {}", fmt::join(asked_, ", "));
  }

  void check_not_negative(std::string_view name, double value) {
    if (!(value >= 0) || std::isinf(value)) refuse(fmt::format("{} is {}; must be >= 0 and finite", name, value));
  }

  void check_numbers() {
    check_not_negative("learning_rate", given_.learning_rate);
    check_not_negative("min_lr", given_.min_lr);
    check_not_negative("lr_warmup_init", given_.lr_warmup_init);
    check_not_negative("weight_decay", given_.weight_decay);
    const std::pair<std::string_view, int64_t> lengths[] = {{"warmup_steps", given_.warmup_steps},
                                                            {"warmup_samples", given_.warmup_samples},
                                                            {"lr_decay_steps", given_.lr_decay_steps},
                                                            {"lr_decay_samples", given_.lr_decay_samples},
                                                            {"lr_wsd_decay_steps", given_.lr_wsd_decay_steps},
                                                            {"lr_wsd_decay_samples", given_.lr_wsd_decay_samples},
                                                            {"max_steps", given_.max_steps},
                                                            {"train_samples", given_.train_samples}};
    for (const auto& [name, value] : lengths) {
      if (value < 0 || value > kMaxLength) refuse(fmt::format("{} is {}; must be from 0 to 2^53", name, value));
    }
    if (given_.global_batch_size < 1 || given_.global_batch_size > kMaxLength)
      refuse(fmt::format("global_batch_size is {}; must be >= 1", given_.global_batch_size));
    if (!(given_.warmup_ratio >= 0 && given_.warmup_ratio <= 1))
      refuse(fmt::format("warmup_ratio is {}; must be from 0 to 1", given_.warmup_ratio));
    if (given_.lr_step_offset != 0 && given_.lr_step_offset != 1)
      refuse(fmt::format("lr_step_offset is {}; must be 0 or 1", given_.lr_step_offset));
    if (given_.learning_rate < given_.min_lr)
      refuse(fmt::format("min_lr {} is greater than learning_rate {}", given_.min_lr, given_.learning_rate));
    if (given_.learning_rate < given_.lr_warmup_init)
      refuse(fmt::format("lr_warmup_init {} is greater than learning_rate {}", given_.lr_warmup_init,
                         given_.learning_rate));
  }

  // |steps| in units of the counter.
  int64_t units(int64_t steps) {
    int64_t product = 0;
    if (!__builtin_mul_overflow(steps, settings_.increment, &product) && product <= kMaxLength) return product;
    refuse(fmt::format("{} steps of {} samples exceed 2^53 samples", steps, settings_.increment));
    return 1;
  }

  // A length given either in steps or in samples.
  int64_t length(std::string_view name, int64_t steps, int64_t samples) {
    if (steps > 0 && samples > 0)
      refuse(fmt::format("{0}_steps {1} and {0}_samples {2} are both given; give only one", name, steps, samples));
    return samples > 0 ? samples : units(steps);
  }

  void resolve_lengths() {
    // Megatron's inverse square root without warmup starts from one sample, so counting in steps gives another curve.
    const bool samples = given_.warmup_samples > 0 || given_.lr_decay_samples > 0 || given_.lr_wsd_decay_samples > 0 ||
                         given_.train_samples > 0 || type_ == LrType::inverse_square_root;
    settings_.lr = given_.learning_rate;
    settings_.min_lr = given_.min_lr;
    settings_.init_lr = given_.lr_warmup_init;
    settings_.increment = samples ? given_.global_batch_size : 1;
    settings_.offset = given_.lr_step_offset * settings_.increment;
    settings_.decay_end = length("lr_decay", given_.lr_decay_steps, given_.lr_decay_samples);
    if (settings_.decay_end == 0) settings_.decay_end = run_length();
    settings_.warmup = length("warmup", given_.warmup_steps, given_.warmup_samples);
    if (given_.warmup_ratio > 0 && settings_.warmup > 0) {
      refuse(fmt::format("warmup_ratio {} and a warmup of {} {} are both given; give only one", given_.warmup_ratio,
                         settings_.warmup, samples ? "samples" : "steps"));
    } else if (given_.warmup_ratio > 0) {
      settings_.warmup = units(static_cast<int64_t>(ratio_steps()));
    }
    settings_.decay_start = settings_.warmup;
    settings_.last = settings_.decay_end;
  }

  int64_t run_length() { return given_.train_samples > 0 ? given_.train_samples : units(given_.max_steps); }

  // As HF rounds: up, from the product as a double.
  double ratio_steps() const {
    const double steps = static_cast<double>(settings_.decay_end) / static_cast<double>(settings_.increment);
    return std::ceil(given_.warmup_ratio * steps);
  }

  void resolve_curve() {
    if (!type_) return refuse(unknown_type(given_.lr_scheduler_type));
    if (type_ == LrType::constant || type_ == LrType::constant_with_warmup) return;
    if (type_ == LrType::inverse_sqrt) return resolve_inverse_sqrt();
    if (settings_.decay_end == 0)
      return refuse(fmt::format("lr_scheduler_type {} needs an end: set max_steps or lr_decay_steps", name_of(*type_)));
    if (type_ == LrType::wsd) return resolve_wsd();
    if (type_ == LrType::warmup_stable_decay) return resolve_warmup_stable_decay();
    settings_.curve = type_ == LrType::linear ? LrCurve::linear : LrCurve::cosine;
    if (type_ == LrType::inverse_square_root) {
      settings_.curve = LrCurve::inverse_sqrt;
      settings_.timescale = std::max(static_cast<double>(settings_.warmup), 1.0);
    }
    if (settings_.curve == LrCurve::cosine) settings_.cycles = number("num_cycles").value_or(0.5);
    if (type_ == LrType::cosine_with_min_lr) resolve_min_lr();
  }

  void resolve_inverse_sqrt() {
    const double unit = static_cast<double>(settings_.increment);
    const double warmup = static_cast<double>(settings_.warmup);
    settings_.curve = LrCurve::inverse_sqrt;
    settings_.timescale = warmup > 0 ? warmup : kTimescaleWithoutWarmup * unit;
    if (const std::optional<double> given = number("timescale")) settings_.timescale = *given * unit;
    if (!(settings_.timescale > 0)) refuse("lr_scheduler_kwargs: timescale must be > 0");
    settings_.shift = settings_.timescale - warmup;
    settings_.last = std::numeric_limits<int64_t>::max();  // no end in HF
  }

  void resolve_min_lr() {
    const std::optional<double> value = number("min_lr");
    const std::optional<double> rate = number("min_lr_rate");
    const int count = (value ? 1 : 0) + (rate ? 1 : 0) + (given_.min_lr > 0 ? 1 : 0);
    if (count != 1)
      return refuse(
          "lr_scheduler_type cosine_with_min_lr needs exactly one of min_lr and min_lr_rate in lr_scheduler_kwargs, or "
          "min_lr");
    set_min_lr(value ? *value : rate ? *rate * settings_.lr : given_.min_lr);
  }

  void set_min_lr(double value) {
    if (value >= 0 && value <= settings_.lr) {
      settings_.min_lr = value;
    } else {
      refuse(fmt::format("lr_scheduler_kwargs: minimum learning rate {} must be from 0 to learning_rate {}", value,
                         settings_.lr));
    }
  }

  void resolve_wsd() {
    const int64_t decay = length("lr_wsd_decay", given_.lr_wsd_decay_steps, given_.lr_wsd_decay_samples);
    if (decay == 0) return refuse("lr_scheduler_type wsd requires lr_wsd_decay_steps or lr_wsd_decay_samples");
    set_last_part(given_.lr_wsd_decay_style, settings_.decay_end - decay, settings_.decay_end);
  }

  void resolve_warmup_stable_decay() {
    const std::optional<int64_t> decay = whole_number("num_decay_steps");
    const std::optional<int64_t> stable = whole_number("num_stable_steps");
    if (!decay) return refuse("lr_scheduler_type warmup_stable_decay requires num_decay_steps in lr_scheduler_kwargs");
    if (text("warmup_type").value_or("linear") != "linear")
      return refuse("lr_scheduler_kwargs: warmup_type must be linear; no other is supported");
    const std::string kind = text("decay_type").value_or("cosine");
    if (kind != "linear" && kind != "cosine" && kind != "1-sqrt")
      return refuse(
          fmt::format("lr_scheduler_kwargs: decay_type is {}; must be one of linear, cosine, 1-sqrt", quoted(kind)));
    if (const std::optional<double> ratio = number("min_lr_ratio")) set_min_lr(*ratio * settings_.lr);
    if (settings_.min_lr > 0) settings_.init_lr = settings_.min_lr;  // HF's warmup starts there too
    settings_.cycles = number("num_cycles").value_or(0.5);
    const int64_t length = units(*decay);
    const int64_t start = stable ? settings_.warmup + units(*stable) : settings_.decay_end - length;
    set_last_part(kind == "linear"   ? LrCurve::linear
                  : kind == "cosine" ? LrCurve::cosine
                                     : LrCurve::minus_sqrt,
                  start, start + length);
    --settings_.last;  // in HF the minimum is reached at the last step, except for a cosine with other cycles
  }

  void set_last_part(LrCurve curve, int64_t start, int64_t end) {
    if (start < settings_.warmup || start >= end)
      return refuse(fmt::format("a warmup of {} and a decay of {} do not fit into the curve length of {}",
                                settings_.warmup, end - start, settings_.decay_end));
    settings_.curve = curve;
    settings_.decay_start = start;
    settings_.decay_end = settings_.last = end;
  }

  void resolve_weight_decay() {
    settings_.start_weight_decay = given_.start_weight_decay < 0 ? given_.weight_decay : given_.start_weight_decay;
    settings_.end_weight_decay = given_.end_weight_decay < 0 ? given_.weight_decay : given_.end_weight_decay;
    check_not_negative("start_weight_decay", settings_.start_weight_decay);
    check_not_negative("end_weight_decay", settings_.end_weight_decay);
    const LrCurve style = given_.weight_decay_incr_style;
    if (style == LrCurve::constant) {
      if (settings_.start_weight_decay != settings_.end_weight_decay)
        refuse(fmt::format("weight_decay_incr_style constant cannot change from {} to {}; use linear or cosine",
                           settings_.start_weight_decay, settings_.end_weight_decay));
      return;
    }
    if (given_.max_steps == 0)
      return refuse(fmt::format("weight_decay_incr_style {} requires max_steps", name_of(style)));
    settings_.weight_decay_curve = style;
    settings_.weight_decay_length = run_length();
  }

  std::optional<std::string> text(const std::string& name) {
    asked_.push_back(name);
    used_.insert(name);
    const auto found = given_.lr_scheduler_kwargs.find(name);
    if (found == given_.lr_scheduler_kwargs.end()) return std::nullopt;
    return found->second;
  }

  template <typename Number>
  std::optional<Number> parsed(const std::string& name, std::string_view what) {
    const std::optional<std::string> given = text(name);
    if (!given) return std::nullopt;
    Number value{};
    const char* end = given->data() + given->size();
    const std::from_chars_result result = std::from_chars(given->data(), end, value);
    if (result.ec == std::errc() && result.ptr == end && std::isfinite(static_cast<double>(value)) && value >= 0 &&
        static_cast<double>(value) <= static_cast<double>(kMaxLength))
      return value;
    refuse(fmt::format("lr_scheduler_kwargs: {} is {}; must be {} >= 0", name, quoted(*given), what));
    return std::nullopt;
  }
  std::optional<double> number(const std::string& name) { return parsed<double>(name, "a number"); }
  std::optional<int64_t> whole_number(const std::string& name) { return parsed<int64_t>(name, "an integer"); }

  const LrArguments& given_;
  std::optional<LrType> type_;  // nullopt: unknown
  LrSettings settings_;
  std::vector<std::string> asked_;  // names of the kwargs of this type, in order
  std::set<std::string> used_;
  std::vector<std::string> problems_;
};

}  // namespace

void check_lr_scheduler_type(const std::string& name) {
  if (!find_type(name)) throw ConfigError(unknown_type(name));
}

LrSettings resolve_lr(const LrArguments& arguments) { return Resolver(arguments).resolve(); }

}  // namespace concord
