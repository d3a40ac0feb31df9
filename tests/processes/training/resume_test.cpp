// Runs that are stopped and resumed, through the program: with the same layout they are bitwise identical to the run
// that was never stopped; with another one they have the same state, and losses within rounding.
#include <gmock/gmock.h>

#include <csignal>
#include <memory>
#include <set>

#include "core/base/process_list.h"
#include "tests/free_port.h"
#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Args kLora = {"--finetuning_type", "lora", "--lora_rank", "4", "--lora_dropout", "0.1"};

// bf16 and fp16 are slow on most processors: no accumulation with them.
TEST_F(TrainResume, EveryKindOfRunContinuesWithTheSameBits) {
  const std::vector<Args> kinds = {
      ranks(2, 2),
      // The scale halves before and after the checkpoint, and doubles around it.
      ranks(1, 1) + Args{"--fp16", "--initial_loss_scale", "8000", "--hysteresis", "1", "--loss_scale_window", "2"},
      ranks(2, 2) + Args{"--sequence_packing", "--seq_length", "48"},
      ranks(2, 1) + Args{"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather", "--bf16"},
      ranks(1, 4) + Args{"--optimizer_cpu_offload", "--recompute_granularity", "full"},
      ranks(1, 4) + Args{"--optimizer", "sgd", "--save_strategy", "steps"},
      ranks(2, 2) + Args{"--use_distributed_optimizer", "--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "bf16",
                         "--adam_beta2", "0.95"},
      ranks(2, 1) + Args{"--use_distributed_optimizer", "--bf16", "--main_params_dtype", "remainder",
                         "--main_grads_dtype", "bf16"},
      ranks(2, 4) + Args{"--pipeline_model_parallel_size", "2", "--pipeline_schedule", "zb-h1"},
      ranks(2, 2) + kLora + Args{"--tensor_model_parallel_size", "2", "--sequence_parallel", "--bf16"},
      ranks(2, 12) + Args{"--tensor_model_parallel_size", "2", "--sequence_parallel"}};  // ends an epoch at step 5
  for (const Args& each : kinds) {
    SCOPED_TRACE(::testing::PrintToString(each));
    const Args kind = each + Args{"--max_steps", "8"};
    for (const char* folder : {"whole", "killed"}) fs::remove_all(path(folder));
    run("whole", kind);
    make_killed("whole", "killed");
    run("killed", kind + Args{"--resume_from_checkpoint", "true"});
    expect_same_run("whole", "killed", 8);
  }
}

class ResumeRow : public TrainResume {
 protected:
  // |layout| reads the checkpoint that |last| has written, if any, and saves it again. Returns the name of |layout|.
  std::string pass_on(const std::string& last, const Layout& layout) {
    SCOPED_TRACE(layout.name);
    // Replicas, if any, load together.
    const bool has_replicas = layout.name.find("dp") != std::string::npos || layout.name == "cp2";
    const Args from = {"--resume_from_checkpoint", path(last) + "/checkpoint-5", "--ckpt_fully_parallel_load",
                       has_replicas ? "true" : "auto"};
    run(layout.name, layout.args + Args{"--max_steps", "5"} + (last.empty() ? Args{} : from));
    if (!last.empty()) expect_same_tensors(last + "/checkpoint-5", layout.name + "/checkpoint-5");
    return layout.name;
  }
};

// Each layout reads the checkpoint of the previous one, and saves it again: the files are bitwise identical.
// resume_layouts_test has every pair.
TEST_F(ResumeRow, ACheckpointIsTheSameUnderEveryLayout) {
  const std::set<std::string> in_others = {"dp2", "tp2", "pp2", "dp4_zero", "tp2_pp2"};
  std::string last;
  for (const Layout& layout : layouts()) {
    if (!in_others.contains(layout.name)) last = pass_on(last, layout);
  }
}

// Experts are whole on a rank, split, or both.
TEST_F(ResumeRow, ACheckpointOfExpertsIsTheSameUnderEveryLayout) {
  tokens_ = kExpertTokens;
  std::string last;
  for (const Layout& layout : expert_layouts()) {
    if (layout.name != "experts_dp2_ep2" && layout.name != "experts_cp2_dp2_ep4_zero") last = pass_on(last, layout);
  }
}

