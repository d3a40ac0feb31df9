// Signals that ask a run to end, in each of its phases: it exits in time, with the exit code documented in --help.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "core/launch/processes/zygote_process.h"
#include "tests/free_port.h"
#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Returns whether a process of this machine listens at |port|.
bool listens(uint16_t port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool connected = connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(file);
  return connected;
}

class TrainStop : public Train, public ::testing::WithParamInterface<int> {
 protected:
  bool is_training() { return fs::exists(path("out/metrics.jsonl")) && read_steps(path("out")).size() > 2; }
  std::vector<std::string> endless(const std::vector<std::string>& more) {
    std::vector<std::string> all = train_args({"--nproc", "2", "--max_steps", "1000000", "--save_steps", "900000"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Returns the processes of the job that have a rank.
  std::vector<pid_t> ranks() {
    std::vector<pid_t> found;
    for (const pid_t pid : processes_with(path("out"))) {
      std::ifstream environment("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
      const std::string text(std::istreambuf_iterator<char>(environment), {});
      std::string name;
      std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
      if (name != kZygoteName && text.find(std::string("\0RANK=", 6)) != std::string::npos) found.push_back(pid);
    }
    return found;
  }
};

TEST_P(TrainStop, WhileItTrainsItSavesAndEndsWithTheSignalsExitCode) {
  TrainProgram program(endless({}));
  ASSERT_TRUE(poll_until([&] { return is_training(); })) << program.err();
  program.process().signal(GetParam());
  EXPECT_EQ(program.exit_code(), 128 + GetParam()) << program.err();
  EXPECT_TRUE(fs::exists(path("out/model/model.safetensors")));
  EXPECT_TRUE(all_gone(path("out")));
}

// The signal goes to one rank, not to the launcher: all ranks stop.
TEST_P(TrainStop, OneRankIsEnough) {
  TrainProgram program(endless({}));
  ASSERT_TRUE(poll_until([&] { return is_training(); })) << program.err();
  const std::vector<pid_t> found = ranks();
  ASSERT_EQ(found.size(), 2u);
  kill(found.back(), GetParam());
  EXPECT_EQ(program.exit_code(), 128 + GetParam()) << program.err();
  EXPECT_TRUE(fs::exists(path("out/model/model.safetensors")));
}

// An evaluation that would take a while.
TEST_P(TrainStop, AnEvaluationIsAbandoned) {
  TrainProgram program(endless({"--eval_data", write_jsonl(path("eval.jsonl"), 20000), "--eval_strategy", "steps",
                                "--eval_steps", "3", "--per_device_eval_batch_size", "1"}));
  ASSERT_TRUE(poll_until([&] { return is_training(); })) << program.err();
  program.process().signal(GetParam());
  EXPECT_EQ(program.exit_code(), 128 + GetParam()) << program.err();
  EXPECT_EQ(read_lines(path("out/eval_metrics.jsonl")).size(), 0u);
  EXPECT_TRUE(fs::exists(path("out/model/model.safetensors")));
}

// Rank 1 never joins: rank 0 waits for it before training starts, and has nothing to save. With a token the store has a
// port, which shows that rank 0 waits.
TEST_P(TrainStop, DuringStartUpItEndsAtOnce) {
  const auto port = static_cast<uint16_t>(tests::free_port());
  TrainProgram program(train_args({}), {.environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                                                        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port),
                                                        "CONCORD_JOB_TOKEN=0123456789abcdef0123456789abcdef"}});
  ASSERT_TRUE(poll_until([&] { return listens(port); })) << program.err();
  program.process().signal(GetParam());
  EXPECT_EQ(program.exit_code(), 128 + GetParam()) << program.err();
  EXPECT_FALSE(fs::exists(path("out")));
}

// Rank 1 has met rank 0, which is ready to train, and does not know it yet: the sixth event.record is the call after
// the barrier. It exits at once, and rank 0 loses it: after its own signal, or before.
TEST_P(TrainStop, BeforeAllRanksAreReadyTheyExitWithTheSameCode) {
  const std::string port = std::to_string(tests::free_port());
  const auto start = [&](const std::string& rank, const std::vector<std::string>& more) {
    std::vector<std::string> environment = {"RANK=" + rank,
                                            "LOCAL_RANK=" + rank,
                                            "WORLD_SIZE=2",
                                            "LOCAL_WORLD_SIZE=2",
                                            "MASTER_ADDR=127.0.0.1",
                                            "MASTER_PORT=" + port,
                                            "CONCORD_JOB_TOKEN=0123456789abcdef0123456789abcdef",
                                            "CONCORD_FLIGHT_FOLDER=" + folder_.path()};
    environment.insert(environment.end(), more.begin(), more.end());
    return std::make_unique<TrainProgram>(train_args({}), ProcessSettings{.environment = environment});
  };
  for (const bool loses_it_before : {false, true}) {
    const auto first = start("0", {});
    const auto second = start("1", {"CONCORD_LAYERS=fault", "CONCORD_FAULT=event.record@6=delay:600s"});
    const auto is_ready = [&] { return fs::exists(path("out/metrics.jsonl")) || first->process().has_ended(); };
    ASSERT_TRUE(poll_until(is_ready)) << first->err() << second->err();
    if (!loses_it_before) first->process().signal(GetParam());
    second->process().signal(GetParam());
    EXPECT_EQ(second->exit_code(), 128 + GetParam()) << second->err();
    if (loses_it_before) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2000));  // enough to notice the loss
      first->process().signal(GetParam());
    }
    EXPECT_EQ(first->exit_code(), 128 + GetParam()) << loses_it_before << first->err();
    EXPECT_FALSE(fs::exists(path("out/model")));
    fs::remove_all(path("out"));
  }
}

