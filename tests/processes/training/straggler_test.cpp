// Jobs in which one rank is slow, and their reports. The slow rank sleeps several times as long as a step takes, so the
// verdicts hold on a busy machine too.
#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/processes/groups/group_job.h"
#include "tests/temporary_folder.h"
#include "trainer/pretrain.h"

namespace concord {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::milliseconds kDelay{30};  // per step

// Makes a rank slow; not used on the other ranks. The loader prefetches in parallel with the steps, so slow data starts
// to sleep for a step when the previous one has ended: long steps cannot hide it.
class Slowness : public TrainerCallback {
 public:
  explicit Slowness(RankActivity activity) : activity_(activity) {}
  void on_step_begin(const TrainerState&, TrainerControl&) override {
    if (activity_ == RankActivity::compute) std::this_thread::sleep_for(kDelay);
  }
  void on_step_end(const TrainerState& state, TrainerControl&) override {
    const std::lock_guard lock(mutex_);
    steps_done_ = state.global_step;
    changed_.notify_all();
  }
  NamedTexts checkpoint_files(const TrainerState&) override {
    if (activity_ == RankActivity::saving) std::this_thread::sleep_for(5 * kDelay);  // every fifth step
    return {};
  }
  // The loader's thread reads the sample of step |number|.
  void on_read(int64_t number) {
    if (activity_ != RankActivity::data) return;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return steps_done_ + 1 >= number; });
    std::this_thread::sleep_for(kDelay);
  }

 private:
  RankActivity activity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t steps_done_ = 0;
};

// Samples of 8 tokens, one per step.
class Samples : public SampleSource {
 public:
  explicit Samples(std::shared_ptr<Slowness> slowness) : slowness_(std::move(slowness)) {}
  int64_t size() const override { return 1000; }
  Sample at(int64_t index) const override {
    if (slowness_) slowness_->on_read(++read_);
    Sample sample;
    for (int64_t i = 0; i < 8; ++i) sample.ids.push_back((index + 7 * i) % 300);
    sample.labels = sample.ids;
    return sample;
  }
  int64_t length(int64_t) const override { return 8; }
  const std::string& name() const override { return name_; }

 private:
  std::shared_ptr<Slowness> slowness_;
  mutable std::atomic<int64_t> read_ = 0;
  std::string name_ = "samples";
};

