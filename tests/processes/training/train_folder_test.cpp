// `concord train` with existing files, and runs that would train nothing.
#include <gmock/gmock.h>

#include "core/schedule/schedules.h"
#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TrainFolder : public Train {
 protected:
  // Creates a run with a checkpoint of step 2 and all its files.
  void make_run() {
    TrainProgram program(train_args({"--max_steps", "2"}));
    ASSERT_EQ(program.exit_code(), 0) << program.err();
  }
};

// Every argument that names a file to read, and the configuration.
TEST_F(TrainFolder, AnInputThatLiesInWhatWouldBeRemovedIsRefusedAndEverythingStays) {
  make_run();
  const fs::path inside = path("out/checkpoint-2");
  write_jsonl((inside / "data.jsonl").string(), 64);
  fs::copy(kTinyModel + "/config.json", inside / "start.json");
  fs::create_symlink(inside, path("link"));
  const std::vector<std::vector<std::string>> inputs = {{"--model", inside.string()},
                                                        {"--model", path("link")},
                                                        {"--train_data", (inside / "data.jsonl").string()},
                                                        {"--eval_data", (inside / "data.jsonl").string()},
                                                        {"--config", path("out/training_args.yaml")}};
  for (const std::vector<std::string>& input : inputs) {
    for (const std::string nproc : {"1", "2"}) {
      std::vector<std::string> more = {"--overwrite_output_dir", "--nproc", nproc};
      more.insert(more.end(), input.begin(), input.end());
      TrainProgram program(train_args(more));
      EXPECT_EQ(program.exit_code(), 2) << program.err();
      EXPECT_THAT(program.err(), AllOf(HasSubstr("input of this run"), HasSubstr(input[1]))) << input[0];
    }
  }
  EXPECT_TRUE(fs::exists(inside / "model.safetensors"));
  EXPECT_EQ(read_steps(path("out")).size(), 2u);
}

// Nothing is removed until everything else has been checked.
TEST_F(TrainFolder, ARunThatIsRefusedOrFailsToStartRemovesNothing) {
  make_run();
  TrainProgram broken(train_args({"--overwrite_output_dir"}), {.environment = {"CONCORD_PLATFORM=nowhere"}});
  EXPECT_NE(broken.exit_code(), 0);
  fs::create_directories(path("broken"));
  fs::copy(kTinyModel + "/config.json", path("broken/config.json"));
  write_text(path("broken/model.safetensors"), "no weights");
  for (const std::string nproc : {"1", "2"}) {
    TrainProgram program(train_args({"--overwrite_output_dir", "--model", path("broken"), "--nproc", nproc}));
    EXPECT_NE(program.exit_code(), 0);
  }
  EXPECT_TRUE(fs::exists(path("out/checkpoint-2/model.safetensors")));
  EXPECT_EQ(read_steps(path("out")).size(), 2u);
}

TEST_F(TrainFolder, WhatConcordDidNotWriteIsNotRemoved) {
  write_text(path("out/model/mine.txt"), "mine");
  EXPECT_THAT(refusal({"--overwrite_output_dir"}), AllOf(HasSubstr("was not written by Concord"), HasSubstr("model")));
  EXPECT_EQ(text_of(path("out/model/mine.txt")), "mine");
}

TEST_F(TrainFolder, TheFirstRunOverwritesNoFolderThatTheUserNames) {
  const std::vector<std::string> first = {"--output_dir", path("mine"), "--max_steps", "2"};
  write_text(path("mine/model/mine.txt"), "mine");
  TrainProgram foreign(first);
  EXPECT_EQ(foreign.exit_code(), 2) << foreign.err();
  EXPECT_EQ(text_of(path("mine/model/mine.txt")), "mine");
  fs::remove_all(path("mine/model"));
  write_text(path("mine/input/config.json"), "mine");
  TrainProgram input(first);
  EXPECT_EQ(input.exit_code(), 2) << input.err();
  EXPECT_EQ(text_of(path("mine/input/config.json")), "mine");
  fs::remove_all(path("mine"));
  TrainProgram made(first);
  EXPECT_EQ(made.exit_code(), 0) << made.err();
  TrainProgram again(first);
  EXPECT_EQ(again.exit_code(), 2);
  EXPECT_THAT(again.err(), HasSubstr("--overwrite_output_dir"));
}