// Like above, for an adapter: it is created with the first layout, and would be bitwise identical with any other.
TEST_F(TrainResume, AnAdaptersCheckpointIsTheSameUnderEveryLayout) {
  const Args kind = {"--finetuning_type", "lora", "--lora_rank", "4", "--max_steps", "5"};
  const Args unchanged = {"--learning_rate", "0", "--max_steps", "1"};
  const std::vector<std::string> chosen = {"one", "tp2_sp", "pp2_zb_v", "pp2_dp2_zero"};
  std::string last;
  for (const Layout& layout : layouts()) {
    if (std::find(chosen.begin(), chosen.end(), layout.name) == chosen.end()) continue;
    SCOPED_TRACE(layout.name);
    run("new_" + layout.name, layout.args + kind + unchanged);
    expect_same_bytes("new_one/model/adapter_model.safetensors",
                      "new_" + layout.name + "/model/adapter_model.safetensors");
    run(layout.name,
        layout.args + kind + (last.empty() ? Args{} : Args{"--resume_from_checkpoint", path(last) + "/checkpoint-5"}));
    if (!last.empty()) expect_same_tensors(last + "/checkpoint-5", layout.name + "/checkpoint-5");
    EXPECT_FALSE(fs::exists(path(layout.name + "/checkpoint-5/model.safetensors"))) << "the base model is not saved";
    last = layout.name;
  }
}

// The sums of a step are in a different order: within fp32 rounding of losses near 5.
TEST_F(TrainResume, ARunContinuesUnderAnotherLayout) {
  run("whole", ranks(2, 2));
  const auto expected = read_steps(path("whole"));
  for (const Layout& layout : layouts()) {
    if (layout.name != "tp2_pp2" && layout.name != "pp2_zb_v" && layout.name != "dp4_zero") continue;
    make_killed("whole", layout.name);
    run(layout.name, layout.args + Args{"--resume_from_checkpoint", "latest"});
    const auto found = read_steps(path(layout.name));
    ASSERT_EQ(found.size(), expected.size()) << layout.name;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 2e-6) << layout.name << i;
      EXPECT_EQ(found[i]["tokens"], expected[i]["tokens"]) << layout.name << i;
    }
  }
}

// Returns the environment for file_faults.cpp in a process with these settings.
Args with_faults(const Args& settings) {
  Args environment = {"LD_PRELOAD=" FILE_FAULTS_LIBRARY};
  for (const std::string& setting : settings) environment.push_back("FILE_FAULTS_" + setting);
  return environment;
}

