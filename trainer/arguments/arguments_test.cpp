#include "trainer/arguments/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "core/base/config_error.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

CommandLine parse(std::vector<std::string> words) { return parse_command_line(words); }
std::string parse_error(std::vector<std::string> words) {
  return error_of([&] { parse_command_line(words); });
}

TrainingArguments from_yaml(const std::string& yaml) {
  TrainingArguments arguments;
  read_yaml(yaml, "train.yaml", &arguments);
  return arguments;
}
std::string yaml_error(const std::string& yaml) {
  return error_of([&] { from_yaml(yaml); });
}

// Enough for the relations to hold.
TrainingArguments complete() {
  TrainingArguments arguments;
  arguments.model.path = "model";
  arguments.data.path = "data";
  return arguments;
}
std::string relation_error(TrainingArguments arguments, int64_t world = 0) {
  return error_of([&] { check_arguments(&arguments, world); });
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("concord-arguments-" + std::to_string(std::random_device{}()))) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(ArgumentTable, EveryNameStandsOnceAndIsNotAmongTheRefused) {
  std::set<std::string_view> names;
  for (const Argument* argument : all_arguments()) {
    EXPECT_TRUE(names.insert(argument->name).second) << argument->name;
    EXPECT_EQ(find_refused_argument(argument->name), nullptr) << argument->name;
  }
  EXPECT_GT(names.size(), 70u);
}

TEST(ArgumentTable, EverySettingStatesWhetherARunMayResumeWithAnother) {
  for (const Argument* argument : all_arguments()) EXPECT_NE(argument->resume, Resume::undecided) << argument->name;
}

TEST(ArgumentTable, EveryMemberHasItsNameSoThatNoneIsPrintedUnderAnother) {
  // Each argument is set to a value of its own; were a member missing from the table or there twice, the printed text
  // would not give all of them back.
  TrainingArguments arguments;
  double next = 3;
  for (const ArgumentGroup& group : argument_groups()) {
    for (const Argument& argument : group.arguments) {
      std::visit(
          [&](auto field) {
            using Field = decltype(field);
            if constexpr (std::is_same_v<Field, ArgumentField<bool>>) {
              field(arguments) = !field(arguments);
            } else if constexpr (std::is_same_v<Field, ArgumentField<int64_t>>) {
              field(arguments) =
                  argument.range.max < next ? static_cast<int64_t>(argument.range.max) : static_cast<int64_t>(++next);
            } else if constexpr (std::is_same_v<Field, ArgumentField<double>>) {
              field(arguments) = argument.range.max <= 1 ? 0.1 + 0.001 * ++next : 1.0 / 3 + ++next;
            } else if constexpr (std::is_same_v<Field, StepsField>) {
              field.field(arguments) = ++next;
            } else if constexpr (std::is_same_v<Field, ArgumentField<std::string>>) {
              field(arguments) =
                  argument.choices.empty() ? "x" + std::to_string(++next) : std::string(argument.choices.back());
            } else if constexpr (std::is_same_v<Field, ArgumentField<std::vector<std::string>>>) {
              field(arguments) = {argument.choices.empty() ? "mlp" : std::string(argument.choices.back())};
            } else {
              field(arguments) = {{"min_lr", "1e-5"}, {"decay_type", "1-sqrt"}};
            }
          },
          argument.member);
    }
  }
  EXPECT_EQ(from_yaml(to_yaml(arguments)), arguments);
}

TEST(Arguments, DefaultsArePrintedAndReadBackTheSame) {
  const TrainingArguments defaults;
  EXPECT_EQ(from_yaml(to_yaml(defaults)), defaults);
  EXPECT_THAT(to_yaml(defaults), HasSubstr("learning_rate: 5e-05"));
}

TEST(Arguments, AwkwardTextsSurviveThePrintingBack) {
  TrainingArguments arguments;
  for (const std::string text : {"true", "null", "1e5", "a: b # c", "\"quoted\" \\ back", "- x", "{", "  spaces  ",
                                 "*alias", "K\xc3\xb6ln", "%", "a\nb\tc"}) {
    arguments.output.dir = text;
    arguments.lr.lr_scheduler_kwargs = {{"a", text}};
    arguments.model_options.recompute.modules = {"mlp", "layernorm"};
    EXPECT_EQ(from_yaml(to_yaml(arguments)), arguments) << text;
  }
}

