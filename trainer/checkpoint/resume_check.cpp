#include "trainer/checkpoint/resume_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/base/config_error.h"
#include "core/models/config_fields.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

using Texts = std::vector<std::pair<std::string, std::string>>;

std::string value_in(const Texts& texts, const std::string& name) {
  const auto found = std::find_if(texts.begin(), texts.end(), [&](const auto& each) { return each.first == name; });
  return found == texts.end() ? "" : found->second;
}

// The texts of |saved| and |own| that differ, as lists for a message: "seed 42" and "seed 7".
struct Difference {
  std::vector<std::string> saved, own;
  std::vector<std::string> names;

  void add(const std::string& name, const std::string& was, const std::string& is) {
    if (was == is) return;
    names.push_back(name);
    saved.push_back(was.empty() ? "no " + name : name + " " + was);
    own.push_back(is.empty() ? "no " + name : name + " " + is);
  }
  bool empty() const { return names.empty(); }
  std::string sentence(const std::string& folder, const std::string& way) const {
    return fmt::format("{} was saved with {}, but this run has {}; {}", folder, fmt::join(saved, ", "),
                       fmt::join(own, ", "), way);
  }
};

Difference difference(const Texts& saved, const Texts& own) {
  Difference result;
  for (const auto& [name, value] : saved) result.add(name, value, value_in(own, name));
  for (const auto& [name, value] : own) {
    if (value_in(saved, name).empty()) result.add(name, "", value);
  }
  return result;
}

std::string number_text(double value) { return fmt::format("{}", value); }  // the shortest that reads back the same

// A checkpoint and the run that resumes it.
struct Resumption {
  const std::string& folder;
  const TrainingState& state;
  const TrainingPlan& plan;
};
using Found = std::vector<std::string>;

// Returns name and text by which |setting|, one of |arguments|, is compared; nullopt if another setting includes it.
std::optional<Texts::value_type> compared_form(const Texts::value_type& setting, const Texts& arguments) {
  const auto& [name, text] = setting;
  if (name == "bf16") {
    const bool is_fp16 = value_in(arguments, "fp16") == "true";
    return {{"precision", text == "true" ? "bf16" : is_fp16 ? "fp16" : "fp32"}};
  }
  if (name == "fp16") return std::nullopt;  // see bf16
  const bool is_quoted = text.size() > 1 && text.starts_with('"') && text.ends_with('"');
  if (name == "optimizer" && is_quoted) return {{name, text.substr(1, text.size() - 2)}};
  if (name == "stage" && text == R"("pt")") return {{name, R"("sft")"}};  // the two differ in name only
  return setting;
}

// Returns those of |arguments| that the table marks with |label|, as they are compared.
Texts settings_with(Resume label, const Texts& arguments) {
  Texts texts;
  for (const Argument* argument : all_arguments()) {
    if (argument->resume != label) continue;
    const auto found = std::ranges::find(arguments, argument->name, &Texts::value_type::first);
    if (found == arguments.end()) continue;
    if (const auto form = compared_form(*found, arguments)) texts.push_back(*form);
  }
  return texts;
}

// Compares the settings marked with |label| by their texts. Older checkpoints do not hold all of them.
void compare_settings(Resume label, const Resumption& run, const char* way, Found* found) {
  const Texts own = settings_with(label, printed_arguments(run.plan.arguments));
  Difference settings;
  for (const auto& [name, text] : settings_with(label, run.state.arguments)) {
    settings.add(name, text, value_in(own, name));
  }
  if (!settings.empty()) found->push_back(settings.sentence(run.folder, way));
}

// The fields that a resumed run must not change.
Texts compared_texts(const ConfigFields& fields) {
  Texts texts;
  for (const ConfigField& field : fields) {
    if (!field.may_differ) texts.emplace_back(field.name, field.text);
  }
  return texts;
}

// Returns the folders of the adapters that were merged into the base model, without their parents, which may differ.
std::string merged_names(const AdapterConfig& adapter) {
  std::vector<std::string> names;
  for (const std::string& folder : adapter.merged_adapters) {
    names.push_back(std::filesystem::path(folder).filename().string());
  }
  return fmt::format("{}", fmt::join(names, " "));
}

