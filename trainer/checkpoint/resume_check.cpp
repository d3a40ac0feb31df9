#include "trainer/checkpoint/resume_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/models/config.h"
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

std::string_view curve_name(LrCurve curve) {
  switch (curve) {
    case LrCurve::constant: return "constant";
    case LrCurve::linear: return "linear";
    case LrCurve::cosine: return "cosine";
    case LrCurve::exponential: return "exponential";
    case LrCurve::minus_sqrt: return "minus_sqrt";
    case LrCurve::inverse_sqrt: return "inverse_sqrt";
  }
  return "unknown";
}

std::string number_text(double value) { return fmt::format("{}", value); }  // the shortest that reads back the same
std::string flag_text(bool value) { return value ? "true" : "false"; }

Texts rope_texts(const RopeSettings& rope) {
  const auto maybe = [](const std::optional<double>& value) { return value ? number_text(*value) : std::string(); };
  return {{"rope_type", rope.rope_type},
          {"rope_theta", number_text(rope.rope_theta)},
          {"partial_rotary_factor", number_text(rope.partial_rotary_factor)},
          {"original_max_position_embeddings", std::to_string(rope.original_max_position_embeddings)},
          {"rope factor", maybe(rope.factor)},
          {"low_freq_factor", maybe(rope.low_freq_factor)},
          {"high_freq_factor", maybe(rope.high_freq_factor)},
          {"attention_factor", maybe(rope.attention_factor)},
          {"mscale", maybe(rope.mscale)},
          {"mscale_all_dim", maybe(rope.mscale_all_dim)},
          {"beta_fast", number_text(rope.beta_fast)},
          {"beta_slow", number_text(rope.beta_slow)},
          {"rope truncate", flag_text(rope.truncate)}};
}

Texts expert_texts(const ExpertConfig& experts) {
  std::string sparse;
  for (const bool each : experts.sparse) sparse += each ? '1' : '0';
  return {{"num_experts", std::to_string(experts.num_experts)},
          {"num_experts_per_tok", std::to_string(experts.num_experts_per_tok)},
          {"the experts' intermediate size", std::to_string(experts.intermediate_size)},
          {"the shared expert's intermediate size", std::to_string(experts.shared_intermediate_size)},
          {"norm_topk_prob", flag_text(experts.norm_topk_prob)},
          {"sigmoid scores", flag_text(experts.sigmoid_scores)},
          {"expert bias", flag_text(!experts.bias.empty())},
          {"softmax over the chosen experts", flag_text(experts.softmax_after_topk)},
          {"biases of router and experts", flag_text(experts.stacked_in_files)},
          {"routed_scaling_factor", number_text(experts.routed_scaling_factor)},
          {"n_group", std::to_string(experts.n_group)},
          {"topk_group", std::to_string(experts.topk_group)},
          {"layers with experts", sparse}};
}

Texts delta_texts(const DeltaConfig& delta) {
  std::string linear;
  for (const bool each : delta.layers) linear += each ? '1' : '0';
  return {{"linear_num_key_heads", std::to_string(delta.key_heads)},
          {"linear_num_value_heads", std::to_string(delta.value_heads)},
          {"linear_key_head_dim", std::to_string(delta.key_dim)},
          {"linear_value_head_dim", std::to_string(delta.value_dim)},
          {"linear_conv_kernel_dim", std::to_string(delta.taps)},
          {"layers with linear attention", linear}};
}

std::string activation_text(const GatedActivation& activation) {
  using Kind = GatedActivation::Kind;
  if (activation.kind != Kind::clamped) return activation.kind == Kind::silu ? "silu" : "gelu_pytorch_tanh";
  return fmt::format("clamped to {}, alpha {}", activation.limit, activation.alpha);
}

