#include "trainer/arguments/arguments.h"
#include "trainer/arguments/foreign/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "tests/error_of.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using tests::error_of;

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
    EXPECT_EQ(find_foreign(argument->name), nullptr) << argument->name;
  }
  EXPECT_GT(names.size(), 70u);
}

TEST(ArgumentTable, EverySettingStatesWhetherARunMayResumeWithAnother) {
  for (const Argument* argument : all_arguments()) EXPECT_NE(argument->resume, Resume::undecided) << argument->name;
}

TEST(ArgumentTable, EveryMemberHasItsNameSoThatNoneIsPrintedUnderAnother) {
  // Each argument is set to a different value. If a member were missing from the table or listed twice, reading the
  // printed text would not restore all of them.
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
            } else if constexpr (std::is_same_v<Field, EnumField<std::string>>) {
              field.set(arguments, std::string(field.allowed.back()));
              EXPECT_EQ(field(arguments), field.allowed.back()) << argument.name;
            } else if constexpr (std::is_same_v<Field, EnumField<std::vector<std::string>>>) {
              field.set(arguments, {std::string(field.allowed.back())});
            } else if constexpr (std::is_same_v<Field, ArgumentField<std::string>>) {
              field(arguments) = "x" + std::to_string(++next);
            } else if constexpr (std::is_same_v<Field, ArgumentField<std::vector<std::string>>>) {
              field(arguments) = {"mlp"};
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
    arguments.model_options.recompute.modules = {RecomputeModule::mlp, RecomputeModule::layernorm};
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
  EXPECT_EQ(a.model_options.recompute.modules, (std::vector{RecomputeModule::mlp, RecomputeModule::core_attn}));
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
  EXPECT_EQ(line.arguments.launch.nproc, 4);
  EXPECT_TRUE(line.print_config && line.json && line.help);
  EXPECT_EQ(line.given, std::vector<std::string>{"seed"});
  EXPECT_THAT(parse_error({"--nproc", "0"}), HasSubstr("--nproc is '0', but must be an integer >= 1 and <= 4096"));
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
  EXPECT_THAT(yaml_error("use_mup: true"), HasSubstr("use_mup is 'true'"));
  EXPECT_EQ(from_yaml("expert_model_parallel_size: 2").job.expert_model_parallel_size, 2);
  EXPECT_EQ(from_yaml("parallelism.expert_parallel_degree: 4").job.expert_model_parallel_size, 4);
  EXPECT_EQ(from_yaml("expert_tensor_parallel_size: null").job.expert_tensor_parallel_size, 0);
  EXPECT_EQ(from_yaml("moe_aux_loss_coeff: 0.01").model_options.moe.aux_loss_coeff, 0.01);
  EXPECT_THAT(yaml_error("moe_aux_loss_coeff: -1"), HasSubstr("a number >= 0"));
  EXPECT_THAT(yaml_error("moe_router_load_balancing_type: sinkhorn"), HasSubstr("pooled_aux_loss"));
  EXPECT_EQ(from_yaml("moe_expert_capacity_factor: null").model_options.moe.expert_capacity_factor, 0);
  EXPECT_THAT(yaml_error("moe_token_drop_policy: random"), HasSubstr("position"));
  EXPECT_TRUE(from_yaml("moe_pad_expert_input_to_capacity: true").model_options.moe.pad_expert_input_to_capacity);
  EXPECT_THAT(yaml_error("fp8_margin: 1"), HasSubstr("choose from fp8, fp8_recipe"));
  EXPECT_EQ(from_yaml("additional_configs: {seed: 3}").job.seed, 3u) << "a section of ROLL's";
  EXPECT_THAT(yaml_error("additional_configs: {a: 1}"), HasSubstr("unknown argument 'a'"));
  from_yaml("expert_model_parallel_size: 1\nmock_data: false\nfp8: null\nadditional_configs: {}\nckpt_format:\n");
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
  EXPECT_THAT(yaml_error("save_steps: 0"), HasSubstr("a number > 0"));
  EXPECT_EQ(steps_of(0.1, 1000), 100);
  EXPECT_EQ(steps_of(0.1, 5), 1);
  EXPECT_EQ(steps_of(0.0001, 5), 1);
  EXPECT_EQ(steps_of(1, 5), 1);
  EXPECT_EQ(steps_of(25, 5), 25);
}

