// The output of `concord train` for its user, and its files for later programs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <pty.h>

#include <memory>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

class TrainOutput : public Train {
 protected:
  // Runs |words|, which must succeed; returns its output.
  std::string said_by(const std::vector<std::string>& more) {
    TrainProgram program(train_args(more));
    EXPECT_EQ(program.exit_code(), 0) << program.err();
    return program.out() + program.err();
  }
  std::vector<nlohmann::json> evaluations() const { return read_lines(path("out/eval_metrics.jsonl")); }
};

TEST_F(TrainOutput, BeginsWithWhatItIsAboutToDoAndWhatChangesNothing) {
  std::ofstream(path("hf.yaml")) << "do_train: true\ndataloader_pin_memory: true\noptim: adamw_torch\nlr: 1.0e-3\n"
                                 << "global_batch_size: 8\n";
  const std::string said = said_by({"--nproc", "2", "--config", path("hf.yaml")});
  const std::string first = said.substr(0, said.find("step 1/4"));
  EXPECT_THAT(
      first,
      AllOf(HasSubstr("Qwen2ForCausalLM, "), HasSubstr(" parameters, in fp32, from " + kTinyModel),
            HasSubstr("data.jsonl: 64 samples"), HasSubstr("2 x cpu ("), HasSubstr("unknown, so none is saved"),
            HasSubstr("data parallel 2 x tensor 1 x pipeline 1 x context 1"),
            HasSubstr("8 samples per step: 2 per micro-batch x 2 accumulated x 2 data parallel"),
            HasSubstr("4 (0.5 epochs)"), HasSubstr("every 500 steps and at the end"), HasSubstr("in " + path("out"))));
  EXPECT_EQ(count_of(said, "samples per step"), 1u) << "said once, not by each rank";
  EXPECT_EQ(count_of(first, "do_train has no effect"), 1u) << said;
  EXPECT_EQ(count_of(first, "dataloader_pin_memory has no effect"), 1u) << said;
}

TEST_F(TrainOutput, WhatIsNotFrozenIsCounted) {
  // The embedding and the output layer, 320 x 64 each, are not tied; the final norm has 64 elements.
  EXPECT_THAT(said_by({"--freeze", "layers"}), HasSubstr("trains     what is not frozen: 41024 parameters, "));
  std::ifstream page(path("out/report.html"));
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(page), {}),
              HasSubstr("<b>41.0k</b><span>trained parameters</span>"));
}

TEST_F(TrainOutput, DataForEvaluationIsUsedWithoutAStrategyAlsoWhereTheRunEndsInsideOfAnEpoch) {
  EXPECT_THAT(said_by({"--eval_data", write_jsonl(path("eval.jsonl"), 4)}),
              HasSubstr("after every epoch and at the end"));
  ASSERT_EQ(evaluations().size(), 1u);
  EXPECT_EQ(evaluations()[0]["step"], 4);
}

TEST_F(TrainOutput, AStrategyByEpochsEvaluatesOnceAfterTheLast) {
  said_by({"--eval_data", write_jsonl(path("eval.jsonl"), 4), "--eval_strategy", "epoch", "--max_steps", "-1",
           "--num_train_epochs", "2", "--per_device_train_batch_size", "16"});
  EXPECT_EQ(evaluations().size(), 2u);
}

TEST_F(TrainOutput, WhatIsNotEvaluatedAndNotKeptIsNamedBeforeAndAfter) {
  const std::string said =
      said_by({"--save_strategy", "no", "--eval_strategy", "no", "--eval_data", write_jsonl(path("eval.jsonl"), 4)});
  EXPECT_FALSE(fs::exists(path("out/model")));
  EXPECT_TRUE(evaluations().empty());
  EXPECT_THAT(said, AllOf(HasSubstr("never: eval_strategy is no, so eval_data is not used"),
                          HasSubstr("save_strategy is no, so the trained model is not saved"),
                          HasSubstr("not saved: save_strategy is no")));
}

TEST_F(TrainOutput, AStepThatFp16SkipsSaysWhatBecameOfTheLossScale) {
  EXPECT_THAT(said_by({"--fp16", "--max_steps", "2", "--per_device_train_batch_size", "1"}),
              AllOf(HasSubstr("skipped, loss scale is 4294967296"),  // hysteresis allows one
                    HasSubstr("skipped, loss scale halved to 2147483648"), Not(HasSubstr("nan"))));
}

TEST_F(TrainOutput, WithoutTheCheckForNanARunGoesOnAsItsErrorSays) {
  EXPECT_THAT(said_by({"--learning_rate", "1e30", "--max_grad_norm", "0", "--check_for_nan_in_loss_and_grad", "false"}),
              AllOf(HasSubstr("step 4/4"), HasSubstr("skipped, gradient NaN or Inf")));
}

