// Relations between arguments, and arguments that follow from others.
#include "trainer/arguments/relations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/error_of.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using tests::error_of;

// Enough for the relations to hold.
TrainingArguments complete() {
  TrainingArguments arguments;
  arguments.model.path = "model";
  arguments.data.path = "data";
  return arguments;
}
std::string relation_error(const TrainingArguments& arguments, int64_t world = 0) {
  return error_of([&] { check_arguments(arguments, world); });
}

TEST(ArgumentRelations, ACompleteSetHoldsForOneProcessAndForMany) {
  EXPECT_EQ(relation_error(complete()), "no error");
  TrainingArguments a = complete();
  a.job.tensor_model_parallel_size = 2;
  a.job.pipeline_model_parallel_size = 2;
  EXPECT_EQ(relation_error(a, 8), "no error");
}

TEST(ArgumentRelations, EveryBrokenOneIsNamedAtOnce) {
  TrainingArguments a;
  a.precision.fp16 = a.precision.bf16 = true;
  a.lr.warmup_steps = 3;
  a.lr.warmup_ratio = 0.1;
  a.evaluation.strategy = IntervalStrategy::steps;
  a.steps.max_steps = 0;
  a.lr.min_lr = 1;
  a.data_parallel.overlap_param_gather = true;
  a.output.dir = "";
  a.job.tensor_model_parallel_size = 3;
  const std::string error = relation_error(a, 4);
  for (const char* part :
       {"no model", "no training data", "fp16 and bf16", "warmup_steps 3", "eval_strategy", "max_steps is 0",
        "min_lr 1", "use_distributed_optimizer", "overlap_grad_reduce", "output_dir is empty", "3"}) {
    EXPECT_THAT(error, HasSubstr(part));
  }
}

TEST(ArgumentRelations, PromptsThatAreNeverContinuedDoNotHideOtherMistakes) {
  TrainingArguments a = complete();
  a.evaluation.sample_prompts = "prompts.txt";
  a.steps.max_steps = 0;
  EXPECT_THAT(relation_error(a), AllOf(HasSubstr("sample_prompts"), HasSubstr("max_steps is 0")));
}

// Sets a number that the table does not allow, and returns its text; empty: all values are allowed.
std::string set_wrong(const Argument& argument, TrainingArguments* a) {
  const double wrong = std::isfinite(argument.range.min) ? argument.range.min - 1 : argument.range.max + 1;
  const bool has_range = std::isfinite(wrong);
  if (const auto* integer = std::get_if<ArgumentField<int64_t>>(&argument.member); integer && has_range) {
    (*integer)(*a) = static_cast<int64_t>(wrong);
  } else if (const auto* number = std::get_if<ArgumentField<double>>(&argument.member)) {
    (*number)(*a) = has_range ? wrong : std::nan("");
  } else if (const auto* steps = std::get_if<StepsField>(&argument.member)) {
    steps->field(*a) = 2.5;
  } else {
    return "";
  }
  return argument_text(argument, *a);
}

TEST(ArgumentRelations, ValuesThatAProgramSetsAreCheckedLikeThoseOfTheCommandLine) {
  int checked = 0;
  for (const Argument* argument : all_arguments()) {
    SCOPED_TRACE(argument->name);
    TrainingArguments a = complete();
    const std::string wrong = set_wrong(*argument, &a);
    if (wrong.empty()) continue;
    const std::vector<std::string> words = {"--" + std::string(argument->name) + "=" + wrong};
    EXPECT_EQ("command line: " + relation_error(a), error_of([&] { parse_command_line(words); }));
    ++checked;
  }
  EXPECT_GT(checked, 80);
  TrainingArguments three = complete();
  three.lr.learning_rate = -1;
  three.logging.strategy = IntervalStrategy::automatic;  // for evaluations only
  three.job.tensor_model_parallel_size = 0;
  EXPECT_THAT(relation_error(three),
              AllOf(HasSubstr("3 errors in the arguments"), HasSubstr("learning_rate is '-1', but must be"),
                    HasSubstr("logging_strategy is 'auto', but must be one of"),
                    HasSubstr("tensor_model_parallel_size is '0'")));
}

TEST(ArgumentRelations, ResolvingTwiceChangesNothing) {
  TrainingArguments a = complete();
  a.steps.global_batch_size = 64;
  a.evaluation.data = "data";
  const TrainingArguments resolved = resolve_arguments(a, 4);
  EXPECT_EQ(resolved.data.accumulation, 2);
  EXPECT_EQ(a.data.accumulation, 1);
  EXPECT_EQ(resolve_arguments(resolved, 4), resolved);
}

