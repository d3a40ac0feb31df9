// Relations between the settings of the model, the data and the steps.
#include <fmt/format.h>

#include "core/base/quoted.h"
#include "core/base/refused_combinations.h"
#include "trainer/arguments/relations.h"
#include "trainer/data/sources/blend.h"
#include "trainer/data/sources/split.h"

namespace concord {

void check_training_data(const TrainingArguments& a) {
  if (!a.data.path.empty() || !a.data.blend.empty() || !a.dataset.name.empty()) return;
  throw ConfigError("no training data: give --train_data (a Megatron prefix, .jsonl, .txt or .safetensors)");
}

namespace {

void check_sources(const TrainingArguments& a, Problems* problems) {
  const EvaluationArguments& evaluation = a.evaluation;
  if (!a.has_datasets) problems->collect([&] { check_training_data(a); });
  const auto exclude = [&](bool first, bool second, const char* names) {
    if (first && second) problems->add(fmt::format("{} are both given; give only one of them", names));
  };
  exclude(!a.data.path.empty(), !a.data.blend.empty(), "train_data and train_data_blend");
  exclude(!a.dataset.name.empty(), !a.data.path.empty() || !a.data.blend.empty(),
          "dataset and train_data (or a blend)");
  exclude(!a.dataset.eval_name.empty(), evaluation.is_given(), "eval_dataset and eval_data (or eval_datasets)");
  exclude(!evaluation.data.empty(), !evaluation.blend.empty(), "eval_data and eval_data_blend");
  exclude(!evaluation.data.empty() || !evaluation.blend.empty(), !evaluation.sets.empty(),
          "eval_data (or eval_data_blend) and eval_datasets");
  exclude(!evaluation.test_data.empty(), !evaluation.test_blend.empty(), "test_data and test_data_blend");
  exclude(!a.data.split.empty(), evaluation.is_given() || evaluation.has_test() || !a.dataset.eval_name.empty(),
          "split and validation or test data of their own");
  problems->collect([&] { parse_split(a.data.split.empty() ? std::vector<std::string>{"1"} : a.data.split); });
  for (const auto* blend : {&a.data.blend, &evaluation.blend, &evaluation.test_blend}) {
    problems->collect([&] { parse_blend(*blend); });
  }
  for (const auto& [name, path] : evaluation.sets) {
    if (name.empty() || path.empty()) problems->add("eval_datasets has an entry without a name or a path");
  }
}

void check_loop(const TrainingArguments& a, Problems* problems) {
  problems->collect([&] { batch_ramp(a.steps); });
  problems->collect([&] { skipped_steps(a.steps); });
  if (!a.steps.rampup_batch_size.empty() && !a.steps.has_length()) {
    problems->add(
        "rampup_batch_size needs max_steps or train_samples: epochs have no fixed number of steps while the batch "
        "grows");
  }
  if (a.steps.decrease_batch_size && !a.steps.rampup_batch_size.empty()) {
    problems->add(refusal_message(Refused::divisible_ramp));
  }
  if (a.steps.decrease_batch_size && a.steps.global_batch_size <= 0) {
    problems->add("decrease_batch_size_if_needed decreases global_batch_size, which is not given; set it");
  }
}

// As in Megatron, a run whose length is in samples has all lengths in samples.
void check_train_samples(const TrainingArguments& a, Problems* problems) {
  if (a.steps.train_samples == 0) return;
  if (a.steps.max_steps > 0) {
    problems->add(fmt::format("max_steps {} and train_samples {} are both given; give only one of them",
                              a.steps.max_steps, a.steps.train_samples));
  }
  if (a.data.packing) {
    problems->add(refusal_message(Refused::train_samples_with_packing));
  }
  if (a.lr.warmup_steps > 0 || a.lr.lr_decay_steps > 0 || a.lr.lr_wsd_decay_steps > 0) {
    problems->add(
        "with train_samples the learning rate counts samples; use warmup_samples (or warmup_ratio), lr_decay_samples "
        "and lr_wsd_decay_samples instead of warmup_steps, lr_decay_steps and lr_wsd_decay_steps");
  }
}

void check_document_ends(const TrainingArguments& a, Problems* problems) {
  if (!a.data.acts_at_document_ends()) {
    if (a.data.eod_token_id >= 0)
      problems->add(
          "eod_token_id is used by reset_position_ids, reset_attention_mask and eod_mask_loss, none of which is set");
    return;
  }
  if (a.data.packing || a.preference.learns_pairs()) {
    problems->add(fmt::format(
        "reset_position_ids, reset_attention_mask and eod_mask_loss are for rows that are cut from documents, which {} "
        "does not have; remove them",
        a.data.packing ? "sequence_packing" : "stage " + std::string(name_of(a.preference.stage))));
  }
  if (a.data.reset_attention_mask && a.evaluation.predict) {
    problems->add(refusal_message(Refused::predictions_with_masks));
  }
}

void check_model_and_data(const TrainingArguments& a, Problems* problems) {
  if (a.model.path.empty() == a.model.config.empty()) {
    problems->add(a.model.path.empty()
                      ? "no model: give --model FOLDER to start from its weights, or --model_config FILE "
                        "to initialize a new model"
                      : fmt::format("model is {} and model_config is {}; give only one of them", quoted(a.model.path),
                                    quoted(a.model.config)));
  }
  check_sources(a, problems);
  if (a.output.dir.empty()) problems->add("output_dir is empty; give a folder");
  if (a.evaluation.strategy == IntervalStrategy::no && !a.evaluation.sample_prompts.empty()) {
    problems->add(
        "sample_prompts are continued at every evaluation, but there is none; set eval_data, and eval_strategy to "
        "steps or epoch");
  }
  if (a.evaluation.on_start && !evaluates(a)) {
    problems->add("eval_on_start needs evaluation data; set eval_data, eval_datasets or split");
  }
  if (a.evaluation.strategy != IntervalStrategy::no && !evaluates(a)) {
    problems->add(fmt::format("eval_strategy is {}, but eval_data is not set; set eval_data, or use eval_strategy: no",
                              name_of(a.evaluation.strategy)));
  }
  if (a.steps.max_steps == 0) problems->add("max_steps is 0; set a number of steps, or -1 to use num_train_epochs");
}

void check_prediction(const TrainingArguments& a, Problems* problems) {
  if (a.evaluation.loss_only && (a.evaluation.accuracy || a.evaluation.predict)) {
    problems->add(fmt::format("prediction_loss_only and {} are both set; remove one of them",
                              a.evaluation.accuracy ? "compute_accuracy" : "do_predict"));
  }
  if (!a.evaluation.predict) return;
  if (a.evaluation.test_data.empty() && a.evaluation.test_blend.empty() && a.data.split.empty()) {
    problems->add("do_predict is of test data; give test_data, test_data_blend or split too");
  }
  if (a.data.packing) problems->add(refusal_message(Refused::predictions_of_packed_rows));
  if (a.preference.learns_pairs()) {
    problems->add(refusal_message(Refused::predictions_of_pairs,
                                  fmt::format("do_predict with stage {}", name_of(a.preference.stage))));
  }
}

// Sequences must split into equal parts.
void check_sequence(const TrainingArguments& a, Problems* problems) {
  if (a.data.seq_length == 0) return;
  const int64_t context = a.job.context_parallel_size > 1 ? 2 * a.job.context_parallel_size : 1;
  const int64_t tensor = a.model_options.sequence_parallel ? a.job.tensor_model_parallel_size : 1;
  if (a.data.seq_length % (context * tensor) == 0) return;
  problems->add(
      fmt::format("seq_length {} is not divisible by {}, as context_parallel_size {}{} requires; use a multiple of {}",
                  a.data.seq_length, context * tensor, a.job.context_parallel_size,
                  tensor > 1 ? fmt::format(" with sequence_parallel over {} ranks", tensor) : "", context * tensor));
}

}  // namespace

void check_data_relations(const TrainingArguments& a, Problems* problems) {
  check_loop(a, problems);
  check_train_samples(a, problems);
  check_document_ends(a, problems);
  check_model_and_data(a, problems);
  check_prediction(a, problems);
  check_sequence(a, problems);
}

}  // namespace concord
