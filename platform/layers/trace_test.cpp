#include "platform/layers/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "platform/loader/error.h"
#include "tests/abi/sample_tables.h"

namespace concord::layers {
namespace {

using nlohmann::json;
using sample::call;
using testing::HasSubstr;

struct Never {
  static inline bool done = true;
  static concord_status query(void*, concord_event, int32_t* out_done) {
    *out_done = done ? 1 : 0;
    return CONCORD_STATUS_OK;
  }
};

class TraceLayer : public testing::Test {
 protected:
  TraceLayer() {
    std::string name = (std::filesystem::temp_directory_path() / "concord-trace-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    below_ = sample::tables_of(plugin_);
    below_.event.query = &Never::query;
    Never::done = true;
  }
  ~TraceLayer() override {
    file_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string path(const char* name = "trace.json") const { return (folder_ / name).string(); }

  void start() {
    file_ = std::make_unique<TraceFile>(path());
    layer_ = std::make_unique<Trace>(below_, *file_);
    tables_ = interpose(layer_.get());
  }

  static json read(const std::string& file) {
    std::ifstream stream(file);
    return json::parse(stream);  // throws if it is not JSON
  }
  // The events called |name| once everything is written.
  std::vector<json> events(const std::string& name) {
    file_->finish();
    std::vector<json> found;
    for (const json& event : read(file_->path())) {
      if (event.at("name") == name) found.push_back(event);
    }
    return found;
  }

  std::filesystem::path folder_;
  sample::Plugin plugin_{{"sample", -1, 2}};
  loader::Tables below_{};
  loader::Tables tables_{};
  std::unique_ptr<TraceFile> file_;
  std::unique_ptr<Trace> layer_;
};

TEST_F(TraceLayer, EveryCallIsASliceWithItsArgumentsAndResults) {
  start();
  concord_stream stream = nullptr;
  const double before = TraceFile::now();
  call<&concord_stream_table::create>(tables_, 1, 0, &stream);
  const double after = TraceFile::now();
  const std::vector<json> slices = events("stream.create");
  ASSERT_EQ(slices.size(), 1u);
  const json& slice = slices[0];
  EXPECT_EQ(slice.at("ph"), "X");
  EXPECT_EQ(slice.at("cat"), "stream");
  EXPECT_EQ(slice.at("pid"), getpid());
  EXPECT_EQ(slice.at("tid"), gettid());
  EXPECT_GE(slice.at("ts").get<double>(), before - 0.001);
  EXPECT_LE(slice.at("ts").get<double>() + slice.at("dur").get<double>(), after + 0.002);
  EXPECT_EQ(slice.at("args").at("device"), 1);
  EXPECT_THAT(slice.at("args").at("stream").get<std::string>(), HasSubstr("0x"));
  EXPECT_EQ(slice.at("args").count("status"), 0u);
  call<&concord_stream_table::destroy>(tables_, stream);
}

TEST_F(TraceLayer, FailedCallKeepsItsSentenceForTheCallerAndShowsItInTheTrace) {
  start();
  const sample::Answer answer = call<&concord_device_table::set_current>(tables_, 9);
  EXPECT_EQ(answer.status, CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(answer.detail, "device 9 does not exist; there are 2");
  const json arguments = events("device.set_current").at(0).at("args");
  EXPECT_EQ(arguments.at("status"), "INVALID_ARGUMENT");
  EXPECT_EQ(arguments.at("detail"), "device 9 does not exist; there are 2");
}

TEST_F(TraceLayer, QueuedWorkIsAlsoASliceOnTheRowOfItsStream) {
  start();
  char memory[64];
  concord_stream stream = nullptr;
  call<&concord_stream_table::create>(tables_, 1, 0, &stream);
  call<&concord_memory_table::fill_on_stream>(tables_, memory, 7, int64_t{64}, stream);
  const std::vector<json> slices = events("memory.fill_on_stream");
  ASSERT_EQ(slices.size(), 2u);
  const json& host = slices[0].at("cat") == "memory" ? slices[0] : slices[1];
  const json& device = slices[0].at("cat") == "memory" ? slices[1] : slices[0];
  EXPECT_EQ(device.at("cat"), "device");
  EXPECT_NE(device.at("tid"), host.at("tid"));
  EXPECT_EQ(device.at("args").at("bytes"), 64);
  // The sample works inline: the device's slice encloses the host's, to a millisecond.
  EXPECT_NEAR(device.at("ts").get<double>(), host.at("ts").get<double>(), 1e3);
  bool named = false;
  for (const json& row : events("thread_name")) {
    named |= row.at("tid") == device.at("tid") &&
             row.at("args").at("name").get<std::string>().find("sample device 1, stream 0x") == 0;
  }
  EXPECT_TRUE(named);
  call<&concord_stream_table::destroy>(tables_, stream);
}

TEST_F(TraceLayer, NoDeviceSlicesWithoutTimedEvents) {
  below_.core.capability_count = 0;
  start();
  char memory[64];
  call<&concord_memory_table::fill_on_stream>(tables_, memory, 7, int64_t{64}, nullptr);
  EXPECT_EQ(events("memory.fill_on_stream").size(), 1u);
}

TEST_F(TraceLayer, WorkThatNeverEndsIsBoundedAndCountedAsLeftOut) {
  start();
  Never::done = false;
  char memory[64];
  const int calls = static_cast<int>(Timeline::kMaxPending) + 100;
  for (int i = 0; i < calls; ++i) {
    call<&concord_memory_table::fill_on_stream>(tables_, memory, 7, int64_t{64}, nullptr);
  }
  EXPECT_EQ(events("memory.fill_on_stream").size(), static_cast<size_t>(calls)) << "host slices alone";
  EXPECT_EQ(events("device slices dropped").at(0).at("args").at("count"), calls);
}

TEST_F(TraceLayer, ThreadsLoseNoEventsAndTheFileStaysJson) {
  start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 3000; ++i) {
        int32_t count = 0;
        call<&concord_device_table::count>(tables_, &count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(events("device.count").size(), 12000u);
}

TEST_F(TraceLayer, FileIsValidJsonFromTheFirstMomentAndAfterEachFlush) {
  start();
  EXPECT_TRUE(read(path()).is_array());
  int32_t count = 0;
  size_t before = 0;
  for (int round = 0; round < 3; ++round) {
    call<&concord_device_table::count>(tables_, &count);
    file_->finish();
    const size_t now = read(path()).size();
    EXPECT_GT(now, before);
    before = now;
  }
}

// Repairs the file that SIGKILL in the middle of a write leaves, as described in the header.
static std::string without_cut_line(std::string text) {
  if (json::accept(text)) return text;
  text.resize(text.rfind('\n'));
  if (text.back() == ',') text.pop_back();
  return text + "]";
}

static std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST_F(TraceLayer, ProcessKilledBetweenTwoWritesLeavesValidJson) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    start();
    int32_t count = 0;
    for (int i = 0; i < 20'000; ++i) call<&concord_device_table::count>(tables_, &count);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  EXPECT_GT(read(path()).size(), 1000u);
}

TEST_F(TraceLayer, WriteCutAtAnyByteLosesOnlyTheLastLine) {
  start();
  int32_t count = 0;
  for (int i = 0; i < 10; ++i) call<&concord_device_table::count>(tables_, &count);
  file_->finish();
  const size_t before = text_of(path()).size() - std::string_view("\n]\n").size();
  const size_t events = read(path()).size() - 1;
  for (int i = 0; i < 10; ++i) call<&concord_device_table::count>(tables_, &count);
  file_->finish();
  const std::string whole = text_of(path());
  for (size_t size = before; size <= whole.size(); ++size) {
    const json repaired = json::parse(without_cut_line(whole.substr(0, size)));
    EXPECT_GE(repaired.size(), events) << "cut after " << size << " of " << whole.size() << " bytes";
  }
}

TEST_F(TraceLayer, SecondFileOfTheSameNameGetsTheNumberOfItsProcess) {
  TraceFile first(path());
  TraceFile second(path());
  EXPECT_EQ(first.path(), path());
  EXPECT_EQ(second.path(), path(("trace-" + std::to_string(getpid()) + ".json").c_str()));
}

TEST_F(TraceLayer, FileThatCannotBeWrittenIsAnErrorWithItsName) {
  try {
    TraceFile file("/nowhere/trace.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the trace file '/nowhere/trace.json' cannot be written: No such file"));
  }
}

TEST_F(TraceLayer, ForkedProcessWritesAFileOfItsOwn) {
  start();
  int32_t count = 0;
  call<&concord_device_table::count>(tables_, &count);
  file_->lock_for_fork();
  const pid_t child = fork();
  if (child == 0) {
    file_->restart_in_child();
    call<&concord_device_table::count>(tables_, &count);
    call<&concord_device_table::count>(tables_, &count);
    _exit(events("device.count").size() == 2 ? 0 : 1);
  }
  file_->unlock_after_fork();
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(events("device.count").size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(path(("trace-" + std::to_string(child) + ".json").c_str())));
}

TEST(TraceText, AnyBytesMakeValidJson) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const json parsed = json::parse(json_string(all));
  EXPECT_TRUE(parsed.is_string());
  EXPECT_EQ(json::parse(json_string("a \"b\" \\ \n")), "a \"b\" \\ \n");
}

TEST(TraceText, WorkIsQueuedByOperationsAndNotByBookkeeping) {
  EXPECT_TRUE(queues_work(loader::Slot<&concord_comm_table::all_reduce>::kInfo));
  EXPECT_TRUE(queues_work(loader::Slot<&concord_memory_table::copy_on_stream>::kInfo));
  EXPECT_TRUE(queues_work(loader::Slot<&concord_rng_table::fill>::kInfo));
  EXPECT_FALSE(queues_work(loader::Slot<&concord_event_table::record>::kInfo));
  EXPECT_FALSE(queues_work(loader::Slot<&concord_stream_table::synchronize>::kInfo));
  EXPECT_FALSE(queues_work(loader::Slot<&concord_memory_table::release_on_stream>::kInfo));
  EXPECT_FALSE(queues_work(loader::Slot<&concord_memory_table::copy>::kInfo));
}

}  // namespace
}  // namespace concord::layers
