// save_on_each_node: jobs of two launchers whose machines share no folder. Here both are on this one, each with its own
// output_dir.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>

#include "core/mesh/store/master_port.h"
#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int code;
  std::string out, err;
};

class EachNode : public TrainResume {
 protected:
  EachNode() { args_ = run_args("alone", {"--gradient_accumulation_steps", "2"}); }

  // Starts a machine of the job, with two ranks and the folder |out|.
  std::unique_ptr<TrainProgram> machine(int node, const std::string& out, const Args& more, const std::string& faults) {
    ProcessSettings settings{.environment = {"CONCORD_JOB_TOKEN=a text of more than sixteen characters"}};
    if (!faults.empty()) settings.environment.push_back("CONCORD_FAULTS=" + faults);
    const Args place = {"--nproc",
                        "2",
                        "--nnodes",
                        "2",
                        "--node_rank",
                        std::to_string(node),
                        "--master_addr",
                        "127.0.0.1",
                        "--master_port",
                        std::to_string(port_.port()),
                        "--output_dir",
                        path(out),
                        "--save_on_each_node"};
    return std::make_unique<TrainProgram>(args_ + place + more, settings);
  }
  // Runs both machines to the end, with the folders "first" and |second|.
  std::vector<Ended> run_machines(const Args& more, const std::string& faults = "",
                                  const std::string& second = "second") {
    auto one = machine(0, "first", more, faults), other = machine(1, second, more, faults);
    const int code = one->exit_code(), of_other = other->exit_code();
    return {{code, one->out(), one->err()}, {of_other, other->out(), other->err()}};
  }
  void expect_run(const Args& more, const std::string& faults = "") {
    for (const Ended& each : run_machines(more, faults)) ASSERT_EQ(each.code, 0) << each.err;
  }
  // Returns the error that both report.
  std::string refusal_of_both(const Args& more, const std::string& second = "second") {
    std::string said;
    for (const Ended& each : run_machines(more, "", second)) {
      EXPECT_GT(each.code, 0) << each.err;
      said += each.err;
    }
    return said;
  }
  void run_alone(const Args& more) {
    TrainProgram program(args_ + Args{"--nproc", "4"} + more);
    ASSERT_EQ(program.exit_code(), 0) << program.err();
  }
  static int concord(const Args& args) {
    RunningProcess process(Args{LAUNCH_PROGRAM} + args);
    const int status = process.wait();
    EXPECT_TRUE(WIFEXITED(status)) << process.err();
    return WEXITSTATUS(status);
  }
  // Each machine has a complete folder, written by its own ranks alone.
  void expect_whole_and_same(const std::string& name) {
    const std::string first = path("first/" + name), second = path("second/" + name);
    EXPECT_EQ(concord({"checkpoint", "verify", first}), 0) << first;
    EXPECT_EQ(concord({"checkpoint", "verify", second}), 0) << second;
    EXPECT_EQ(concord({"checkpoint", "diff", first, second}), 0) << name;
  }

  static void flip(const std::string& file, uint64_t place) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(place));
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(place));
    stream.put(byte);
  }

  const HeldPort port_;
  Args args_;
};

