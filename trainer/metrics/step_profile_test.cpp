// The rows of a device in a profile, from a table of activities that the test fills.
#include "trainer/metrics/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/mesh/initialize.h"
#include "platform/loader/host.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A device that has done |done|, in the plugin's words.
struct FakeDevice {
  std::vector<concord_activity> done;
  int64_t dropped = 0;
  concord_status start_status = CONCORD_STATUS_OK;
  std::vector<std::string> calls;

  static concord_status start(void* self) {
    auto* device = static_cast<FakeDevice*>(self);
    device->calls.push_back("start");
    loader::set_error_detail("there is no CUPTI");
    return device->start_status;
  }
  static concord_status stop(void* self, concord_activity_function visit, void* user, int64_t* out_dropped) {
    auto* device = static_cast<FakeDevice*>(self);
    device->calls.push_back("stop");
    for (const concord_activity& activity : device->done) visit(user, &activity);
    *out_dropped = device->dropped;
    return CONCORD_STATUS_OK;
  }
  DeviceActivities activities() {
    return {concord_activity_table{{sizeof(concord_activity_table), 1, 3}, this, &start, &stop},
            [this] { calls.push_back("synchronize"); }};
  }
};

int64_t now_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class StepProfileOfADevice : public ::testing::Test {
 protected:
  // The events of steps 1 and 2 by their names, and the names of the rows.
  void profile() {
    TrainingArguments arguments;
    arguments.output.dir = folder_.path();
    arguments.logging.profile = true;
    arguments.logging.profile_step_start = 0;
    arguments.logging.profile_step_end = 2;
    StepTimers timers(job_, 0, TimingLogOption::max);
    StepProfile steps(arguments, 0, 1, timers, device_.activities());
    begin_ = now_ns();
    for (int64_t done = 0; done < 3; ++done) {
      steps.begin_step(done);
      if (done == 0) queue(begin_);
      steps.end_step(done);
    }
    std::ifstream file(folder_ / "profile/rank_0.json");
    const auto trace = nlohmann::json::parse(file);
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event["name"] == "thread_name") {
        rows_[event["tid"].get<int64_t>()] = event["args"]["name"].get<std::string>();
      } else if (event["ph"] == "X") {
        events_[event["name"].get<std::string>()] = event;
      }
    }
  }
  void queue(int64_t begin) {
    const auto add = [&](concord_activity_kind kind, int64_t stream, const char* name, int64_t from, int64_t to) {
      device_.done.push_back({sizeof(concord_activity), kind, 0, 0, stream, name, begin + from, begin + to});
    };
    add(CONCORD_ACTIVITY_KERNEL, 7, "void gemm<\"a\">", 1000, 5500);
    add(CONCORD_ACTIVITY_COPY, 13, "copy", 2000, 3000);
    add(CONCORD_ACTIVITY_KERNEL, 7, "softmax", 6000, 6001);
  }

  ParallelContext& job_ = initialize({});
  tests::TemporaryFolder folder_;
  FakeDevice device_;
  int64_t begin_ = 0;
  std::map<std::string, nlohmann::json> events_;
  std::map<int64_t, std::string> rows_;
};

TEST_F(StepProfileOfADevice, HasItsWorkInARowForEachStreamOnTheHostsAxis) {
  device_.dropped = 5;
  ::testing::internal::CaptureStderr();
  profile();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("5 more spans are left out"));
  EXPECT_THAT(device_.calls, ElementsAre("synchronize", "start", "synchronize", "stop"));
  const nlohmann::json gemm = events_.at("void gemm<\"a\">"), copy = events_.at("copy"), last = events_.at("softmax");
  EXPECT_EQ(gemm["cat"], "kernel");
  EXPECT_EQ(copy["cat"], "copy");
  EXPECT_EQ(rows_.at(gemm["tid"].get<int64_t>()), "device 0, stream 7");
  EXPECT_EQ(rows_.at(copy["tid"].get<int64_t>()), "device 0, stream 13");
  EXPECT_EQ(last["tid"], gemm["tid"]);
  EXPECT_DOUBLE_EQ(gemm["dur"].get<double>(), 4.5);
  const double rounding = 0.002;  // error of the difference of two numbers with three decimals
  EXPECT_NEAR(copy["ts"].get<double>() - gemm["ts"].get<double>(), 1.0, rounding);
  // The first step begins after begin_ was read and before the device did anything that is said to be after begin_.
  EXPECT_LE(gemm["ts"].get<double>(), 1.0 + rounding);
  EXPECT_GT(events_.count("step 1") + events_.count("step 2"), 1u);
  EXPECT_EQ(events_.count("step 3"), 0u);
}

TEST_F(StepProfileOfADevice, ThatCannotTellIsThatOfTheHostAndSaysWhy) {
  device_.start_status = CONCORD_STATUS_UNAVAILABLE;
  ::testing::internal::CaptureStderr();
  profile();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("no kernels of the device: there is no CUPTI"));
  EXPECT_THAT(device_.calls, ElementsAre("synchronize", "start"));
  EXPECT_TRUE(rows_.empty());
  EXPECT_EQ(events_.count("step 2"), 1u);
}

}  // namespace
}  // namespace concord