void compare_adapter(const Resumption& run, Found* found) {
  if (!run.plan.adapter && !has_adapter(run.folder)) return;
  if (has_adapter(run.folder) != run.plan.adapter.has_value()) {
    found->push_back(run.plan.adapter
                         ? fmt::format("{} has the weights of a whole model, but this run trains an adapter; "
                                       "start from it with --model {}",
                                       run.folder, run.folder)
                         : fmt::format("{} has an adapter, but this run trains all weights; set "
                                       "finetuning_type: lora, or merge it with `concord merge`",
                                       run.folder));
    return;
  }
  const AdapterConfig saved = read_adapter_config(run.folder);
  Difference adapter =
      difference(compared_texts(config_fields(saved)), compared_texts(config_fields(saved_form(*run.plan.adapter))));
  adapter.add("merged adapters", merged_names(saved), merged_names(*run.plan.adapter));
  if (!adapter.empty()) found->push_back(adapter.sentence(run.folder, "use the same settings, or start a new run"));
}

void compare_model(const Resumption& run, Found* found) {
  if (run.plan.adapter || has_adapter(run.folder)) return;  // see compare_adapter
  const Difference model = difference(compared_texts(config_fields(read_model_config(run.folder))),
                                      compared_texts(config_fields(run.plan.config)));
  if (model.empty()) return;
  found->push_back(model.sentence(
      run.folder, fmt::format("weights fit only the model that they were trained as; use --model {}", run.folder)));
}

void compare_optimizer(const Resumption& run, Found* found) {
  compare_settings(Resume::optimizer, run, "use the same, or --no_load_optim to continue with fresh optimizer state",
                   found);
}

void compare_objective(const Resumption& run, Found* found) {
  compare_settings(Resume::objective, run,
                   "use the same settings, or --no_load_optim to continue with fresh optimizer state", found);
}

void compare_seed(const Resumption& run, Found* found) {
  compare_settings(Resume::seed, run,
                   "use the same, or --no_load_rng to start the random generators from this run's seed", found);
}

void compare_schedule(const Resumption& run, Found* found) {
  const auto& [folder, state, plan] = run;
  if (state.schedule.empty()) return;  // written before it was saved
  const Difference schedule = difference(state.schedule, schedule_texts(resolve_lr(plan.lr)));
  if (schedule.empty()) return;
  const std::string steps = value_in(state.arguments, "max_steps"),
                    own = std::to_string(plan.arguments.steps.max_steps);
  const std::string why =
      steps == own ? "" : fmt::format(" (a schedule ends with max_steps, which was {} and is {})", steps, own);
  found->push_back(schedule.sentence(
      folder, fmt::format("use the same settings, or --override_opt_param_scheduler to continue with those of this "
                          "run{}",
                          why)));
}

void compare_data(const Resumption& run, Found* found) {
  const auto& [folder, state, plan] = run;
  const std::string beginning = "or --ignore_data_skip to start at the beginning of the data";
  // A batch that was decreased for one number of ranks is another one for others; samples and their order are the same.
  const bool may_differ =
      plan.arguments.steps.decrease_batch_size &&
      value_in(state.arguments, "global_batch_size") == std::to_string(plan.arguments.steps.global_batch_size);
  if (!may_differ && state.global_batch_size > 0 && state.global_batch_size != plan.train_data->global_batch_size()) {
    Difference batch;
    batch.add("global batch size", std::to_string(state.global_batch_size),
              std::to_string(plan.train_data->global_batch_size()));
    found->push_back(batch.sentence(
        folder, "use the same (per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks), " +
                    beginning));
  }
  if (state.data_identity.empty()) return;  // written before it was saved: the loader compares the fingerprints
  const Difference data = difference(state.data_identity, plan.train_data->identity());
  if (data.empty()) return;
  const bool only_longer = data.names == std::vector<std::string>{kEpochsShuffledTogether};
  found->push_back(
      only_longer
          ? fmt::format(
                "{} cannot be continued with max_steps {}: Megatron data and text are shuffled over all epochs "
                "that a run takes, which were {} with max_steps {} and are {} now, so the samples would come in "
                "another order; use the same max_steps, {}",
                folder, plan.arguments.steps.max_steps, value_in(state.data_identity, kEpochsShuffledTogether),
                value_in(state.arguments, "max_steps"), value_in(plan.train_data->identity(), kEpochsShuffledTogether),
                beginning)
          : data.sentence(folder, fmt::format("this is other data, or another order of it; use the same data and "
                                              "settings, {}",
                                              beginning)));
}