TEST(ArgumentRelations, DataToEvaluateOnIsEvaluatedOn) {
  const auto strategy = [](IntervalStrategy given, const std::string& data, double steps) {
    TrainingArguments a = complete();
    a.evaluation.strategy = given;
    a.evaluation.data = data;
    a.evaluation.steps = steps;
    a = resolve_arguments(a, 1);
    return a.evaluation.strategy;
  };
  using enum IntervalStrategy;
  EXPECT_EQ(strategy(automatic, "", 0), no);
  EXPECT_EQ(strategy(automatic, "data", 0), epoch);
  EXPECT_EQ(strategy(automatic, "data", 10), steps);
  EXPECT_EQ(strategy(no, "data", 10), no);
}

TEST(ArgumentRelations, TheBestModelNeedsEvaluationsThatAreSaved) {
  const auto error = [](IntervalStrategy strategy, double eval, double save) {
    TrainingArguments a = complete();
    a.best_model.load_at_end = true;
    a.evaluation.data = "data";
    a.evaluation.strategy = a.saving.strategy = strategy;
    a.evaluation.steps = eval;
    a.saving.steps = save;
    a.logging.steps = 30;
    return relation_error(a, 1);
  };
  for (const auto& [eval, save] :
       std::vector<std::pair<double, double>>{{5, 5}, {5, 500}, {0, 60}, {0.1, 0.3}, {1, 7}}) {
    EXPECT_EQ(error(IntervalStrategy::steps, eval, save), "no error") << eval << " " << save;
  }
  for (const auto& [eval, save] :
       std::vector<std::pair<double, double>>{{5, 4}, {5, 501}, {0, 50}, {0.2, 0.3}, {0.1, 5}}) {
    EXPECT_THAT(error(IntervalStrategy::steps, eval, save), HasSubstr("multiple of eval_steps")) << eval << " " << save;
  }
  EXPECT_EQ(error(IntervalStrategy::epoch, 5, 4), "no error");
  EXPECT_THAT(error(IntervalStrategy::no, 5, 5), HasSubstr("but they are no and no"));
}

TEST(ArgumentRelations, SettingsOfAnAdapterNeedLoraAndLoraNeedsWeights) {
  TrainingArguments a = complete();
  a.model = {.path = "model", .config = ""};
  a.finetuning.rank = 4;
  EXPECT_THAT(relation_error(a, 1),
              HasSubstr("but finetuning_type is full; set finetuning_type: lora, or remove them"));
  a.finetuning.type = FinetuningType::lora;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.model = {.path = "", .config = "config.json"};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("finetuning_type is lora, but --model is not set"));
}

TEST(ArgumentRelations, InputsOnTheHostAreThoseOfRecomputedLayers) {
  TrainingArguments a = complete();
  a.model_options.offload.cpu_offloading_num_layers = 2;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("set recompute_granularity: full, or remove cpu_offloading"));
  a.model_options.recompute.granularity = RecomputeGranularity::full;
  EXPECT_EQ(relation_error(a, 1), "no error");
}

TEST(ArgumentRelations, TilesOfMlpsAreCountedAndRecomputedOnce) {
  TrainingArguments a = complete();
  a.data.seq_length = 0;
  a.model_options.tiled_mlp_num_shards = 4;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("tiled_mlp_num_shards is 4, but is used with tiled_mlp only"));
  a.model_options.tiled_mlp = true;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.model_options.tiled_mlp_num_shards = 0;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("set tiled_mlp_num_shards, or seq_length"));
  a.data.seq_length = 64;
  a.model_options.recompute = {.granularity = RecomputeGranularity::selective,
                               .modules = {RecomputeModule::layernorm, RecomputeModule::mlp_act}};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("tiled_mlp with recompute_modules mlp or mlp_act is not supported"));
  a.model_options.recompute.modules = {RecomputeModule::layernorm};
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.model_options.fp8.format = Fp8Formats::e4m3;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("tiled_mlp with fp8 is not supported"));
  a.model_options.fp8 = {};
  a.precision.bf16 = true;
  a.precision.main_grads_dtype = MainGradsType::bf16;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("tiled_mlp with main_grads_dtype bf16 is not supported"));
}

TEST(ArgumentRelations, PreferencesHaveTheSettingsOfTheirStage) {
  TrainingArguments a = complete();
  a.preference.beta = 0.2;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("that stage sft does not have; set stage: dpo, or remove them"));
  a.preference.stage = TrainingStage::dpo;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.preference.center_rewards_coefficient = 0.1;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("is of reward models (stage: rm)"));
  a.preference = {};
  a.preference.stage = TrainingStage::dpo;
  a.preference.loss = PreferenceLoss::ipo;
  a.preference.label_smoothing = 0.1;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("losses sigmoid and robust, not of ipo"));
  a.preference.label_smoothing = 0;
  a.preference.reference_free = true;
  a.preference.precompute_reference = true;
  EXPECT_THAT(relation_error(a, 1),
              HasSubstr("precompute_ref_log_probs is given, but reference_free uses no reference"));
}