TEST(Arguments, NumbersSurviveThePrintingBackToTheLastBit) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  TrainingArguments arguments;
  for (int i = 0; i < 200; ++i) {
    arguments.lr.learning_rate = uniform(random) * std::pow(10, -10 * uniform(random));
    EXPECT_EQ(from_yaml(to_yaml(arguments)), arguments);
  }
}

TEST(Arguments, TheCommandLineTakesBothSpellingsAndBothForms) {
  const TrainingArguments a =
      parse({"--learning-rate", "1e-3", "--max_steps=7", "--bf16", "--shuffle", "false", "--no_logging_nan_inf_filter",
             "--recompute_modules", "mlp,core_attn", "--lr_scheduler_kwargs", "{min_lr: 1e-5}", "--model", "m=x"})
          .arguments;
  EXPECT_EQ(a.lr.learning_rate, 1e-3);
  EXPECT_EQ(a.steps.max_steps, 7);
  EXPECT_TRUE(a.precision.bf16);
  EXPECT_FALSE(a.data.shuffle);
  EXPECT_FALSE(a.logging.nan_inf_filter);
  EXPECT_EQ(a.model_options.recompute.modules, (std::vector<std::string>{"mlp", "core_attn"}));
  EXPECT_EQ(a.lr.lr_scheduler_kwargs, (std::map<std::string, std::string>{{"min_lr", "1e-5"}}));
  EXPECT_EQ(a.model.path, "m=x");
}

TEST(Arguments, NegativeNumbersAreValuesAndOptionsAreNot) {
  EXPECT_EQ(parse({"--max_steps", "-1"}).arguments.steps.max_steps, -1);
  EXPECT_THAT(parse_error({"--max_steps", "--bf16"}), HasSubstr("--max_steps: needs a value"));
  EXPECT_THAT(parse_error({"--learning_rate"}), HasSubstr("needs a value"));
}

TEST(Arguments, OptionsOfTheProgramAreApart) {
  const CommandLine line = parse({"--nproc", "4", "--print_config", "--json", "--seed", "3", "-h"});
  EXPECT_EQ(line.nproc, 4);
  EXPECT_TRUE(line.print_config && line.json && line.help);
  EXPECT_EQ(line.given, std::vector<std::string>{"seed"});
  EXPECT_THAT(parse_error({"--nproc", "0"}), HasSubstr("from 1 to 4096"));
  EXPECT_THAT(parse_error({"--nproc", "two"}), HasSubstr("'two'"));
}

TEST(Arguments, TheCommandLineWinsOverTheFileWhateverTheOrder) {
  const TemporaryFile file("learning_rate: 1e-3\nmax_steps: 5\n");
  for (const auto& words : {std::vector<std::string>{"--config", file.path(), "--max_steps", "9"},
                            std::vector<std::string>{"--max_steps", "9", "--config=" + file.path()}}) {
    const CommandLine line = parse(words);
    EXPECT_EQ(line.arguments.lr.learning_rate, 1e-3);
    EXPECT_EQ(line.arguments.steps.max_steps, 9);
    EXPECT_EQ(line.config, file.path());
  }
  EXPECT_THAT(parse_error({"--config", "/nowhere/x.yaml"}), HasSubstr("cannot be opened"));
  EXPECT_THAT(parse_error({"--config", "/"}), HasSubstr("is not a regular file"));
}

TEST(Arguments, OfTwoValuesOnTheCommandLineTheLaterWins) {
  EXPECT_EQ(parse({"--seed", "1", "--seed", "2"}).arguments.job.seed, 2);
}

TEST(Arguments, AllMistakesComeAtOnceWithFileAndLine) {
  const TemporaryFile file("learning_rate: fast\nmax_stepz: 4\n\nseed: 0\n");
  const std::string error = parse_error({"--config", file.path(), "--adam_beta1", "1", "loose"});
  EXPECT_THAT(
      error, AllOf(HasSubstr("5 errors"), HasSubstr(file.path() + ":1: learning_rate is 'fast'"),
                   HasSubstr(file.path() + ":2: unknown argument 'max_stepz'; did you mean max_steps?"),
                   HasSubstr(file.path() + ":4: seed is '0', but must be an integer >= 1"),
                   HasSubstr("adam_beta1 is '1', but must be a number >= 0 and < 1"), HasSubstr("unexpected 'loose'")));
}