// All that the model computes with; not how new weights are drawn, nor the type they are saved in.
Texts model_texts(const ModelConfig& config) {
  std::string rotated = config.rotated.empty() ? "all" : "";
  for (const bool each : config.rotated) rotated += each ? '1' : '0';
  Texts texts = {{"architecture", config.architecture},
                 {"vocab_size", std::to_string(config.vocab_size)},
                 {"hidden_size", std::to_string(config.hidden_size)},
                 {"intermediate_size", std::to_string(config.intermediate_size)},
                 {"num_hidden_layers", std::to_string(config.num_hidden_layers)},
                 {"num_attention_heads", std::to_string(config.num_attention_heads)},
                 {"num_key_value_heads", std::to_string(config.num_key_value_heads)},
                 {"head_dim", std::to_string(config.head_dim)},
                 {"q_lora_rank", std::to_string(config.latent.q_lora_rank)},
                 {"kv_lora_rank", std::to_string(config.latent.kv_lora_rank)},
                 {"qk_rope_head_dim", std::to_string(config.latent.qk_rope_head_dim)},
                 {"v_head_dim", std::to_string(config.latent.v_head_dim)},
                 {"biases of latents", flag_text(config.latent.bias)},
                 {"max_position_embeddings", std::to_string(config.max_position_embeddings)},
                 {"rms_norm_eps", number_text(config.rms_norm_eps)},
                 {"tie_word_embeddings", flag_text(config.tie_word_embeddings)},
                 {"biases of queries, keys and values", flag_text(config.qkv_bias)},
                 {"bias of the attention's output", flag_text(config.output_bias)},
                 {"mlp_bias", flag_text(config.mlp_bias)},
                 {"qk_norm", flag_text(config.qk_norm)},
                 {"qk_norm of all heads together", flag_text(config.qk_norm_all_heads)},
                 {"gate of the attention's output", flag_text(config.attention_gate)},
                 {"norms times 1 + weight", flag_text(config.norms_plus_one)},
                 {"attention sinks", flag_text(config.sinks)},
                 {"activation", activation_text(config.activation)},
                 {"layers with rope", rotated},
                 {"rope of neighbouring pairs", flag_text(config.interleaved_rope)},
                 {"embedding_multiplier", number_text(config.embedding_multiplier)},
                 {"residual_multiplier", number_text(config.residual_multiplier)},
                 {"attention_multiplier", number_text(config.attention_multiplier)},
                 {"attn_logit_softcapping", number_text(config.attn_logit_softcapping)},
                 {"final_logit_softcapping", number_text(config.final_logit_softcapping)},
                 {"attention_dropout", number_text(config.attention_dropout)},
                 {"logits_scaling", number_text(config.logits_scaling)},
                 {"sliding windows", fmt::format("{}", fmt::join(config.windows, " "))}};
  for (auto& each : rope_texts(config.rope)) texts.push_back(std::move(each));
  if (config.window_rope) {
    for (const auto& [name, value] : rope_texts(*config.window_rope)) {
      texts.emplace_back(fmt::format("{} of layers with a window", name), value);
    }
  }
  for (auto& each : expert_texts(config.experts)) texts.push_back(std::move(each));
  for (auto& each : delta_texts(config.delta)) texts.push_back(std::move(each));
  return texts;
}

std::string precision_text(const std::string& bf16, const std::string& fp16) {
  return bf16 == "true" ? "bf16" : fp16 == "true" ? "fp16" : "fp32";
}

using Found = std::vector<std::string>;

Texts adapter_texts(const AdapterConfig& adapter) {
  const auto pattern = [](const auto& numbers) {
    std::string text;
    for (const auto& [key, value] : numbers) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
    return text;
  };
  return {{"lora_rank", std::to_string(adapter.r)},
          {"lora_alpha", number_text(adapter.lora_alpha)},
          {"lora_dropout", number_text(adapter.lora_dropout)},
          {"use_rslora", flag_text(adapter.use_rslora)},
          {"use_dora", flag_text(adapter.use_dora)},
          {"lora_target", fmt::format("{}{}", fmt::join(adapter.target_modules, ","), adapter.target_pattern)},
          {"excluded modules", fmt::format("{}", fmt::join(adapter.exclude_modules, ","))},
          {"modules_to_save", fmt::format("{}", fmt::join(adapter.modules_to_save, ","))},
          {"rank_pattern", pattern(adapter.rank_pattern)},
          {"alpha_pattern", pattern(adapter.alpha_pattern)}};
}

void compare_adapter(const std::string& folder, const TrainingPlan& plan, Found* found) {
  if (has_adapter(folder) != plan.adapter.has_value()) {
    found->push_back(plan.adapter ? fmt::format("{} has the weights of a whole model, but this run trains an adapter; "
                                                "start from it with --model {}",
                                                folder, folder)
                                  : fmt::format("{} has an adapter, but this run trains all weights; set "
                                                "finetuning_type: lora, or merge it with `concord merge`",
                                                folder));
    return;
  }
  const Difference adapter =
      difference(adapter_texts(read_adapter_config(folder)), adapter_texts(saved_form(*plan.adapter)));
  if (!adapter.empty()) found->push_back(adapter.sentence(folder, "use the same settings, or start anew"));
}

void compare_model(const std::string& folder, const TrainingPlan& plan, Found* found) {
  if (plan.adapter || has_adapter(folder)) return compare_adapter(folder, plan, found);
  const Difference model = difference(model_texts(read_model_config(folder)), model_texts(plan.config));
  if (model.empty()) return;
  found->push_back(model.sentence(
      folder, fmt::format("weights fit only the model that they were trained as; use --model {}", folder)));
}

