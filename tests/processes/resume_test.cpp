// Runs that are stopped and resumed, through the program: under the same layout they are the run that was never
// stopped, bit for bit; under another one the same state, and losses within rounding.
#include <gmock/gmock.h>

#include <cmath>
#include <csignal>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

using Words = std::vector<std::string>;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Layout {
  std::string name;
  Words words;  // of 4 samples per step
};

Words ranks(int nproc, int accumulation) {
  return {"--nproc", std::to_string(nproc), "--gradient_accumulation_steps", std::to_string(accumulation)};
}

// On 1, 2 and 4 ranks.
std::vector<Layout> layouts() {
  const Words tp = {"--tensor_model_parallel_size", "2"}, pp = {"--pipeline_model_parallel_size", "2"},
              cp = {"--context_parallel_size", "2"}, zero = {"--use_distributed_optimizer"},
              chunks = {"--virtual_pipeline_model_parallel_size", "2"};
  return {{"one", ranks(1, 4)},
          {"offload", ranks(1, 4) + Words{"--optimizer_cpu_offload", "--optimizer_offload_fraction", "0.5"}},
          {"dp2", ranks(2, 2)},
          {"dp2_zero", ranks(2, 2) + zero},
          {"tp2", ranks(2, 4) + tp},
          {"tp2_sp", ranks(2, 4) + tp + Words{"--sequence_parallel"}},
          {"pp2", ranks(2, 4) + pp},
          {"pp2_vpp2", ranks(2, 4) + pp + chunks + Words{"--pipeline_schedule", "interleaved"}},
          {"pp2_zb_v", ranks(2, 4) + pp + chunks + Words{"--pipeline_schedule", "zb-v"}},
          {"pp2_custom", ranks(2, 4) + pp + Words{"--pipeline_model_parallel_layout", "E,t|t,t,t,L"}},
          {"cp2", ranks(2, 4) + cp},
          {"dp4_zero", ranks(4, 1) + zero},
          {"tp2_dp2_zero", ranks(4, 2) + tp + zero},
          {"tp2_pp2", ranks(4, 4) + tp + pp},
          {"pp2_dp2_zero", ranks(4, 2) + pp + zero}};
}

class TrainResume : public Train {
 protected:
  Words run_words(const std::string& out, const Words& more) {
    return words(Words{"--train_data", path("data.jsonl"), "--per_device_train_batch_size", "1", "--max_steps", "12",
                       "--save_steps", "5", "--logging_steps", "3", "--learning_rate", "1e-3", "--output_dir",
                       path(out)} +
                 more);
  }
  void run(const std::string& out, const Words& more) {
    TrainProgram program(run_words(out, more));
    ASSERT_EQ(program.exit_code(), 0) << program.err();
  }
  // What a run that was killed after step 5 has left.
  void make_killed(const std::string& from, const std::string& to) {
    fs::create_directories(path(to));
    fs::copy(path(from) + "/checkpoint-5", path(to) + "/checkpoint-5", fs::copy_options::recursive);
    for (const char* file : {".concord-run.json", "metrics.jsonl"}) fs::copy(path(from) + "/" + file, path(to));
  }
  // Losses, norms and rates of all log lines; and the tensors at the end.
  void expect_same_run(const std::string& a, const std::string& b) {
    const auto first = read_steps(path(a)), second = read_steps(path(b));
    ASSERT_EQ(first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i) {
      for (const char* key : {"step", "loss", "grad_norm", "grad_norm_max", "learning_rate", "tokens", "epoch"}) {
        EXPECT_EQ(first[i].value(key, nlohmann::json()), second[i].value(key, nlohmann::json()))
            << key << " of line " << i;
      }
    }
    expect_same_tensors(a + "/checkpoint-12", b + "/checkpoint-12");
    EXPECT_EQ(bytes_of(path(a) + "/model/model.safetensors"), bytes_of(path(b) + "/model/model.safetensors"));
  }
  void expect_same_tensors(const std::string& a, const std::string& b) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      EXPECT_EQ(bytes_of(path(a) + "/" + file), bytes_of(path(b) + "/" + file)) << file;
      EXPECT_FALSE(bytes_of(path(a) + "/" + file).empty());
    }
  }
};