TEST(Arguments, UnknownNamesComeWithTheNearestKnownOneOrTheList) {
  EXPECT_THAT(parse_error({"--lerning_rate", "1"}), HasSubstr("did you mean learning_rate?"));
  EXPECT_THAT(parse_error({"--tensor_parallel_size", "2"}), HasSubstr("did you mean tensor_model_parallel_size?"));
  EXPECT_THAT(parse_error({"--zzzzzzzz", "1"}),
              AllOf(HasSubstr("--help` lists all arguments"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(parse_error({"--" + std::string(5000, 'x'), "1"}), HasSubstr("unknown argument"));
}

TEST(Arguments, FeaturesThatAreNotThereAreRefusedByNameAndTakenWhereTheyAskForNothing) {
  EXPECT_THAT(yaml_error("moe_grouped_gemm: true"), HasSubstr("moe_grouped_gemm is 'true'"));
  EXPECT_EQ(from_yaml("expert_model_parallel_size: 2").job.expert_model_parallel_size, 2);
  EXPECT_EQ(from_yaml("parallelism.expert_parallel_degree: 4").job.expert_model_parallel_size, 4);
  EXPECT_EQ(from_yaml("expert_tensor_parallel_size: null").job.expert_tensor_parallel_size, 0);
  EXPECT_EQ(from_yaml("moe_aux_loss_coeff: 0.01").model_options.moe.aux_loss_coeff, 0.01);
  EXPECT_THAT(yaml_error("moe_aux_loss_coeff: -1"), HasSubstr("a number >= 0"));
  EXPECT_THAT(yaml_error("moe_router_load_balancing_type: sinkhorn"), HasSubstr("pooled_aux_loss"));
  EXPECT_EQ(from_yaml("moe_expert_capacity_factor: null").model_options.moe.expert_capacity_factor, 0);
  EXPECT_THAT(yaml_error("moe_token_drop_policy: random"), HasSubstr("position"));
  EXPECT_TRUE(from_yaml("moe_pad_expert_input_to_capacity: true").model_options.moe.pad_expert_input_to_capacity);
  EXPECT_THAT(yaml_error("moe_token_dispatcher_type: alltoall"), HasSubstr("moe_shared_expert_overlap can be chosen"));
  EXPECT_THAT(yaml_error("fp8_param: true"), HasSubstr("of 8-bit formats, fp8, fp8_recipe"));
  EXPECT_THAT(yaml_error("ckpt_format: torch_dist"), HasSubstr("resume_from_checkpoint"));
  EXPECT_THAT(yaml_error("additional_configs: {a: 1}"), HasSubstr("every setting has its own argument"));
  EXPECT_THAT(parse_error({"--gradient_checkpointing"}), HasSubstr("recompute_granularity"));
  from_yaml(
      "expert_model_parallel_size: 1\nmoe_grouped_gemm: false\nfp8: null\nadditional_configs: {}\nckpt_format:\n");
}

TEST(Arguments, ValuesOfTheWrongTypeAreRefusedWithWhatIsExpected) {
  EXPECT_THAT(yaml_error("max_steps: \"5\""), HasSubstr("is the string '5', but must be an integer >= -1"));
  EXPECT_THAT(yaml_error("max_steps: 2.5"), HasSubstr("'2.5', but must be an integer"));
  EXPECT_THAT(yaml_error("max_steps: [1]"), HasSubstr("is a list"));
  EXPECT_THAT(yaml_error("bf16: maybe"), HasSubstr("true or false"));
  EXPECT_THAT(yaml_error("bf16: 2"), HasSubstr("true or false"));
  EXPECT_THAT(yaml_error("model: [a]"), HasSubstr("must be a string"));
  EXPECT_THAT(yaml_error("output_dir: {a: b}"), HasSubstr("is a mapping"));
  EXPECT_THAT(yaml_error("lr_scheduler_kwargs: 3"), HasSubstr("must be a mapping"));
  EXPECT_THAT(yaml_error("lr_scheduler_kwargs: {a: 1, a: 2}"), HasSubstr("'a' twice"));
  EXPECT_THAT(yaml_error("recompute_modules: {a: 1}"), HasSubstr("must be a list"));
  EXPECT_THAT(yaml_error("optimizer: adagrad"), HasSubstr("must be one of: adam, lion, muon, sgd"));
  EXPECT_THAT(yaml_error("report_to: [tensorboard, comet_ml]"),
              AllOf(HasSubstr("'comet_ml'"), HasSubstr("wandb, mlflow, prometheus, otel")));
  EXPECT_THAT(yaml_error("learning_rate: .nan"), HasSubstr("a number >= 0"));
  EXPECT_THAT(yaml_error("learning_rate: inf"), HasSubstr("a number >= 0"));
  EXPECT_THAT(yaml_error("learning_rate: 1e999"), HasSubstr("a number >= 0"));
  EXPECT_THAT(yaml_error("max_steps: 99999999999999999999"), HasSubstr("an integer"));
  EXPECT_THAT(yaml_error("max_steps: 1 2"), HasSubstr("an integer"));
}

TEST(Arguments, NumbersMayBeWrittenAsPeopleWriteThem) {
  const TrainingArguments a =
      from_yaml("max_steps: 1e3\nlearning_rate: +3e-4\nnum_train_epochs: 2\nbf16: Yes\nwarmup_steps: ~\n");
  EXPECT_EQ(a.steps.max_steps, 1000);
  EXPECT_EQ(a.lr.learning_rate, 3e-4);
  EXPECT_EQ(a.steps.num_train_epochs, 2);
  EXPECT_TRUE(a.precision.bf16);
  EXPECT_EQ(a.lr.warmup_steps, 0);
}

TEST(Arguments, NothingIsTheDefaultAlsoOverAFile) {
  TrainingArguments a;
  a.job.seed = 7;
  read_yaml("seed: null", "x", &a);
  EXPECT_EQ(a.job.seed, 42);
}

TEST(Arguments, AFileWithAMistakeChangesNothing) {
  TrainingArguments a;
  EXPECT_THROW(read_yaml("seed: 9\nlearning_rate: x\n", "x", &a), ConfigError);
  EXPECT_EQ(a, TrainingArguments());
}

TEST(Arguments, StepsAreAWholeNumberOrAShare) {
  EXPECT_EQ(from_yaml("logging_steps: 0.1").logging.steps, 0.1);
  EXPECT_THAT(yaml_error("logging_steps: 1.5"), HasSubstr("fraction"));
  EXPECT_THAT(yaml_error("logging_steps: 0"), HasSubstr("a number > 0"));
  EXPECT_EQ(steps_of(0.1, 1000), 100);
  EXPECT_EQ(steps_of(0.1, 5), 1);
  EXPECT_EQ(steps_of(0.0001, 5), 1);
  EXPECT_EQ(steps_of(1, 5), 1);
  EXPECT_EQ(steps_of(25, 5), 25);
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
  a.evaluation.strategy = "steps";
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

TEST(ArgumentRelations, DataToEvaluateOnIsEvaluatedOn) {
  const auto strategy = [](const std::string& given, const std::string& data, double steps) {
    TrainingArguments a = complete();
    if (!given.empty()) a.evaluation.strategy = given;
    a.evaluation.data = data;
    a.evaluation.steps = steps;
    check_arguments(&a, 1);
    return a.evaluation.strategy;
  };
  EXPECT_EQ(strategy("", "", 0), "no");
  EXPECT_EQ(strategy("", "data", 0), "epoch");
  EXPECT_EQ(strategy("", "data", 10), "steps");
  EXPECT_EQ(strategy("no", "data", 10), "no");
}

TEST(Arguments, SettingsOfResumingHaveTheNamesOfMegatronAndHf) {
  const TrainingArguments a = from_yaml(
      "finetune: true\nno_load_optim: true\nno_load_rng: true\nignore_data_skip: true\n"
      "override_opt_param_scheduler: true\nload_best_model_at_end: true\nmetric_for_best_model: eval_loss\n"
      "greater_is_better: false\n");
  EXPECT_EQ(a.resume, (ResumeArguments{true, true, true, true, true}));
  EXPECT_EQ(a.best_model, (BestModelArguments{true, "eval_loss", "false"}));
  const TrainingArguments none = from_yaml("metric_for_best_model: null\ngreater_is_better: null\nfinetune:\n");
  EXPECT_EQ(none.best_model, BestModelArguments{});
  const std::vector<std::string> words = {"--override-opt_param-scheduler", "--no-load-optim", "--no-load-rng"};
  const TrainingArguments typed = parse_command_line(words).arguments;
  EXPECT_EQ(typed.resume, (ResumeArguments{false, true, true, false, true}));
  EXPECT_TRUE(from_yaml("save_on_each_node: true").saving.on_each_node);
  from_yaml("use_checkpoint_opt_param_scheduler: false\nno_save_optim: false\n");
  EXPECT_THAT(yaml_error("use_checkpoint_opt_param_scheduler: true"), HasSubstr("training_args.yaml"));
  EXPECT_THAT(yaml_error("no_save_optim: true"), HasSubstr("save_only_model"));
}

TEST(ArgumentRelations, TheBestModelNeedsEvaluationsThatAreSaved) {
  const auto error = [](const std::string& strategy, double eval, double save) {
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
    EXPECT_EQ(error("steps", eval, save), "no error") << eval << " " << save;
  }
  for (const auto& [eval, save] :
       std::vector<std::pair<double, double>>{{5, 4}, {5, 501}, {0, 50}, {0.2, 0.3}, {0.1, 5}}) {
    EXPECT_THAT(error("steps", eval, save), HasSubstr("multiple of eval_steps")) << eval << " " << save;
  }
  EXPECT_EQ(error("epoch", 5, 4), "no error");
  EXPECT_THAT(error("no", 5, 5), HasSubstr("but they are no and no"));
}

TEST(ArgumentRelations, SettingsOfAnAdapterNeedLoraAndLoraNeedsWeights) {
  TrainingArguments a = complete();
  a.model = {.path = "model", .config = ""};
  a.finetuning.rank = 4;
  EXPECT_THAT(relation_error(a, 1),
              HasSubstr("but finetuning_type is full; set finetuning_type: lora, or remove them"));
  a.finetuning.type = "lora";
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.model = {.path = "", .config = "config.json"};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("finetuning_type is lora, but there is no --model FOLDER"));
}

TEST(ArgumentRelations, PreferencesHaveTheSettingsOfTheirStage) {
  TrainingArguments a = complete();
  a.preference.beta = 0.2;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("that stage sft does not have; set stage: dpo, or remove them"));
  a.preference.stage = "dpo";
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.preference.center_rewards_coefficient = 0.1;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("is of reward models (stage: rm)"));
  a.preference = {};
  a.preference.stage = "dpo";
  a.preference.loss = "ipo";
  a.preference.label_smoothing = 0.1;
  EXPECT_THAT(relation_error(a, 1), HasSubstr("losses sigmoid and robust, not of ipo"));
  a.preference.label_smoothing = 0;
  a.preference.reference_free = true;
  a.preference.precompute_reference = true;
  EXPECT_THAT(relation_error(a, 1),
              HasSubstr("precompute_ref_log_probs is given, but reference_free uses no reference"));
}

TEST(ArgumentRelations, PairsAreNeitherBlendedNorLossesOfTokens) {
  const auto error_of = [](void (*change)(TrainingArguments&)) {
    TrainingArguments a = complete();
    a.preference.stage = "rm";
    change(a);
    return relation_error(a, 1);
  };
  EXPECT_EQ(error_of([](TrainingArguments& a) { EXPECT_LT(a.model_options.attention_dropout, 0); }), "no error");
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.attention_dropout = 0.1; }),
              HasSubstr("a dropout of 0.1 is not supported with stage rm"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.hidden_dropout = 0.2; }),
              HasSubstr("a dropout of 0.2 is not supported with stage rm"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.optimizer.ema_decay = 0.99; }),
              HasSubstr("ema_decay is not supported with stage rm"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.evaluation.test_blend = {"a", "b"}; }),
              HasSubstr("stage rm learns from pairs, which cannot be blended or split"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.data.split = {"9", "1", "0"}; }), HasSubstr("cannot be blended"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.mtp.num_layers = 1; }),
              HasSubstr("mtp_num_layers is 1, but stage rm does not predict further tokens"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.label_smoothing_factor = 0.1; }),
              HasSubstr("are of losses of tokens, which stage rm does not have"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.z_loss_coeff = 1e-4; }),
              HasSubstr("are of losses of tokens"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.evaluation.accuracy = true; }),
              HasSubstr("compute_accuracy is of tokens; stage rm has"));
}