TEST_F(EachNode, SavesEverythingAndResumesFromWhatAllOfThemHave) {
  const Args tp = {"--tensor_model_parallel_size", "2"};
  run_alone(tp);
  expect_run(tp + Args{"--exit_interval", "7"});
  expect_whole_and_same("checkpoint-5");
  expect_whole_and_same("checkpoint-7");
  fs::remove_all(path("second/checkpoint-7"));
  const Args again = tp + Args{"--resume_from_checkpoint", "true"};
  const std::vector<Ended> resumed = run_machines(again);
  for (const Ended& each : resumed) ASSERT_EQ(each.code, 0) << each.err;
  EXPECT_THAT(resumed[0].out, AllOf(HasSubstr("first/checkpoint-5, after step 5"), HasSubstr("on each machine")));
  EXPECT_THAT(resumed[0].err,
              AllOf(HasSubstr("resumes from checkpoint-5, the newest checkpoint that all machines have"),
                    HasSubstr("checkpoint-7.not-on-all-machines")));
  EXPECT_TRUE(fs::exists(path("first/checkpoint-7.not-on-all-machines/manifest.json")));
  EXPECT_THAT(resumed[1].out, Not(HasSubstr("checkpoint-5"))) << "the first machine shows the progress";
  for (const char* each : {"first", "second"}) {
    expect_same_run("alone", each, 12);
    for (const char* file : {"trainer_state.json", "training_args.yaml", "report.html", "model/config.json"}) {
      EXPECT_TRUE(fs::exists(path(each) + "/" + file)) << each << " " << file;
    }
  }
  expect_whole_and_same("checkpoint-10");
  expect_whole_and_same("checkpoint-12");

  // Each machine verifies all of its own folder: the first tensor of the file is in one of the first parts.
  const std::string weights = bytes_of(path("second/checkpoint-12/model.safetensors"));
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  flip(path("second/checkpoint-12/model.safetensors"), sizeof header + header);
  EXPECT_THAT(refusal_of_both(again), HasSubstr("second/checkpoint-12 is damaged"));
  flip(path("second/checkpoint-12/model.safetensors"), sizeof header + header);

  // The same step of a different run, which would train two different models.
  fs::remove_all(path("second/checkpoint-12"));
  fs::copy(path("second/checkpoint-10"), path("second/checkpoint-12"), fs::copy_options::recursive);
  EXPECT_THAT(refusal_of_both(again), HasSubstr("other tensors on one machine"));
  fs::remove_all(path("second"));  // a new disk
  EXPECT_THAT(refusal_of_both(again),
              AllOf(HasSubstr("no checkpoint that all machines have"), HasSubstr("has those of the steps 5, 10, 12")));
  EXPECT_TRUE(fs::exists(path("first/checkpoint-12")));
}

// Without tensor parallelism, in the training type, synchronously; the best checkpoint is kept in addition to the
// latest.
TEST_F(EachNode, KeepsTheBestAndTheNewestAfterARestart) {
  args_ = run_args("alone",
                   {"--bf16", "--save_total_limit", "1", "--load_best_model_at_end", "--eval_data", path("data.jsonl"),
                    "--eval_strategy", "steps", "--eval_steps", "5", "--async_save", "false", "--learning_rate", "1"});
  run_alone({});
  expect_run({"--max_restarts", "1", "--memory_checkpoint_steps", "0"}, "kill:3@7+0");
  const auto names = [&](const std::string& out) {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(path(out))) found.insert(entry.path().filename().string());
    return found;
  };
  std::set<std::string> expected = names("alone");
  for (const char* each : {"first", "second"}) {
    expect_same_run("alone", each, 12);
    EXPECT_EQ(names(each), expected);
  }
  expect_whole_and_same("checkpoint-12");
}

TEST_F(EachNode, RefusesWhatItCannotWrite) {
  const auto refusal_of_first = [&](const Args& more) {
    auto one = machine(0, "first", more, "");
    EXPECT_EQ(one->exit_code(), 2);
    return one->err();
  };
  EXPECT_THAT(refusal_of_first({"--tensor_model_parallel_size", "4"}),
              AllOf(HasSubstr("machine 0 (ranks 0-1) has 2 of the 4 parts of the model"),
                    HasSubstr("tensor_model_parallel_size 4"), HasSubstr("save_on_each_node to false")));
  EXPECT_THAT(refusal_of_first({"--use_distributed_optimizer"}), HasSubstr("set use_distributed_optimizer to false"));
  EXPECT_THAT(refusal_of_both({}, "first"),
              AllOf(HasSubstr("is the same folder on the machine of rank"), HasSubstr("save_on_each_node to false")));
  EXPECT_FALSE(fs::exists(path("first/metrics.jsonl")));
}

// Does not wait for a machine that will not join.
TEST_F(EachNode, AFolderThatOneMachineRefusesEndsTheJobOnAll) {
  fs::create_directories(path("second/checkpoint-5"));  // unrelated contents
  for (const Ended& each : run_machines({})) {
    EXPECT_EQ(each.code, 2);
    EXPECT_THAT(each.err,
                AllOf(HasSubstr("second' contains"), HasSubstr("not written by Concord"), HasSubstr("(rank 2)")));
  }
  EXPECT_FALSE(fs::exists(path("first/metrics.jsonl")));
}

}  // namespace
}  // namespace concord::testing_processes