TEST_F(TrainOutput, WhatWasLoggedStaysAboveTheLineOfATerminal) {
  int outside = -1, inside = -1;
  ASSERT_EQ(::openpty(&outside, &inside, nullptr, nullptr, nullptr), 0);
  std::vector<std::string> command = {LAUNCH_PROGRAM, "train"};
  const std::vector<std::string> more = train_args({});
  command.insert(command.end(), more.begin(), more.end());
  std::string line;
  for (const std::string& word : command) line += "'" + word + "' ";
  // The shell connects the program to our terminal.
  RunningProcess process({"/bin/sh", "-c", "exec " + line + " > " + ::ttyname(inside)});
  std::string seen;
  ::fcntl(outside, F_SETFL, O_NONBLOCK);
  const auto read_all = [&] {
    char bytes[4096];
    for (ssize_t count = 0; (count = ::read(outside, bytes, sizeof bytes)) > 0;)
      seen.append(bytes, static_cast<size_t>(count));
    return process.has_ended();
  };
  for (int minute = 0; minute < 5 && !poll_until(read_all); ++minute) {
  }
  EXPECT_EQ(process.wait(), 0) << process.err();
  read_all();
  ::close(inside);
  ::close(outside);
  for (int step = 1; step <= 4; ++step) {
    EXPECT_THAT(seen, ::testing::ContainsRegex("\rstep " + std::to_string(step) + "/4  loss [^\r\n]*\r\n")) << seen;
  }
}