TEST(ArgumentRelations, EightBitsAreRefusedWhereTheyMeanNothingOrWereNotTried) {
  const auto error_of = [](const char* format, void (*change)(TrainingArguments&)) {
    TrainingArguments a = complete();
    a.model_options.fp8.format = format;
    change(a);
    return relation_error(a, 1);
  };
  EXPECT_EQ(error_of("hybrid", [](TrainingArguments& a) { a.model_options.fp8.amax_history_len = 16; }), "no error");
  EXPECT_THAT(error_of("none", [](TrainingArguments& a) { a.model_options.fp8.recipe = "current"; }),
              HasSubstr("but fp8 is none; set fp8 to hybrid or e4m3"));
  EXPECT_THAT(error_of("hybrid", [](TrainingArguments& a) { a.model_options.fp8.recipe = "blockwise"; }),
              HasSubstr("fp8_recipe blockwise is not supported with fp8 hybrid; use fp8 e4m3"));
  EXPECT_THAT(error_of("e4m3",
                       [](TrainingArguments& a) {
                         a.model_options.fp8.recipe = "current";
                         a.model_options.fp8.amax_history_len = 2;
                       }),
              HasSubstr("fp8_amax_history_len 2 means nothing with fp8_recipe current"));
  EXPECT_THAT(error_of("hybrid", [](TrainingArguments& a) { a.preference.stage = "rm"; }),
              HasSubstr("fp8 hybrid is not supported with stage rm"));
}