TEST_F(TrainResume, EveryKindOfRunContinuesWithTheSameBits) {
  const std::vector<Words> kinds = {
      ranks(2, 2),
      // The scale halves before and after the checkpoint.
      ranks(1, 4) + Words{"--fp16", "--initial_loss_scale", "1e12", "--hysteresis", "1", "--loss_scale_window", "2"},
      ranks(2, 2) + Words{"--sequence_packing", "--seq_length", "48"},
      ranks(2, 2) + Words{"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather", "--bf16"},
      ranks(1, 4) + Words{"--optimizer_cpu_offload", "--recompute_granularity", "full"},
      ranks(1, 4) + Words{"--optimizer", "sgd", "--save_strategy", "steps"},
      ranks(2, 4) + Words{"--pipeline_model_parallel_size", "2", "--pipeline_schedule", "zb-h1"},
      ranks(2, 12) + Words{"--tensor_model_parallel_size", "2", "--sequence_parallel"}};  // ends an epoch at step 5
  for (const Words& kind : kinds) {
    SCOPED_TRACE(::testing::PrintToString(kind));
    for (const char* folder : {"whole", "killed"}) fs::remove_all(path(folder));
    run("whole", kind);
    make_killed("whole", "killed");
    run("killed", kind + Words{"--resume_from_checkpoint", "true"});
    expect_same_run("whole", "killed");
  }
}

// Each layout reads what the one before it has written, and writes it again: the files are the same to the last byte.
TEST_F(TrainResume, ACheckpointIsTheSameUnderEveryLayout) {
  run("start", layouts()[0].words + Words{"--max_steps", "5"});
  std::string last = "start";
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    run(layout.name,
        layout.words + Words{"--max_steps", "5", "--resume_from_checkpoint", path(last) + "/checkpoint-5"});
    expect_same_tensors(last + "/checkpoint-5", layout.name + "/checkpoint-5");
    last = layout.name;
  }
}

// Sums of a step are added in another order there: within 32-bit rounding of losses near 5.
TEST_F(TrainResume, ARunContinuesUnderAnotherLayout) {
  run("whole", ranks(2, 2));
  const auto expected = read_steps(path("whole"));
  for (const Layout& layout : layouts()) {
    if (layout.name != "tp2_pp2" && layout.name != "pp2_zb_v" && layout.name != "dp4_zero") continue;
    make_killed("whole", layout.name);
    run(layout.name, layout.words + Words{"--resume_from_checkpoint", "latest"});
    const auto found = read_steps(path(layout.name));
    ASSERT_EQ(found.size(), expected.size()) << layout.name;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 2e-6) << layout.name << i;
      EXPECT_EQ(found[i]["tokens"], expected[i]["tokens"]) << layout.name << i;
    }
  }
}

// kill -9 at any moment, then the same command with --resume_from_checkpoint.
TEST_F(TrainResume, ARunThatWasKilledOrStoppedIsTheOneThatWasNot) {
  const Words kind = ranks(2, 2) + Words{"--max_steps", "30", "--save_steps", "2", "--save_total_limit", "2"};
  run("whole", kind);
  for (const int signal : {SIGKILL, SIGTERM}) {
    const std::string out = signal == SIGKILL ? "killed" : "stopped";
    {
      TrainProgram program(run_words(out, kind));
      ASSERT_TRUE(poll_until([&] { return fs::exists(path(out) + "/checkpoint-6"); })) << program.err();
      if (signal == SIGKILL) {
        for (const pid_t pid : processes_with(path(out))) kill(pid, SIGKILL);
      } else {
        program.process().signal(signal);
      }
      EXPECT_NE(program.exit_code(), 0);
    }
    ASSERT_TRUE(all_gone(path(out)));
    run(out, kind + Words{"--resume_from_checkpoint", "true"});
    const auto first = read_steps(path("whole")), second = read_steps(path(out));
    ASSERT_EQ(first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i]["loss"], second[i]["loss"]) << i;
    expect_same_tensors("whole/checkpoint-30", out + "/checkpoint-30");
  }
}