class StragglerJob : public testing::Test {
 protected:
  // 5 warm-up steps, then two windows of 10. Returns the output of rank 0.
  std::string run(int world, int slow_rank, RankActivity slow, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--model_config",
                                      std::string(CONCORD_GOLDEN) + "/hf/qwen2-tiny/config.json",
                                      "--train_data",
                                      "samples",  // made above
                                      "--output_dir",
                                      folder_ / "out",
                                      "--max_steps",
                                      "25",
                                      "--logging_steps",
                                      "5",
                                      "--per_device_train_batch_size",
                                      "1"};
    words.insert(words.end(), more.begin(), more.end());
    const int port = tests::free_port();
    const auto outcomes = tests::run_ranks(world, [&](int rank) {
      tests::enter_job(rank, world, port);
      const auto slowness = rank == slow_rank ? std::make_shared<Slowness>(slow) : nullptr;
      Providers providers;
      providers.datasets = [&](const TrainingArguments&) {
        return Datasets{.train = std::make_unique<Samples>(slowness), .eval = nullptr};
      };
      RunOptions options;
      if (slowness) options.callbacks = {slowness};
      run_training(parse_command_line(words).arguments, providers, options);
    });
    for (const tests::Outcome& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.describe();
    for (size_t rank = 1; rank < outcomes.size(); ++rank)
      EXPECT_THAT(outcomes[rank].output, Not(HasSubstr("slower than its peers"))) << "only rank 0 says it";
    return outcomes[0].output;
  }
  std::vector<json> lines(const std::string& name) const {
    std::ifstream file(folder_ / ("out/" + name));
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::string text(const std::filesystem::path& path) const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::vector<std::string> no_saving_ = {"--save_strategy", "no"};
  tests::TemporaryFolder folder_;
};

// Among three ranks only the slow one can be reported: each of the others has it among its peers.
TEST_F(StragglerJob, ARankThatComputesLongerIsNamedAndShownInAllReports) {
  const std::string said = run(3, 1, RankActivity::compute, no_saving_);
  EXPECT_THAT(said, ContainsRegex("rank 1 is [0-9]+ % slower than its peers \\(compute: [0-9]+ ms per step against "
                                  "[0-9.]+ ms\\); steps 6 to 25"));
  EXPECT_EQ(said.find("slower than its peers"), said.rfind("slower than its peers")) << said;

  const auto metrics = lines("metrics.jsonl");
  ASSERT_EQ(metrics.size(), 5u);
  EXPECT_FALSE(metrics[0].contains("slowest_rank")) << "the first steps are not measured";
  EXPECT_EQ(metrics.back().at("slowest_rank"), 1);
  EXPECT_GT(metrics.back().at("slowest_rank_ratio"), 1.1);
  for (const char* name : {"rank_compute_seconds", "rank_data_seconds", "rank_saving_seconds"})
    EXPECT_TRUE(metrics.back().at(name).is_number()) << name;
  EXPECT_GT(metrics.back().at("rank_communication_seconds"), 0) << "the others wait for rank 1";

  const auto times = lines("rank_times.jsonl");
  ASSERT_EQ(times.size(), 4u);
  EXPECT_EQ(times.back().at("first_step"), 21);
  EXPECT_EQ(times.back().at("step"), 25);
  EXPECT_GE(times.back().at("compute").at(1), 5e-3 * static_cast<double>(kDelay.count()));
  EXPECT_LT(times.back().at("communication").at(1), times.back().at("communication").at(0));
  EXPECT_LT(times.back().at("communication").at(1), times.back().at("communication").at(2));

  EXPECT_THAT(text(folder_ / "out/report.html"), HasSubstr("\"ranks\":{\"rank\":[0,1,2],\"first\":[6,11,16,21],"));
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out/runs")) events += text(entry.path());
  EXPECT_THAT(events, HasSubstr("train/slowest_rank_ratio"));
}

TEST_F(StragglerJob, ARankThatWaitsForItsDataIsNamedForThat) {
  EXPECT_THAT(run(3, 2, RankActivity::data, no_saving_), ContainsRegex("rank 2 is [0-9]+ % slower.*\\(data: "));
}

TEST_F(StragglerJob, ARankThatIsHeldUpBySavingIsNamedForThat) {
  EXPECT_THAT(run(3, 1, RankActivity::saving, {"--save_steps", "5", "--save_total_limit", "1"}),
              ContainsRegex("rank 1 is [0-9]+ % slower.*\\(saving: "));
}

TEST_F(StragglerJob, InAPipelineARankIsComparedWithThoseOfItsStage) {
  const std::string said =
      run(4, 3, RankActivity::compute,
          {"--save_strategy", "no", "--pipeline_model_parallel_size", "2", "--gradient_accumulation_steps", "2"});
  EXPECT_THAT(said, ContainsRegex("rank 3 is [0-9]+ % slower.*\\(compute: "));
  EXPECT_EQ(lines("rank_times.jsonl").back().at("stages"), json({0, 0, 1, 1}));
}

TEST_F(StragglerJob, NothingIsSaidWithTheActionNone) {
  EXPECT_THAT(run(2, 1, RankActivity::compute, {"--save_strategy", "no", "--straggler_action", "none"}),
              Not(HasSubstr("slower than its peers")));
  EXPECT_EQ(lines("metrics.jsonl").back().at("slowest_rank"), 1);
}

}  // namespace
}  // namespace concord