// The launcher's process that forks ranks, or the first rank, has not loaded its libraries, and does not handle signals
// yet.
TEST_P(TrainStop, WhileRanksAreStartedItEndsAtOnce) {
  for (const char* start : {"fork", "exec"}) {
    TrainProgram program(endless({}), {.environment = {std::string("CONCORD_RANK_START=") + start}});
    const auto has_started_one = [&] { return processes_with(path("out")).size() > 2; };  // besides it and its guard
    ASSERT_TRUE(poll_until(has_started_one)) << program.err();
    program.process().signal(GetParam());
    EXPECT_EQ(program.exit_code(), 128 + GetParam()) << start << program.err();
    EXPECT_FALSE(fs::exists(path("out")));
    EXPECT_TRUE(all_gone(path("out")));
  }
}

// All steps are done and the model is being written, which a large tokenizer file makes slow enough to be interrupted.
// Under a launcher, and as the only process.
TEST_P(TrainStop, TheFinalSaveIsFinished) {
  constexpr uintmax_t kBytes = 200 << 20;
  fs::copy(kTinyModel, path("large"));
  std::ofstream(path("large/tokenizer.extra")).close();
  fs::resize_file(path("large/tokenizer.extra"), kBytes);
  const auto is_writing = [&] {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(path("out"), ignored)) {
      if (entry.path().filename().string().starts_with("model.tmp-")) return true;
    }
    return false;
  };
  for (const char* nproc : {"2", "1"}) {
    TrainProgram program(train_args({"--model", path("large"), "--nproc", nproc}));
    ASSERT_TRUE(poll_until(is_writing)) << program.err();
    program.process().signal(GetParam());
    EXPECT_EQ(program.exit_code(), 128 + GetParam()) << program.err();
    EXPECT_EQ(fs::file_size(path("out/model/tokenizer.extra")), kBytes);
    EXPECT_FALSE(is_writing());
    EXPECT_TRUE(all_gone(path("out")));
    fs::remove_all(path("out"));
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, TrainStop, ::testing::Values(SIGTERM, SIGINT, SIGHUP),
                         [](const auto& test) { return std::string(sigabbrev_np(test.param)); });

// A rank that hangs prevents the others from finishing their step: the time limit ends them, and the launcher the rest.
TEST_F(TrainStop, AHungRankIsNotWaitedForLongerThanTheGraceTime) {
  TrainProgram program(endless({"--exit_signal_grace", "1"}));
  ASSERT_TRUE(poll_until([&] { return is_training(); })) << program.err();
  const std::vector<pid_t> found = ranks();
  ASSERT_EQ(found.size(), 2u);
  kill(found.back(), SIGSTOP);
  program.process().signal(SIGTERM);
  EXPECT_EQ(program.exit_code(), 1) << program.err();
  EXPECT_THAT(program.err(), HasSubstr("exit_signal_grace"));
  EXPECT_TRUE(all_gone(path("out")));
}

TEST_F(TrainStop, ASecondSigtermEndsAHungJobAtOnce) {
  TrainProgram program(endless({"--exit_signal_grace", "100000"}));
  ASSERT_TRUE(poll_until([&] { return is_training(); })) << program.err();
  const std::vector<pid_t> found = ranks();
  ASSERT_EQ(found.size(), 2u);
  kill(found.back(), SIGSTOP);
  program.process().signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // sooner it would count as the same signal
  program.process().signal(SIGTERM);
  EXPECT_EQ(program.exit_code(), 1) << program.err();
  EXPECT_TRUE(all_gone(path("out")));
}

}  // namespace
}  // namespace concord::testing_processes