TEST(ArgumentRelations, PairsHaveNoLossesOfTokens) {
  const auto error_of = [](void (*change)(TrainingArguments&)) {
    TrainingArguments a = complete();
    a.preference.stage = TrainingStage::rm;
    change(a);
    return relation_error(a, 1);
  };
  EXPECT_EQ(error_of([](TrainingArguments& a) { EXPECT_LT(a.model_options.attention_dropout, 0); }), "no error");
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.mtp.num_layers = 1; }),
              HasSubstr("mtp_num_layers 1 with stage rm is not supported"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.label_smoothing_factor = 0.1; }),
              HasSubstr("are of losses of tokens, which stage rm does not have"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.z_loss_coeff = 1e-4; }),
              HasSubstr("are of losses of tokens"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.evaluation.accuracy = true; }),
              HasSubstr("compute_accuracy is of tokens; stage rm has"));
}

TEST(ArgumentRelations, EightBitsAreRefusedWhereTheyMeanNothingOrWereNotTried) {
  const auto error_of = [](Fp8Formats format, void (*change)(TrainingArguments&)) {
    TrainingArguments a = complete();
    a.model_options.fp8.format = format;
    change(a);
    return relation_error(a, 1);
  };
  EXPECT_EQ(error_of(Fp8Formats::hybrid, [](TrainingArguments& a) { a.model_options.fp8.amax_history_len = 16; }),
            "no error");
  EXPECT_THAT(error_of(Fp8Formats::none, [](TrainingArguments& a) { a.model_options.fp8.recipe = Fp8Recipe::current; }),
              HasSubstr("but fp8 is none; set fp8 to hybrid or e4m3"));
  EXPECT_THAT(
      error_of(Fp8Formats::hybrid, [](TrainingArguments& a) { a.model_options.fp8.recipe = Fp8Recipe::blockwise; }),
      HasSubstr("fp8_recipe blockwise is not supported with fp8 hybrid; use fp8 e4m3"));
  EXPECT_THAT(error_of(Fp8Formats::e4m3,
                       [](TrainingArguments& a) {
                         a.model_options.fp8.recipe = Fp8Recipe::current;
                         a.model_options.fp8.amax_history_len = 2;
                       }),
              HasSubstr("fp8_amax_history_len 2 means nothing with fp8_recipe current"));
}

TEST(ArgumentRelations, AveragesMuonAndDropoutAreRefusedWhereTheyWereNotTried) {
  const auto error_of = [](void (*change)(TrainingArguments&)) {
    TrainingArguments a = complete();
    a.optimizer.ema_decay = 0.9;
    a.optimizer.optimizer = OptimizerType::muon;
    a.model_options.hidden_dropout = 0.1;
    change(a);
    return relation_error(a, 1);
  };
  EXPECT_EQ(error_of([](TrainingArguments&) {}), "no error");
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.mtp.num_layers = 1; }),
              HasSubstr("hidden_dropout 0.1 with mtp_num_layers 1 is not supported"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.best_model.load_at_end = a.saving.only_model = true; }),
              HasSubstr("ema_decay with load_best_model_at_end and save_only_model is not supported"));
  EXPECT_THAT(error_of([](TrainingArguments& a) {
                a.optimizer.ema_decay = 0;
                a.evaluation.uses_ema = true;
              }),
              HasSubstr("evaluate_ema_weights is of the average that ema_decay keeps"));
}

TEST(ArgumentRelations, PredictionsAreOfTestDataThatIsNotPacked) {
  TrainingArguments a = complete();
  a.evaluation.predict = true;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("do_predict is of test data"));
  a.evaluation.test_data = "test.jsonl";
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.data.packing = true;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("do_predict with sequence_packing is not supported"));
}

TEST(ArgumentRelations, AProfileHasAStep) {
  TrainingArguments a = complete();
  a.logging.profile_step_start = a.logging.profile_step_end = 3;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.logging.profile = true;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("profile_step_start 3 is not before profile_step_end 3"));
}