TEST(ArgumentRelations, AveragesMuonAndDropoutAreRefusedWhereTheyWereNotTried) {
  const auto error_of = [](void (*change)(TrainingArguments&)) {
    TrainingArguments a = complete();
    a.optimizer.ema_decay = 0.9;
    a.optimizer.optimizer = "muon";
    a.model_options.hidden_dropout = 0.1;
    change(a);
    return relation_error(a, 1);
  };
  EXPECT_EQ(error_of([](TrainingArguments&) {}), "no error");
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.model_options.mtp.num_layers = 1; }),
              HasSubstr("hidden_dropout 0.1 is not supported with mtp_num_layers 1"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.optimizer.optimizer_cpu_offload = true; }),
              HasSubstr("optimizer_cpu_offload is not supported with optimizer: muon"));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.finetuning.type = "lora"; }),
              AllOf(HasSubstr("ema_decay is not supported with finetuning_type: lora"), HasSubstr("use adam with")));
  EXPECT_THAT(error_of([](TrainingArguments& a) { a.best_model.load_at_end = true; }),
              HasSubstr("ema_decay is not supported with load_best_model_at_end"));
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
  EXPECT_THAT(relation_error(a, 1), HasSubstr("do_predict is not supported with sequence_packing"));
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
  EXPECT_THAT(relation_error(a, 1), HasSubstr("dataset and split"));
  a.data.split.clear();
  a.dataset.name = "a,b";
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.preference.stage = "dpo";
  EXPECT_THAT(relation_error(a, 1), HasSubstr("pairs, which cannot be blended"));
}