void compare_optimizer(const std::string& folder, const TrainingState& state, const TrainingPlan& plan, Found* found) {
  const PrecisionArguments& precision = plan.arguments.precision;
  Difference optimizer;
  optimizer.add("optimizer", state.optimizer, plan.arguments.optimizer.optimizer);
  optimizer.add("precision", precision_text(value_in(state.arguments, "bf16"), value_in(state.arguments, "fp16")),
                precision_text(flag_text(precision.bf16), flag_text(precision.fp16)));
  if (optimizer.empty()) return;
  found->push_back(
      optimizer.sentence(folder, "use the same, or --no_load_optim to continue with fresh optimizer state"));
}

void compare_schedule(const std::string& folder, const TrainingState& state, const TrainingPlan& plan, Found* found) {
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

void compare_data(const std::string& folder, const TrainingState& state, const TrainingPlan& plan, Found* found) {
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

// Another objective would go on with the other one's optimizer state. Older checkpoints do not tell.
void compare_objective(const std::string& folder, const TrainingState& state, const TrainingPlan& plan, Found* found) {
  const Texts own = printed_arguments(plan.arguments);
  Difference objective;
  for (const char* name : {"stage",
                           "pref_loss",
                           "pref_beta",
                           "pref_ftx",
                           "dpo_label_smoothing",
                           "simpo_gamma",
                           "ld_alpha",
                           "reference_free",
                           "ref_model",
                           "center_rewards_coefficient",
                           "init_lora_weights",
                           "quantization_bit",
                           "attention_dropout",
                           "hidden_dropout",
                           "muon_momentum",
                           "muon_use_nesterov",
                           "muon_num_ns_steps",
                           "muon_scale_mode",
                           "muon_extra_scale_factor",
                           "ema_decay",
                           "ema_start_step",
                           "fp8",
                           "fp8_recipe",
                           "fp8_amax_history_len",
                           "first_last_layers_bf16"}) {
    const bool is_known = std::any_of(state.arguments.begin(), state.arguments.end(),
                                      [&](const auto& argument) { return argument.first == name; });
    const auto text = [name](const Texts& texts) {
      const std::string value = value_in(texts, name);
      return value == "pt" ? "sft" : value;  // two names of the same
    };
    if (is_known) objective.add(name, text(state.arguments), text(own));
  }
  if (objective.empty()) return;
  found->push_back(
      objective.sentence(folder, "use the same settings, or --no_load_optim to continue with fresh optimizer state"));
}

void compare_seed(const std::string& folder, const TrainingState& state, const TrainingPlan& plan, Found* found) {
  Difference seed;
  const std::string saved = value_in(state.arguments, "seed");
  if (!saved.empty()) seed.add("seed", saved, std::to_string(plan.arguments.job.seed));
  if (seed.empty()) return;
  found->push_back(
      seed.sentence(folder, "use the same, or --no_load_rng to start the random generators from this run's seed"));
}

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
  Texts texts = {{"learning_rate", number_text(settings.lr)}, {"curve", std::string(curve_name(settings.curve))}};
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
    texts.emplace_back("weight_decay_incr_style", std::string(curve_name(settings.weight_decay_curve)));
    texts.emplace_back("end of the weight decay's curve", length(settings.weight_decay_length));
  }
  return texts;
}

void describe_run(const TrainingPlan& plan, TrainingState* state) {
  const LrSettings settings = resolve_lr(plan.lr);
  state->job = plan.job;
  state->optimizer = plan.arguments.optimizer.optimizer;
  state->schedule = schedule_texts(settings);
  state->lr_increment = settings.increment;
  state->data_identity = plan.train_data->identity();
  state->global_batch_size = plan.train_data->global_batch_size();
  state->arguments = printed_arguments(plan.arguments);
}

void check_resumable(const std::string& folder, const TrainingState& state, const TrainingPlan& plan,
                     const ResumeParts& parts) {
  Found found;
  compare_model(folder, plan, &found);
  if (parts.optimizer) compare_optimizer(folder, state, plan, &found);
  if (parts.optimizer) compare_objective(folder, state, plan, &found);
  if (parts.optimizer && parts.schedule) compare_schedule(folder, state, plan, &found);
  if (parts.data) compare_data(folder, state, plan, &found);
  if (parts.rng) compare_seed(folder, state, plan, &found);
  throw_found(found);
}

void check_same_model(const std::string& folder, const TrainingPlan& plan) {
  Found found;
  compare_model(folder, plan, &found);
  throw_found(found);
}

int64_t continued_lr_counter(const TrainingState& state, const LrSettings& settings) {
  const int64_t increment = state.lr_increment > 0 ? state.lr_increment : settings.increment;
  if (increment == settings.increment) return state.lr_counter;
  return state.lr_counter / increment * settings.increment;
}

}  // namespace concord