TEST(Arguments, LogLinesAndEvaluationsThatAreNotGivenFollowFromOthers) {
  for (const auto& [total, steps] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {5, 1}, {99, 1}, {100, 2}, {400, 8}, {499, 9}, {500, 10}, {1'000'000, 10}}) {
    EXPECT_EQ(logging_steps({}, total), steps) << total;
  }
  EXPECT_EQ(logging_steps({.steps = 500}, 100), 500);
  EXPECT_EQ(logging_steps({.steps = 0.5}, 100), 50);
  EXPECT_EQ(eval_steps({}), 500);
  EXPECT_EQ(eval_steps(from_yaml("logging_steps: 30")), 30);
  EXPECT_EQ(eval_steps(from_yaml("logging_steps: 30\neval_steps: 0.1")), 0.1);
}

// As transformers 5 reads warmup_steps.
TEST(Arguments, AWarmupBelowOneIsAShareOfAllSteps) {
  const auto lr = [](const LrArguments& a) { return std::pair(a.warmup_steps, a.warmup_ratio); };
  EXPECT_EQ(lr(from_yaml("warmup_steps: 0.1").lr), std::pair(int64_t{0}, 0.1));
  EXPECT_EQ(lr(from_yaml("warmup_steps: 1.0").lr), std::pair(int64_t{1}, 0.0));
  EXPECT_EQ(lr(from_yaml("warmup_ratio: 0.1\nwarmup_steps: 0").lr), std::pair(int64_t{0}, 0.1));
  EXPECT_THAT(yaml_error("warmup_steps: 1.5"), HasSubstr("warmup_steps is '1.5', but must be an integer"));
  EXPECT_THAT(yaml_error("warmup_steps: -0.5"), HasSubstr("must be an integer"));
  EXPECT_THAT(yaml_error("lr_warmup_iters: 0.5"), HasSubstr("must be an integer")) << "Megatron's are whole";
  EXPECT_THAT(yaml_error("warmup_ratio: 0.2\nwarmup_steps: 0.1"), HasSubstr("was already given as 'warmup_ratio'"));
  // The command line replaces what the file has, in either form.
  const TemporaryFile share("warmup_steps: 0.1\n"), steps("warmup_steps: 7\n");
  EXPECT_EQ(lr(parse({"--config", share.path(), "--warmup_steps", "5"}).arguments.lr), std::pair(int64_t{5}, 0.0));
  EXPECT_EQ(lr(parse({"--config", steps.path(), "--warmup_steps", "0.5"}).arguments.lr), std::pair(int64_t{0}, 0.5));
  TrainingArguments arguments;
  set_argument(*find_argument("warmup_steps"), "0.25", &arguments);  // of other subcommands
  EXPECT_EQ(lr(arguments.lr), std::pair(int64_t{0}, 0.25));
}

TEST(Arguments, SettingsOfResumingHaveTheNamesOfMegatronAndHf) {
  const TrainingArguments a = from_yaml(
      "finetune: true\nno_load_optim: true\nno_load_rng: true\nignore_data_skip: true\n"
      "override_opt_param_scheduler: true\nload_best_model_at_end: true\nmetric_for_best_model: eval_loss\n"
      "greater_is_better: false\n");
  EXPECT_EQ(a.resume, (ResumeArguments{true, true, true, true, true}));
  EXPECT_EQ(a.best_model, (BestModelArguments{true, "eval_loss", AutoFlag::off}));
  const TrainingArguments none = from_yaml("metric_for_best_model: null\ngreater_is_better: null\nfinetune:\n");
  EXPECT_EQ(none.best_model, BestModelArguments{});
  const std::vector<std::string> words = {"--override-opt_param-scheduler", "--no-load-optim", "--no-load-rng"};
  const TrainingArguments typed = parse_command_line(words).arguments;
  EXPECT_EQ(typed.resume, (ResumeArguments{false, true, true, false, true}));
  EXPECT_TRUE(from_yaml("save_on_each_node: true").saving.on_each_node);
  from_yaml("use_checkpoint_opt_param_scheduler: false\nno_save_optim: false\n");
  EXPECT_THAT(yaml_error("use_checkpoint_opt_param_scheduler: true"), HasSubstr("training_args.yaml"));
  EXPECT_TRUE(from_yaml("no_save_optim: true").saving.only_model);
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

}  // namespace
}  // namespace concord