TEST(ArgumentRelations, ADataSetStandsForTheTrainingData) {
  TrainingArguments a = complete();
  a.dataset.name = "identity";
  EXPECT_THAT(relation_error(a, 1), HasSubstr("dataset and train_data (or a blend) are both given"));
  a.data.path.clear();
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.data.split = {"9", "1", "0"};
  EXPECT_EQ(relation_error(a, 1), "no error") << "val_size";
  a.dataset.eval_name = "b";
  EXPECT_THAT(relation_error(a, 1), HasSubstr("split and validation or test data"));
  a.data.split.clear();
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.evaluation.data = "b.jsonl";
  EXPECT_THAT(relation_error(a, 1), HasSubstr("eval_dataset and eval_data"));
  a.evaluation.data.clear();
  a.dataset.name = "a,b";
  EXPECT_EQ(relation_error(a, 1), "no error");
}

TEST(ArgumentRelations, ReportsHaveWhatTheyNeed) {
  TrainingArguments a = complete();
  a.report.to = {ReportTarget::prometheus};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("give prometheus_port"));
  a.report.prometheus_port = 9400;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.report.to = {ReportTarget::none};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("report_to does not name prometheus"));
  a.report = {};
  a.report.to = {ReportTarget::none, ReportTarget::wandb};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("give none alone"));
}

TEST(ArgumentRelations, FinetuneStartsFromANamedCheckpoint) {
  TrainingArguments a = complete();
  a.resume.finetune = true;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.saving.resume_from = "out/checkpoint-5";
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.saving.resume_from = "latest";
  EXPECT_THAT(relation_error(a, 1), HasSubstr("resume_from_checkpoint: latest"));
}

TEST(ArgumentRelations, WhatStartsRanksAgainNeedsRestarts) {
  TrainingArguments a = complete();
  a.recovery.spares = 2;
  a.report.straggler_action = StragglerAction::replace;
  EXPECT_THAT(relation_error(a),
              AllOf(HasSubstr("spares is 2, but without max_restarts"), HasSubstr("straggler_action: replace")));
  a.recovery.max_restarts = 1;
  EXPECT_EQ(relation_error(a), "no error");
}

TEST(ArgumentRelations, ALossScaleIsForFp16) {
  TrainingArguments a = complete();
  a.loss_scaler.constant = 128;
  EXPECT_THAT(relation_error(a), HasSubstr("fp16 only"));
  a.precision.fp16 = true;
  EXPECT_EQ(relation_error(a), "no error");
  a.loss_scaler.min_scale = 1e30;
  EXPECT_THAT(relation_error(a), HasSubstr("less than min_loss_scale"));
}

TEST(ArgumentRelations, RemaindersAreOfBf16Weights) {
  TrainingArguments a = complete();
  a.optimizer.precision.main_params_dtype = MainParamsType::remainder;
  a.precision.fp16 = true;
  a.precision.bf16 = false;
  EXPECT_THAT(relation_error(a), HasSubstr("main_params_dtype is remainder"));
  a.precision.fp16 = false;
  EXPECT_THAT(relation_error(a), HasSubstr("set bf16: true"));
  a.precision.bf16 = true;
  EXPECT_EQ(relation_error(a), "no error");
}

TEST(ArgumentRelations, GradientsAreAddedInBf16ForFewMicroBatches) {
  TrainingArguments a = complete();
  a.precision.main_grads_dtype = MainGradsType::bf16;
  a.precision.bf16 = false;
  EXPECT_THAT(relation_error(a), HasSubstr("main_grads_dtype is bf16, but the weights are not"));
  a.precision.bf16 = true;
  EXPECT_EQ(relation_error(a), "no error");
  EXPECT_FALSE(resolve_arguments(a, 1).data_parallel.accumulate_allreduce_grads_in_fp32);
  a.data.accumulation = 16;
  EXPECT_EQ(relation_error(a), "no error");
  a.data.accumulation = 17;
  EXPECT_THAT(relation_error(a), HasSubstr("adds the gradients of 17 micro-batches; must be at most 16"));
  a.precision.main_grads_dtype = MainGradsType::fp32;
  EXPECT_EQ(relation_error(a), "no error");
}

TEST(ArgumentRelations, SizesHaveToDivideTheWorld) {
  TrainingArguments a = complete();
  a.job.tensor_model_parallel_size = 2;
  a.job.context_parallel_size = 2;
  EXPECT_EQ(relation_error(a, 4), "no error");
  EXPECT_THAT(relation_error(a, 6), HasSubstr("6"));
  a.job.order = "tp-dp";
  EXPECT_THAT(relation_error(a, 4), HasSubstr("order"));
}