// As under srun, which passes a signal on to every rank. Rank 1 is still reading its state, and rank 0 waits for it:
// there is nothing to save.
TEST_F(TrainResume, AStopWhileAnotherRankLoadsHasTheSignalsExitCode) {
  run("whole", ranks(2, 2));
  fs::remove(path("whole/checkpoint-5/manifest.json"));  // all ranks would wait for each other's checksums
  const std::string port = std::to_string(tests::free_port());
  std::vector<std::unique_ptr<TrainProgram>> job;
  for (const std::string rank : {"0", "1"}) {
    const Args place = {"RANK=" + rank,       "LOCAL_RANK=" + rank,    "WORLD_SIZE=2",
                        "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
    job.push_back(std::make_unique<TrainProgram>(
        run_args("out", {"--gradient_accumulation_steps", "2", "--resume_from_checkpoint", path("whole/checkpoint-5")}),
        ProcessSettings{
            .environment =
                place + with_faults({"UNDER=" + path("whole/checkpoint-5"), "NAME=optimizer.safetensors", "CALLS=read",
                                     "RANK=1", "ACTION=kill", "SIGNAL=" + std::to_string(SIGSTOP), "AT=1"})}));
  }
  ASSERT_TRUE(poll_until([&] { return is_stopped(job[1]->process().pid()); })) << job[1]->err();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // rank 0 gets to where it waits
  for (const auto& rank : job) rank->process().signal(SIGTERM);
  job[1]->process().signal(SIGCONT);
  for (const auto& rank : job) EXPECT_EQ(rank->exit_code(), 128 + SIGTERM) << rank->err();
  EXPECT_FALSE(fs::exists(path("out/metrics.jsonl")));
}

// Each run is stopped in steps 7, 10 and 13, each time in a different way, while it writes the step's line of
// metrics.jsonl, and resumed each time.
TEST_F(TrainResume, ARunThatWasStoppedThreeTimesIsTheOneThatWasNot) {
  const int steps[] = {7, 10, 13}, signals[] = {SIGTERM, SIGKILL, SIGSEGV};
  for (size_t first = 0; first < 3; ++first) {
    const Args kind =
        (first == 0 ? ranks(2, 2) : ranks(1, 4)) + Args{"--max_steps",     "20",    "--save_steps", "3",
                                                        "--logging_steps", "1",     "--eval_data",  path("data.jsonl"),
                                                        "--eval_strategy", "steps", "--eval_steps", "8"};
    const std::string whole = first == 0 ? "whole_of_two" : "whole_of_one";
    const std::string out = "stopped" + std::to_string(first);
    if (first < 2) run(whole, kind);
    int done = 0;
    for (size_t i = 0; i < 3; ++i) {
      const int signal = signals[(first + i) % 3];
      SCOPED_TRACE("signal " + std::to_string(signal) + " in step " + std::to_string(steps[i]) + " of " + whole);
      TrainProgram program(
          run_args(out, kind + Args{"--resume_from_checkpoint", "true"}),
          {.environment = Args{"CONCORD_FLIGHT_FOLDER=" + path("")} +
                          with_faults({"UNDER=" + path(out) + "/", "NAME=metrics.jsonl", "CALLS=write", "ACTION=kill",
                                       "SIGNAL=" + std::to_string(signal), "SEED=" + std::to_string(3 * first + i),
                                       "AT=" + std::to_string(steps[i] - done)})});
      EXPECT_NE(program.exit_code(), 0) << program.err();
      ASSERT_TRUE(all_gone(path(out)));
      const int newest = newest_checkpoint(out);
      EXPECT_GE(newest, signal == SIGTERM ? steps[i] : done) << "asked to stop, it saves what it has done";
      EXPECT_LE(newest, steps[i]);
      done = newest;
    }
    run(out, kind + Args{"--resume_from_checkpoint", "true"});
    expect_same_run(whole, out, 20);
  }
}

// The attempt after a crash resumes by itself; at first from another folder, and then from its own checkpoints.
TEST_F(TrainResume, ARestartedJobContinuesFromItsNewestCheckpoint) {
  const Args kind = {"--save_steps", "2", "--gradient_accumulation_steps", "2"};
  run("whole", kind + Args{"--nproc", "2"});
  std::string faults;
  for (const std::string& each :
       with_faults({"UNDER=" + path("out/checkpoint-8"), "CALLS=write", "ACTION=kill", "AT=1"})) {
    faults += each + " ";
  }
  const std::string script = "if [ \"$RANK\" = 1 ] && [ ! -e " + path("died") + " ]; then touch " + path("died") +
                             "; export " + faults + "; fi; exec \"$@\"";
  Launch job({"--nproc", "2", "--max_restarts", "1"},
             Args{"/bin/sh", "-c", script, "sh", LAUNCH_PROGRAM, "train"} +
                 run_args("out", kind + Args{"--resume_from_checkpoint", path("whole/checkpoint-2")}),
             {.environment = {"OMP_NUM_THREADS=1", "CONCORD_FLIGHT_FOLDER=" + path("")}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
  EXPECT_THAT(job.out() + job.err(), HasSubstr("out/checkpoint-6"));
  EXPECT_FALSE(fs::exists(path("out/checkpoint-2"))) << "it was to start at another folder's";
  expect_same_tensors("whole/checkpoint-12", "out/checkpoint-12");
  const auto first = read_steps(path("whole")), second = read_steps(path("out"));
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i]["loss"], second[i]["loss"]) << i;
}

TEST_F(TrainResume, WhatCannotBeContinuedIsRefusedWithBothValues) {
  // There is nothing to resume: the run starts and logs this.
  EXPECT_THAT(run("whole", ranks(1, 4) + Args{"--resume_from_checkpoint", "true"}),
              HasSubstr("no checkpoint to resume from"));
  const Args resume = ranks(1, 4) + Args{"--resume_from_checkpoint", path("whole/checkpoint-5")};
  const auto refused = [&](const Args& more) {
    TrainProgram program(run_args("other", resume + more));
    EXPECT_EQ(program.exit_code(), 2) << program.err();
    return program.err();
  };
  EXPECT_THAT(refused({"--seed", "7"}), AllOf(HasSubstr("seed 42"), HasSubstr("seed 7")));
  EXPECT_THAT(refused({"--optimizer", "sgd"}), AllOf(HasSubstr("optimizer adam"), HasSubstr("optimizer sgd")));
  EXPECT_THAT(refused({"--data_seed", "7"}), HasSubstr("other data"));
  EXPECT_THAT(refused({"--resume_from_checkpoint", path("whole/model")}), HasSubstr("cannot be resumed"));
  EXPECT_THAT(refused({"--resume_from_checkpoint", path("nowhere")}), HasSubstr("cannot be resumed"));
  std::ofstream(path("whole/checkpoint-5/metadata.json")) << "{\"format\": 2}";
  EXPECT_THAT(refused({}), HasSubstr("is damaged: metadata.json has the checksum"));
  fs::remove(path("whole/checkpoint-5/manifest.json"));
  EXPECT_THAT(refused({}), HasSubstr("format 2"));
}

// One byte of the optimizer's state is changed: this is detected before any of it is loaded.
TEST_F(TrainResume, ADamagedTensorIsNamedUnlessNothingIsVerified) {
  run("whole", ranks(2, 2) + Args{"--max_steps", "5"});
  const std::string file = path("whole/checkpoint-5/optimizer.safetensors");
  std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
  bytes.seekp(-1, std::ios::end);
  bytes.put('\x01');
  bytes.close();
  const Args resume = ranks(2, 2) + Args{"--resume_from_checkpoint", path("whole/checkpoint-5"), "--max_steps", "5"};
  TrainProgram refused(run_args("refused", resume));
  EXPECT_EQ(refused.exit_code(), 2) << refused.err();
  EXPECT_THAT(refused.err(), AllOf(HasSubstr("is damaged: optimizer.safetensors"), HasSubstr("exp_avg")));
  run("taken", resume + Args{"--verify_checkpoint", "false"});
}

// A save takes at least two steps: with one after every step the second one is due while the first is written.
TEST_F(TrainResume, ACheckpointThatIsDueWhileOneIsWrittenIsWaitedForOrSkipped) {
  const Args every_step = ranks(1, 4) + Args{"--save_steps", "1", "--max_steps", "5"};
  const auto exists = [&](const std::string& out, int step) {
    return fs::exists(path(out + "/checkpoint-" + std::to_string(step)));
  };
  EXPECT_THAT(run("waits", every_step),
              AllOf(::testing::Not(HasSubstr("is skipped")), HasSubstr("for the checkpoint of step 1, which took"),
                    HasSubstr("steps between checkpoints (save_steps; here 1)"),
                    ::testing::Not(HasSubstr("for the checkpoint of step 2"))));
  for (int step = 1; step <= 5; ++step) EXPECT_TRUE(exists("waits", step)) << step;
  EXPECT_THAT(run("skips", every_step + Args{"--async_save_when_busy", "skip"}),
              HasSubstr("the checkpoint of step 2 is skipped: that of step 1 is still being written"));
  EXPECT_FALSE(exists("skips", 2));
  for (const int step : {1, 5}) {
    EXPECT_TRUE(exists("skips", step)) << step;
    const std::string name = "/checkpoint-" + std::to_string(step);
    expect_same_tensors("waits" + name, "skips" + name);
  }
}

// Neither files of another run nor later steps of the same run are lost.
TEST_F(TrainResume, NothingThatIsThereIsLostByResuming) {
  const auto refused = [&](const Args& more) {
    TrainProgram program(run_args("out", ranks(1, 4) + more));
    EXPECT_EQ(program.exit_code(), 2) << program.err();
    return program.err();
  };
  run("out", ranks(1, 4) + Args{"--save_only_model", "true"});
  EXPECT_FALSE(fs::exists(path("out/checkpoint-5/optimizer.safetensors")));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-5/model.safetensors")));
  const std::string metrics = bytes_of(path("out/metrics.jsonl"));
  EXPECT_THAT(refused({"--resume_from_checkpoint", "true"}), HasSubstr("contains another run"));
  EXPECT_EQ(bytes_of(path("out/metrics.jsonl")), metrics);
  fs::remove_all(path("out"));
  run("out", ranks(1, 4));
  EXPECT_THAT(refused({"--resume_from_checkpoint", path("out/checkpoint-5")}),
              AllOf(HasSubstr("checkpoint-12"), HasSubstr("later than step 5")));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-12/optimizer.safetensors")));
}

// Like a run that was killed between its last save and the removal of the previous one.
TEST_F(TrainResume, ARunThatIsResumedAtItsLastStepKeepsNoMoreThanItsLimit) {
  run("out", ranks(1, 4));
  const Args again = ranks(1, 4) + Args{"--resume_from_checkpoint", "true", "--save_total_limit", "2"};
  run("out", again + Args{"--save_strategy", "no"});
  EXPECT_TRUE(fs::exists(path("out/checkpoint-5"))) << "a run that saves nothing removes nothing";
  run("out", again);
  EXPECT_FALSE(fs::exists(path("out/checkpoint-5")));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-10")));
  EXPECT_TRUE(fs::exists(path("out/checkpoint-12")));
}

// Without libtorch or a device.
TEST_F(TrainResume, CheckpointsAreListedAndDescribed) {
  const auto answer = [&](const Args& args) {
    RunningProcess process(Args{LAUNCH_PROGRAM, "checkpoint"} + args + Args{"--json"});
    EXPECT_EQ(process.wait(), 0) << process.err();
    return nlohmann::json::parse(process.out());
  };
  run("out", ranks(2, 4) + Args{"--tensor_model_parallel_size", "2"});
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

}  // namespace
}  // namespace concord::testing_processes