// The second attempt of a job continues in the folder of the first.
TEST_F(TrainFolder, ARestartedAttemptKeepsWhatItsRunHasWritten) {
  // Rank 1 dies once, when there is a checkpoint, and records this in a file.
  const std::string script = "if [ \"$RANK\" = 1 ] && [ ! -e " + path("died") + " ]; then (while [ ! -e " +
                             path("out/checkpoint-2") + " ]; do sleep 0.02; done; echo first > " +
                             path("out/checkpoint-2/of-the-first") + "; touch " + path("died") +
                             "; kill -9 $$) & fi; exec \"$@\"";
  std::vector<std::string> command = {"/bin/sh", "-c", script, "sh", LAUNCH_PROGRAM, "train"};
  const std::vector<std::string> run = train_args({"--max_steps", "60", "--save_steps", "2", "--logging_steps", "20"});
  command.insert(command.end(), run.begin(), run.end());
  Launch job({"--nproc", "2", "--max_restarts", "1"}, command, {.environment = {"OMP_NUM_THREADS=1"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
  EXPECT_EQ(text_of(path("out/checkpoint-2/of-the-first")), "first\n");
  EXPECT_TRUE(fs::exists(path("out/model/model.safetensors")));
  EXPECT_EQ(read_steps(path("out")).back()["step"], 60);
}

TEST_F(TrainFolder, EveryOtherScheduleTrains) {
  for (const std::string_view kind : schedule_kinds()) {
    if (kind == "forward-only") continue;
    const bool has_chunks = kind == "interleaved" || kind == "zb-v";
    const std::string out = path(std::string(kind));
    TrainProgram program(
        train_args({"--nproc", "2", "--pipeline_model_parallel_size", "2", "--gradient_accumulation_steps", "4",
                    "--per_device_train_batch_size", "1", "--pipeline_schedule", std::string(kind),
                    "--virtual_pipeline_model_parallel_size", has_chunks ? "2" : "1", "--output_dir", out}));
    ASSERT_EQ(program.exit_code(), 0) << kind << program.err();
    for (const nlohmann::json& step : read_steps(out)) EXPECT_GT(step["grad_norm"].get<double>(), 0) << kind;
  }
}

TEST_F(TrainFolder, AScheduleWithoutBackwardIsRefused) {
  const std::vector<std::string> pipeline = {"--nproc",
                                             "2",
                                             "--pipeline_model_parallel_size",
                                             "2",
                                             "--gradient_accumulation_steps",
                                             "2",
                                             "--pipeline_schedule"};
  write_text(path("forward.csv"), "0F0,0F1\n1F0,1F1\n");
  for (const std::string& schedule : {std::string("forward-only"), path("forward.csv")}) {
    std::vector<std::string> more = pipeline;
    more.push_back(schedule);
    EXPECT_THAT(refusal(more), HasSubstr("no backward"));
  }
}

// Samples of 3 and of 9 tokens in batches of both: 24 tokens per step and no padding, on whichever rank.
TEST_F(TrainFolder, TokensAreThoseOfTheDataWithoutPadding) {
  std::ofstream data(path("uneven.jsonl"));
  for (int i = 0; i < 16; ++i) {
    data << (i % 2 ? "{\"input_ids\": [1, 2, 3]}\n" : "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n");
  }
  data.close();
  for (const std::string nproc : {"1", "2"}) {
    const std::string out = path("out-" + nproc);
    TrainProgram program(train_args({"--train_data", path("uneven.jsonl"), "--shuffle", "false", "--nproc", nproc,
                                     "--per_device_train_batch_size", nproc == "1" ? "4" : "2", "--peak_flops", "1e9",
                                     "--output_dir", out}));
    ASSERT_EQ(program.exit_code(), 0) << program.err();
    const auto steps = read_steps(out);
    EXPECT_EQ(steps.back()["tokens"], 4 * 24) << nproc;
    // qwen2-tiny, by Megatron's formula, with the sum of squared lengths of 2 x 9 and 2 x 3 tokens.
    const auto config = nlohmann::json::parse(std::ifstream(kTinyModel + "/config.json"));
    const auto number = [&](const char* name) { return config[name].get<double>(); };
    const double hidden = number("hidden_size"), heads = number("num_attention_heads");
    const double query = hidden, key = hidden / heads * number("num_key_value_heads");
    const double weights = number("num_hidden_layers") * (hidden * (query + 2 * key) + query * hidden +
                                                          3 * hidden * number("intermediate_size")) +
                           hidden * number("vocab_size");
    const double pairs = (2 * 81 + 2 * 9) / 2.0;
    const double flops = 6 * (24 * weights + 2 * pairs * query * number("num_hidden_layers"));
    const double ranks = nproc == "1" ? 1 : 2;
    EXPECT_NEAR(steps[2]["mfu"].get<double>() * steps[2]["seconds"].get<double>() * 1e9 * ranks, flops, 1e-6 * flops);
    const auto state = nlohmann::json::parse(std::ifstream(out + "/trainer_state.json"));
    EXPECT_NEAR(state["total_flos"].get<double>(), 4 * flops, 1e-6 * flops);
  }
}

// Steps 2 and 3 train on no tokens; their update would still change the weights by weight decay.
TEST_F(TrainFolder, AStepWithoutACountedTokenIsSkippedSaidAndCounted) {
  std::ofstream data(path("ignored.jsonl"));
  for (int i = 0; i < 8; ++i) {
    const bool ignored = i >= 2 && i < 6;
    data << "{\"input_ids\": [1, 2, 3, 4], \"labels\": " << (ignored ? "[-100, -100, -100, -100]" : "[1, 2, 3, 4]")
         << "}\n";
  }
  data.close();
  for (const std::string per_token : {"true", "false"}) {
    const std::string out = path("of-" + per_token);
    TrainProgram program(
        train_args({"--train_data", path("ignored.jsonl"), "--shuffle", "false", "--weight_decay", "0.1",
                    "--calculate_per_token_loss", per_token, "--nproc", "2", "--per_device_train_batch_size", "1",
                    "--logging_steps", "4", "--output_dir", out}));
    ASSERT_EQ(program.exit_code(), 0) << program.err();
    EXPECT_THAT(program.err(), AllOf(HasSubstr("step 2 is skipped"), HasSubstr("step 3 is skipped")));
    const auto steps = read_steps(out);
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0]["skipped_iter"], 2);
    EXPECT_GT(steps[0]["grad_norm"].get<double>(), 0);
    EXPECT_GE(steps[0]["grad_norm_max"].get<double>(), steps[0]["grad_norm"].get<double>());
  }
}

// The first steps of fp16 overflow; they must be reported even between two log lines.
TEST_F(TrainFolder, SkippedStepsOfFp16AreCountedOverTheWholeWindow) {
  TrainProgram program(train_args(
      {"--fp16", "--initial_loss_scale", "1e30", "--hysteresis", "1", "--max_steps", "8", "--logging_steps", "4"}));
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  const auto steps = read_steps(path("out"));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["skipped_iter"], 4) << "one halving each";
}

}  // namespace
}  // namespace concord::testing_processes