TEST(ArgumentRelations, ReportsHaveWhatTheyNeed) {
  TrainingArguments a = complete();
  a.report.to = {"prometheus"};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("give prometheus_port"));
  a.report.prometheus_port = 9400;
  EXPECT_EQ(relation_error(a, 1), "no error");
  a.report.to = {"none"};
  EXPECT_THAT(relation_error(a, 1), HasSubstr("report_to does not name prometheus"));
  a.report = {};
  a.report.to = {"none", "wandb"};
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
  a.report.straggler_action = "replace";
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
  check_arguments(&a, 1);
  EXPECT_FALSE(a.model_options.sequence_parallel);
}

TEST(ArgumentRelations, SixteenBitsAccumulateInThirtyTwo) {
  TrainingArguments a = complete();
  a.precision.bf16 = true;
  check_arguments(&a, 1);
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

TEST(Arguments, HelpNamesEveryArgument) {
  const std::string help = arguments_help();
  for (const ArgumentGroup& group : argument_groups()) {
    for (const Argument& argument : group.arguments)
      EXPECT_THAT(help, HasSubstr("--" + std::string(argument.name) + " "));
  }
}

TEST(ExtraArguments, AreReadLikeTheOthersAndPrinted) {
  bool flag = false;
  int64_t count = 3;
  double rate = 0.5;
  std::string word = "a";
  ExtraArguments extra;
  extra.add("own_flag", &flag, "");
  extra.add("own_count", &count, "how many");
  extra.add("own_rate", &rate, "");
  extra.add("own_word", &word, "");
  const std::vector<std::string> words = {"--own_flag", "--own-count", "7",     "--own_rate=0.25",
                                          "--own_word", "b c",         "--bf16"};
  const CommandLine line = parse_command_line(words, {&extra, {{"learning_rate", "0.125"}, {"own_count", "5"}}});
  EXPECT_TRUE(flag);
  EXPECT_EQ(count, 7);
  EXPECT_EQ(rate, 0.25);
  EXPECT_EQ(word, "b c");
  EXPECT_EQ(line.arguments.lr.learning_rate, 0.125);
  EXPECT_TRUE(line.arguments.precision.bf16);
  EXPECT_THAT(line.given, ::testing::ElementsAre("bf16"));
  EXPECT_THAT(to_yaml(line.arguments), HasSubstr("own_flag: true\nown_rate: 0.25\nown_word: \"b c\"\n"));
  EXPECT_THAT(extra.help(), HasSubstr("how many"));
  const std::vector<std::string> lower = {"--no_own_flag", "--learning_rate", "1"};
  EXPECT_EQ(parse_command_line(lower, {&extra, {{"learning_rate", "0.125"}}}).arguments.lr.learning_rate, 1);
  EXPECT_FALSE(flag);
}

TEST(ExtraArguments, BadNamesAndValuesAreRefused) {
  double rate = 0;
  ExtraArguments extra;
  extra.add("own_rate", &rate, "");
  EXPECT_THAT(error_of([&] { extra.add("own_rate", &rate, ""); }), HasSubstr("already"));
  EXPECT_THAT(error_of([&] { extra.add("seed", &rate, ""); }), HasSubstr("already"));
  EXPECT_THAT(error_of([&] { extra.add("Rate!", &rate, ""); }), HasSubstr("a-z"));
  const std::vector<std::string> wrong = {"--own_rate", "fast"}, none = {"--own_rate"};
  EXPECT_THAT(error_of([&] { parse_command_line(wrong, {&extra, {}}); }), HasSubstr("must be a number"));
  EXPECT_THAT(error_of([&] { parse_command_line(none, {&extra, {}}); }), HasSubstr("needs a value"));
  EXPECT_THAT(error_of([&] { parse_command_line({}, {&extra, {{"learning_rat", "1"}}}); }), HasSubstr("learning_rate"));
}

TEST(Relations, OfRunsInSamplesAndOfDocumentEnds) {
  TrainingArguments a;
  a.model.config = "c";
  a.data.path = "d";
  a.steps.train_samples = 100;
  check_arguments(&a, 1);
  a.steps.max_steps = 5;
  a.lr.warmup_steps = 2;
  EXPECT_THAT(error_of([&] { check_arguments(&a, 1); }),
              ::testing::AllOf(HasSubstr("are both given"), HasSubstr("use warmup_samples")));
  a.steps.max_steps = -1;
  a.lr.warmup_steps = 0;
  a.steps.decrease_batch_size = true;
  EXPECT_THAT(error_of([&] { check_arguments(&a, 1); }), HasSubstr("which is not given"));
  a.steps.global_batch_size = 7;
  a.data.micro_batch_size = 2;
  check_arguments(&a, 1);
  EXPECT_EQ(a.data.accumulation, 3);
  a.data.reset_attention_mask = true;
  a.data.packing = true;
  EXPECT_THAT(error_of([&] { check_arguments(&a, 1); }), HasSubstr("which sequence_packing does not have"));
  a.data.packing = a.data.reset_attention_mask = false;
  a.data.eod_token_id = 3;
  EXPECT_THAT(error_of([&] { check_arguments(&a, 1); }), HasSubstr("none of which is set"));
  a.data.eod_token_id = -1;
  a.groups.decoupled_min_lr = 1;
  EXPECT_THAT(error_of([&] { check_arguments(&a, 1); }), HasSubstr("without decoupled_lr"));
  a.groups.decoupled_lr = 0.5;
  EXPECT_THAT(error_of([&] { check_arguments(&a, 1); }), HasSubstr("decoupled_min_lr 1 is greater"));
  a.groups = {};
  a.evaluation.loss_only = a.evaluation.accuracy = true;
  EXPECT_THAT(error_of([&] { check_arguments(&a, 1); }), HasSubstr("prediction_loss_only and compute_accuracy"));
}

}  // namespace
}  // namespace concord