TEST_F(TrainOutput, UnderMpirunNoEscapeCodesGoIntoFiles) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "there is no mpirun; install openmpi-bin";
  std::vector<std::string> command = {mpirun, "--oversubscribe", "--allow-run-as-root", "-n", "1", LAUNCH_PROGRAM,
                                      "train"};
  const std::vector<std::string> more = train_args({});
  command.insert(command.end(), more.begin(), more.end());
  RunningProcess process(command, {.environment = {"OMP_NUM_THREADS=1"}});
  ASSERT_EQ(process.wait(), 0) << process.err();
  EXPECT_THAT(process.out(), AllOf(HasSubstr("step 4/4  loss"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(process.err(), Not(HasSubstr("platform cpu chosen"))) << "the first lines have it, once";
}

// Like srun, which does not terminate the other ranks.
TEST_F(TrainOutput, AnErrorThatAllRanksShareIsPrintedOnce) {
  std::vector<std::unique_ptr<TrainProgram>> ranks;
  for (const std::string rank : {"0", "1", "2"}) {
    ranks.push_back(std::make_unique<TrainProgram>(
        train_args({"--learning_rate", "fast"}),
        ProcessSettings{.environment = {"RANK=" + rank, "LOCAL_RANK=" + rank, "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3",
                                        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29557"}}));
  }
  std::string said;
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->exit_code(), 2);
    said += rank->err();
  }
  EXPECT_EQ(count_of(said, "learning_rate is 'fast'"), 1u) << said;
}

// The command after `continue: ` in the last line of |text|; empty if that is another line.
std::string command_to_continue(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  const std::string last = text.substr(text.rfind('\n') + 1), begin = "continue: ";
  return last.starts_with(begin) ? last.substr(begin.size()) : "";
}

TEST_F(TrainOutput, ARunThatWasStoppedEndsWithTheCommandThatContinuesIt) {
  for (const char* ranks : {"1", "2"}) {
    fs::remove_all(path("out"));
    const std::vector<std::string> words =
        train_args({"--nproc", ranks, "--max_steps", "1000000", "--save_steps", "20", "--logging_steps", "500000",
                    "--exit_interval", "500000", "--run_name", "it's", "--overwrite_output_dir"});
    TrainProgram program(words);
    ASSERT_TRUE(program.process().wait_for_text("Training Qwen2ForCausalLM"));
    ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/checkpoint-20")); }));
    program.process().signal(SIGINT);
    EXPECT_EQ(program.exit_code(), 128 + SIGINT) << program.err();
    EXPECT_THAT(program.out(), HasSubstr("none logged yet: logging_steps is 500000"));
    const std::string command = command_to_continue(program.out());
    EXPECT_THAT(command, testing::EndsWith(" --run_name 'it'\\''s' --resume_from_checkpoint true"));
    RunningProcess shell({"/bin/sh", "-c", command + " --max_steps 1 --print_config"});
    shell.wait();
    EXPECT_THAT(shell.out(), AllOf(HasSubstr("run_name: \"it's\""), HasSubstr("resume_from_checkpoint: \"true\"")));
  }
}

TEST_F(TrainOutput, OnlyARunThatCanBeContinuedEndsWithTheCommandThatDoesIt) {
  const auto command_of = [&](const std::vector<std::string>& more) {
    TrainProgram program(train_args(more));
    const int exit_code = program.exit_code();
    return command_to_continue(exit_code == 2 ? program.err() : program.out());
  };
  std::ofstream(path("start.yaml")) << "finetune: true\nno_load_optim: true\n";
  const std::string config = path("start.yaml");
  EXPECT_THAT(command_of({"--config", config, "--exit_interval", "2"}),
              testing::EndsWith(" --config " + config + " --exit_interval 2 --finetune false --no_load_optim false "
                                "--resume_from_checkpoint true"));
  EXPECT_THAT(command_of({"--nproc", "2"}), HasSubstr(" --nproc 2 --resume_from_checkpoint true"))
      << "refused: the folder holds the run";
  EXPECT_EQ(command_of({"--resume_from_checkpoint", "true", "--seed", "x"}), "") << "wrong usage";
  EXPECT_EQ(command_of({"--resume_from_checkpoint", "true"}), "") << "finished";
}

TEST_F(TrainOutput, NothingThatItAdvisesNeedsTheSources) {
  TrainProgram program({"--output_dir", path("first"), "--max_steps", "2", "--logging_steps", "1"});
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  const std::string said = program.out() + program.err();
  EXPECT_THAT(said, AllOf(Not(HasSubstr("./run")), HasSubstr("next: "), HasSubstr("concord train --max_steps 1000")));
  RunningProcess doctor({LAUNCH_PROGRAM, "doctor"});
  doctor.wait();
  EXPECT_THAT(doctor.out(), Not(HasSubstr("./run")));
}

TEST_F(TrainOutput, AWordThatIsNearlyASubcommandIsToldWhich) {
  RunningProcess process({LAUNCH_PROGRAM, "trian", "--max_steps", "3"});
  const int status = process.wait();
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(process.err(), HasSubstr("unknown subcommand 'trian'; did you mean train?"));
}

// transformers itself on the files of a run: its type, and a tokenizer that gives the tokens of the training.
constexpr const char* kLoad = R"(
import json, sys
try:
    import transformers
except ImportError:
    sys.exit(77)
for folder, dtype in zip(sys.argv[1::2], sys.argv[2::2]):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert str(model.dtype) == "torch." + dtype, (folder, model.dtype)
    config = json.load(open(folder + "/config.json"))
    assert config.get("dtype", config.get("torch_dtype")) == dtype, config
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "The quick brown f\u00f6x\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == list(text.encode()), (folder, ids)
    assert tokenizer.decode(ids) == text, tokenizer.decode(ids)
    assert tokenizer.eos_token_id == 256, tokenizer.eos_token_id
print("loaded")
)";

TEST_F(TrainOutput, TransformersLoadsTheTypeAndTheTokenizerThatItWasTrainedWith) {
  if (!fs::exists(TORCH_PYTHON)) GTEST_SKIP() << "there is no Python with torch at " << TORCH_PYTHON;
  {
    std::ofstream text(path("text.txt"));
    for (int i = 0; i < 64; ++i) text << "The quick brown fox jumps over the lazy dog.\n";
  }
  RunningProcess build({LAUNCH_PROGRAM, "data", "build", "--tokenizer", "byte", "--input", path("text.txt"), "--output",
                        path("corpus")});
  ASSERT_EQ(build.wait(), 0) << build.err();
  const auto train = [&](const std::string& data, const std::string& out, const std::string& more) {
    TrainProgram program({"--model_config", kTinyModel + "/config.json", "--train_data", path(data), "--seq_length",
                          "16", "--tokenizer", "byte", "--max_steps", "1", "--output_dir", path(out), "--bf16", more});
    EXPECT_EQ(program.exit_code(), 0) << program.err();
    EXPECT_THAT(program.out(), HasSubstr("from the data"));
  };
  train("corpus", "half", "true");
  train("text.txt", "full", "false");
  TrainProgram again({"--model", path("full/model"), "--train_data", path("corpus"), "--seq_length", "16",
                      "--max_steps", "1", "--output_dir", path("again")});
  EXPECT_EQ(again.exit_code(), 0) << again.err();
  EXPECT_THAT(again.out(), AllOf(HasSubstr("from the model"), Not(HasSubstr("different one"))));
  RunningProcess load({TORCH_PYTHON, "-c", kLoad, path("half/model"), "bfloat16", path("full/model"), "float32",
                       path("again/model"), "float32"});
  const int status = load.wait();
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "there is no transformers in " << TORCH_PYTHON;
  EXPECT_EQ(status, 0) << load.err();
}

}  // namespace
}  // namespace concord::testing_processes