// The attempt after a crash goes on by itself.
TEST_F(TrainResume, ARestartedJobContinuesFromItsNewestCheckpoint) {
  const Words kind = {"--max_steps", "30", "--save_steps", "2", "--gradient_accumulation_steps", "2"};
  run("whole", kind + Words{"--nproc", "2"});
  const std::string script = "if [ \"$RANK\" = 1 ] && [ ! -e " + path("died") + " ]; then (while [ ! -e " +
                             path("out/checkpoint-6") + " ]; do sleep 0.02; done; touch " + path("died") +
                             "; kill -9 $$) & fi; exec \"$@\"";
  // Resumed from another folder at first, and from its own checkpoints after the crash.
  run("before", kind + Words{"--nproc", "2", "--max_steps", "30"});
  for (const int step : {4, 6, 8}) fs::remove_all(path("before/checkpoint-" + std::to_string(step)));
  Launch job({"--nproc", "2", "--max_restarts", "1"},
             Words{"/bin/sh", "-c", script, "sh", LAUNCH_PROGRAM, "train"} +
                 run_words("out", kind + Words{"--resume_from_checkpoint", path("before/checkpoint-2")}),
             {.environment = {"OMP_NUM_THREADS=1"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
  EXPECT_THAT(job.out() + job.err(), HasSubstr("out/checkpoint-"));
  const auto first = read_steps(path("whole")), second = read_steps(path("out"));
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i]["loss"], second[i]["loss"]) << i;
  expect_same_tensors("whole/checkpoint-30", "out/checkpoint-30");
}

TEST_F(TrainResume, WhatCannotBeContinuedIsRefusedWithBothValues) {
  run("whole", ranks(1, 4));
  const Words resume = ranks(1, 4) + Words{"--resume_from_checkpoint", path("whole/checkpoint-5")};
  const auto refused = [&](const Words& more) {
    TrainProgram program(run_words("other", resume + more));
    EXPECT_EQ(program.exit_code(), 2) << program.err();
    return program.err();
  };
  EXPECT_THAT(refused({"--seed", "7"}), AllOf(HasSubstr("seed 42"), HasSubstr("seed 7")));
  EXPECT_THAT(refused({"--optimizer", "sgd"}), AllOf(HasSubstr("optimizer adam"), HasSubstr("optimizer sgd")));
  EXPECT_THAT(refused({"--data_seed", "7"}), HasSubstr("other data"));
  EXPECT_THAT(refused({"--resume_from_checkpoint", path("whole/model")}), HasSubstr("cannot be resumed"));
  EXPECT_THAT(refused({"--resume_from_checkpoint", path("nowhere")}), HasSubstr("cannot be resumed"));
  std::ofstream(path("whole/checkpoint-5/metadata.json")) << "{\"format\": 2}";
  EXPECT_THAT(refused({}), HasSubstr("format 2"));
  // Nothing to resume: it starts, and says so.
  TrainProgram fresh(run_words("fresh", ranks(1, 4) + Words{"--resume_from_checkpoint", "true"}));
  EXPECT_EQ(fresh.exit_code(), 0) << fresh.err();
  EXPECT_THAT(fresh.err(), HasSubstr("no checkpoint to resume from"));
}

// Not what another run has left, and not what a later course of the same run has.
TEST_F(TrainResume, NothingThatIsThereIsLostByResuming) {
  const auto refused = [&](const Words& more) {
    TrainProgram program(run_words("out", ranks(1, 4) + more));
    EXPECT_EQ(program.exit_code(), 2) << program.err();
    return program.err();
  };
  run("out", ranks(1, 4) + Words{"--save_only_model", "true"});
  const std::string metrics = bytes_of(path("out/metrics.jsonl"));
  EXPECT_THAT(refused({"--resume_from_checkpoint", "true"}), HasSubstr("contains another run"));
  EXPECT_EQ(bytes_of(path("out/metrics.jsonl")), metrics);
  fs::remove_all(path("out"));
  run("out", ranks(1, 4));
  EXPECT_THAT(refused({"--resume_from_checkpoint", path("out/checkpoint-5")}),
              AllOf(HasSubstr("checkpoint-12"), HasSubstr("later than step 5")));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-12/optimizer.safetensors")));
}

// Without libtorch or a device.
TEST_F(TrainResume, CheckpointsAreListedAndDescribed) {
  const auto answer = [&](const Words& words) {
    RunningProcess process(Words{LAUNCH_PROGRAM, "checkpoint"} + words + Words{"--json"});
    EXPECT_EQ(process.wait(), 0) << process.err();
    return nlohmann::json::parse(process.out());
  };
  run("out", ranks(2, 4) + Words{"--tensor_model_parallel_size", "2"});
  fs::create_directory(path("out/checkpoint-9.tmp-0123456789abcdef"));
  const nlohmann::json list = answer({"list", path("out")})["checkpoints"];
  ASSERT_EQ(list.size(), 4u);
  const std::vector<int> steps = {5, 10, 12, 9};
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i]["step"], steps[i]);
    EXPECT_EQ(list[i]["complete"], steps[i] != 9);
  }
  const nlohmann::json one = answer({"describe", path("out/checkpoint-10")});
  EXPECT_EQ(one["step"], 10);
  EXPECT_EQ(one["complete"], true);
  EXPECT_EQ(one["layout"]["tensor_parallel"], 2);
  EXPECT_EQ(one["arguments"]["max_steps"], "12");
  uintmax_t bytes = 0;
  for (const auto& file : one["files"]) bytes += file["bytes"].get<uintmax_t>();
  EXPECT_EQ(one["bytes"], bytes);
  // 4 bytes for each parameter, and a header.
  const auto weights = fs::file_size(path("out/checkpoint-10/model.safetensors"));
  EXPECT_NEAR(one["parameters"].get<double>(), static_cast<double>(weights) / 4, 2000);
}

TEST_F(TrainResume, WeightsAloneAreSavedWhereNobodyWantsMore) {
  run("out", ranks(1, 4) + Words{"--save_only_model", "true"});
  EXPECT_FALSE(fs::exists(path("out/checkpoint-5/optimizer.safetensors")));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-5/model.safetensors")));
}

}  // namespace
}  // namespace concord::testing_processes