TEST(ArgumentRelations, ASequenceIsCutIntoEqualParts) {
  TrainingArguments a = complete();
  a.data.seq_length = 100;
  a.job.context_parallel_size = 2;
  EXPECT_EQ(relation_error(a), "no error");
  a.job.tensor_model_parallel_size = 2;
  a.model_options.sequence_parallel = true;
  EXPECT_THAT(relation_error(a), HasSubstr("seq_length 100 is not divisible by 8"));
}

TEST(ArgumentRelations, SequenceParallelismOfOneRankIsNone) {
  TrainingArguments a = complete();
  a.model_options.sequence_parallel = true;
  a = resolve_arguments(a, 1);
  EXPECT_FALSE(a.model_options.sequence_parallel);
}

TEST(ArgumentRelations, SixteenBitsAccumulateInThirtyTwo) {
  TrainingArguments a = complete();
  a.precision.bf16 = true;
  a = resolve_arguments(a, 1);
  EXPECT_TRUE(a.data_parallel.accumulate_allreduce_grads_in_fp32);
}

TEST(ArgumentRelations, AScheduleThatCannotBeIsRefused) {
  TrainingArguments a = complete();
  a.job.virtual_pipeline_model_parallel_size = 2;
  EXPECT_THAT(relation_error(a), HasSubstr("virtual_pipeline_model_parallel_size 2 requires"));
  a.job.pipeline_model_parallel_size = 4;
  a.data.accumulation = 2;
  EXPECT_THAT(relation_error(a), HasSubstr("micro-batches"));
  a.data.accumulation = 4;
  EXPECT_EQ(relation_error(a), "no error");
  EXPECT_EQ(schedule_request(a).kind, "interleaved");
}

TEST(ArgumentRelations, AScheduleTrainsWithEveryBatchSize) {
  TrainingArguments a = complete();
  a.pipeline.schedule = "forward-only";
  EXPECT_THAT(relation_error(a, 1), HasSubstr("pipeline_schedule 'forward-only' has no backward pass"));
  a = complete();
  a.job.pipeline_model_parallel_size = a.job.virtual_pipeline_model_parallel_size = 2;
  a.data.micro_batch_size = 1;
  a.data.accumulation = 8;
  a.steps.max_steps = 10;
  a.steps.rampup_batch_size = {"2", "2", "20"};
  EXPECT_EQ(relation_error(a, 2), "no error");
  a.steps.rampup_batch_size = {"1", "1", "20"};
  EXPECT_THAT(relation_error(a, 2), HasSubstr("needs at least 2 micro-batches, but got 1"));
  a.steps.rampup_batch_size = {"1", "x", "20"};
  EXPECT_EQ(relation_error(a, 2), "rampup_batch_size has 'x', which is not a whole number >= 1");
}

TEST(ArgumentRelations, ALayoutOfExpertsThatCannotBeIsRefused) {
  TrainingArguments a = complete();
  a.job.expert_model_parallel_size = 4;
  EXPECT_EQ(relation_error(a), "no error");  // for some number of processes
  EXPECT_THAT(relation_error(a, 2), HasSubstr("does not divide world size 2"));
  a.job.tensor_model_parallel_size = 4;
  a.job.expert_tensor_parallel_size = 1;
  EXPECT_THAT(relation_error(a, 4), HasSubstr("requires sequence_parallel: true"));
  a.model_options.sequence_parallel = true;
  EXPECT_EQ(relation_error(a, 4), "no error");
}

TEST(Relations, OfRunsInSamplesAndOfDocumentEnds) {
  TrainingArguments a;
  a.model.config = "c";
  a.data.path = "d";
  a.steps.train_samples = 100;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.steps.max_steps = 5;
  a.lr.warmup_steps = 2;
  EXPECT_THAT(relation_error(a, 1), ::testing::AllOf(HasSubstr("are both given"), HasSubstr("use warmup_samples")));
  a.steps.max_steps = -1;
  a.lr.warmup_steps = 0;
  a.steps.decrease_batch_size = true;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("which is not given"));
  a.steps.global_batch_size = 7;
  a.data.micro_batch_size = 2;
  a = resolve_arguments(a, 1);
  EXPECT_EQ(a.data.accumulation, 3);
  a.data.reset_attention_mask = true;
  a.data.packing = true;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("which sequence_packing does not have"));
  a.data.packing = a.data.reset_attention_mask = false;
  a.data.eod_token_id = 3;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("none of which is set"));
  a.data.eod_token_id = -1;
  a.groups.decoupled_min_lr = 1;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("without decoupled_lr"));
  a.groups.decoupled_lr = 0.5;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("decoupled_min_lr 1 is greater"));
  a.groups = {};
  a.evaluation.loss_only = a.evaluation.accuracy = true;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("prediction_loss_only and compute_accuracy"));
}

}  // namespace
}  // namespace concord