// How the settings with |label| are compared, if the run takes that part of the checkpoint.
struct Comparison {
  Resume label;
  bool (*applies)(const ResumeParts& parts);
  void (*compare)(const Resumption& run, Found* found);
};
constexpr Comparison kComparisons[] = {
    {Resume::adapter, [](const ResumeParts&) { return true; }, compare_adapter},
    {Resume::model, [](const ResumeParts&) { return true; }, compare_model},
    {Resume::optimizer, [](const ResumeParts& parts) { return parts.optimizer; }, compare_optimizer},
    {Resume::objective, [](const ResumeParts& parts) { return parts.optimizer; }, compare_objective},
    {Resume::schedule, [](const ResumeParts& parts) { return parts.optimizer && parts.schedule; }, compare_schedule},
    {Resume::data, [](const ResumeParts& parts) { return parts.data; }, compare_data},
    {Resume::seed, [](const ResumeParts& parts) { return parts.rng; }, compare_seed},
};

void throw_found(const Found& found) {
  if (found.empty()) return;
  if (found.size() == 1) throw ConfigError(found.front());
  throw ConfigError(
      fmt::format("{} settings differ from the checkpoint's:\n  {}", found.size(), fmt::join(found, "\n  ")));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> schedule_texts(const LrSettings& settings) {
  const auto length = [&](int64_t units) {
    return fmt::format("{} {}", units, settings.increment > 1 ? "samples" : "steps");
  };
  Texts texts = {{"learning_rate", number_text(settings.lr)}, {"curve", std::string(name_of(settings.curve))}};
  if (settings.increment > 1) texts.emplace_back("samples per step", std::to_string(settings.increment));
  if (settings.offset != 0) texts.emplace_back("lr_step_offset", std::to_string(settings.offset));
  texts.emplace_back("warmup", length(settings.warmup));
  if (settings.warmup > 0) texts.emplace_back("lr_warmup_init", number_text(settings.init_lr));
  if (settings.curve != LrCurve::constant) {
    texts.emplace_back("min_lr", number_text(settings.min_lr));
    texts.emplace_back("end of the curve", length(settings.last));
    if (settings.curve == LrCurve::inverse_sqrt) {
      texts.emplace_back("timescale", number_text(settings.timescale));
      texts.emplace_back("shift", number_text(settings.shift));
    } else {
      texts.emplace_back("start of the decay", length(settings.decay_start));
      texts.emplace_back("length of the decay", length(settings.decay_end - settings.decay_start));
    }
    if (settings.curve == LrCurve::cosine) texts.emplace_back("num_cycles", number_text(settings.cycles));
  }
  texts.emplace_back("weight_decay", number_text(settings.end_weight_decay));
  if (settings.weight_decay_curve != LrCurve::constant) {
    texts.emplace_back("start_weight_decay", number_text(settings.start_weight_decay));
    texts.emplace_back("weight_decay_incr_style", std::string(name_of(settings.weight_decay_curve)));
    texts.emplace_back("end of the weight decay's curve", length(settings.weight_decay_length));
  }
  return texts;
}

void describe_run(const TrainingPlan& plan, TrainingState* state) {
  const LrSettings settings = resolve_lr(plan.lr);
  state->job = plan.job;
  state->optimizer = name_of(plan.arguments.optimizer.optimizer);
  state->schedule = schedule_texts(settings);
  state->lr_increment = settings.increment;
  state->data_identity = plan.train_data->identity();
  state->global_batch_size = plan.train_data->global_batch_size();
  state->arguments = printed_arguments(plan.arguments);
}

void check_resumable(const std::string& folder, const TrainingState& state, const TrainingPlan& plan,
                     const ResumeParts& parts) {
  Found found;
  for (const Comparison& each : kComparisons) {
    if (each.applies(parts)) each.compare({folder, state, plan}, &found);
  }
  throw_found(found);
}

void check_same_model(const std::string& folder, const TrainingPlan& plan) {
  check_resumable(folder, {}, plan, {.optimizer = false, .schedule = false, .rng = false, .data = false});
}

int64_t continued_lr_counter(const TrainingState& state, const LrSettings& settings) {
  const int64_t increment = state.lr_increment > 0 ? state.lr_increment : settings.increment;
  if (increment == settings.increment) return state.lr_counter;
  return state.lr_counter / increment * settings.increment;
}

}  // namespace concord
