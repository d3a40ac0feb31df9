// Background saves: ranks are threads, each with the threads that write its part, from host memory and from that of a
// device of the cpu platform.
#include "core/checkpoint/write/chunk_writer.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "core/base/background_task.h"
#include "core/checkpoint/write/staging_buffers.h"
#include "core/safetensors/index.h"
#include "core/safetensors/testing/files.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using safetensors::testing::message_of;
using ::testing::HasSubstr;

constexpr int64_t kRanks = 2, kElements = 1000, kAtOnce = 64;  // elements per rank and per chunk

Device test_device() { return Device(open_platform("cpu"), 0); }

// --------------------------------------------------------------------------------------------------------- the task

TEST(BackgroundTask, RunsOneAfterAnotherAndKeepsAnErrorForItsOwner) {
  BackgroundTask task;
  EXPECT_FALSE(task.is_running());
  int numbers = 0;
  for (int i = 0; i < 3; ++i) task.start([&numbers, i] { numbers = 10 * numbers + i; });
  task.join();
  EXPECT_EQ(numbers, 12);
  EXPECT_NO_THROW(task.rethrow());
  task.start([] { throw std::runtime_error("a full disk"); });
  while (task.is_running()) std::this_thread::yield();
  EXPECT_TRUE(task.has_failed()) << "known as soon as the task does not run any more";
  task.join();
  EXPECT_EQ(message_of<std::runtime_error>([&] { task.rethrow(); }), "a full disk");
  task.start([] {});
  task.join();
  EXPECT_TRUE(task.has_failed()) << "a later task does not hide it";
}

// --------------------------------------------------------------------------------------------------------- the save

SavePlan plan_of_all() {
  return plan_save({"model"}, {{list_text({{"w", safetensors::DType::kF32, {kRanks, kElements}}})}}, 1 << 30, 0);
}

float value_of(int64_t rank, int64_t element) { return static_cast<float>(rank * kElements + element); }

// One rank of a job: memory that its training changes, and the writer of its part.
class SavingRank {
 public:
  SavingRank(int64_t rank, const std::string& folder, const SavePlan& plan, int64_t limit)
      : rank_(rank), files_(folder, plan), writer_(files_, device_, kAtOnce * 4, limit) {
    for (int64_t i = 0; i < kElements; ++i) values_.push_back(value_of(rank, i));
    if (rank == 0) files_.create();
  }
  ~SavingRank() { writer_.abandon(); }

  // Like SaveJob: |on_host|, or as from a device, where the values are complete only some time after the call.
  void save(bool on_host, bool copies) {
    const Stream stream(device_);
    if (!on_host) {
      std::fill(values_.begin(), values_.end(), -1.0f);
      stream.launch_host([](void* self) { static_cast<SavingRank*>(self)->compute(); }, this);
      writer_.read_after(stream);
    }
    task_.start([this] {
      try {
        writer_.write(2);
      } catch (...) {
        writer_.abandon();
        throw;
      }
      files_.finish(rank_);
    });
    writer_.pass_on(chunks(on_host), copies);
    stream.synchronize();                                          // after an abandoned save compute() may still run
    if (copies) std::fill(values_.begin(), values_.end(), -7.0f);  // the next training step
  }
  void abandon() { writer_.abandon(); }
  // Rethrows the error of the threads.
  void finish() {
    task_.join();
    task_.rethrow();
  }
  const SaveFiles& files() const { return files_; }

 private:
  void compute() {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (int64_t i = 0; i < kElements; ++i) values_[static_cast<size_t>(i)] = value_of(rank_, i);
  }
  std::vector<SaveChunk> chunks(bool on_host) const {
    std::vector<SaveChunk> chunks;
    for (int64_t begin = 0; begin < kElements; begin += kAtOnce) {
      const int64_t count = std::min(kAtOnce, kElements - begin);
      SaveChunk chunk{.set = 0, .runs = {{.tensor = "w", .count = count, .offset = rank_ * kElements + begin}}};
      chunk.runs.front().run_length = chunk.runs.front().run_stride = count;
      chunk.data = reinterpret_cast<const std::byte*>(values_.data() + begin);
      chunk.element_size = sizeof(float);
      chunk.bytes = count * static_cast<int64_t>(sizeof(float));
      chunk.on_host = on_host;
      chunks.push_back(std::move(chunk));
    }
    return chunks;
  }

  const int64_t rank_;
  const Device device_ = test_device();
  std::vector<float> values_;
  SaveFiles files_;
  ChunkWriter writer_;
  BackgroundTask task_;
};

void expect_saved(const std::string& folder, const SavePlan& plan, const SaveFiles& files) {
  EXPECT_EQ(files.collect({0, kRanks}).bytes, plan.total_bytes);
  const safetensors::Reader reader(folder + "/model.safetensors");
  const auto bytes = reader.data(reader.at("w"));
  std::vector<float> found(kRanks * kElements), expected;
  ASSERT_EQ(bytes.size(), found.size() * sizeof(float));
  std::memcpy(found.data(), bytes.data(), bytes.size());
  for (int64_t i = 0; i < kRanks * kElements; ++i) expected.push_back(static_cast<float>(i));
  EXPECT_EQ(found, expected);
}

// The memory limit allows one copy at a time, some, or all.
TEST(ChunkWriter, WritesWhatWasThereWhileTheTrainingGoesOn) {
  for (const bool on_host : {true, false}) {
    for (const bool copies : {true, false}) {
      for (const int64_t limit : {1, 700, 1 << 20}) {
        const tests::TemporaryFolder folder;
        const SavePlan plan = plan_of_all();
        SavingRank first(0, folder.path(), plan, limit), second(1, folder.path(), plan, limit);
        {
          const std::jthread other([&] { second.save(on_host, copies); });
          first.save(on_host, copies);
        }
        first.finish();
        second.finish();
        expect_saved(folder.path(), plan, first.files());
      }
    }
  }
}

// The folder does not exist, so no thread can open its file. The copies, which wait for memory, stop too.
TEST(ChunkWriter, AThreadThatFailsStopsTheOthersAndTheCopies) {
  for (const bool on_host : {true, false}) {
    const tests::TemporaryFolder folder;
    const SavePlan plan = plan_of_all();
    SavingRank rank(1, folder.path() + "/elsewhere", plan, 1);
    rank.save(on_host, true);
    EXPECT_THAT(message_of<std::runtime_error>([&] { rank.finish(); }), HasSubstr("/elsewhere"));
  }
}

TEST(ChunkWriter, EndsWhereItIsAbandoned) {
  for (const bool on_host : {true, false}) {
    const tests::TemporaryFolder folder;
    const SavePlan plan = plan_of_all();
    SavingRank rank(0, folder.path(), plan, 1);
    {
      const std::jthread other([&] { rank.abandon(); });
      rank.save(on_host, true);
    }
    EXPECT_NO_THROW(rank.finish());
  }
}

// --------------------------------------------------------------------------------------------------- from a device

SaveChunk chunk_of(const std::vector<std::byte>& bytes) {
  SaveChunk chunk;
  chunk.data = bytes.data();
  chunk.bytes = static_cast<int64_t>(bytes.size());
  chunk.on_host = false;
  return chunk;
}

TEST(PinnedStagingBuffers, GivesChunksInTheirOrderWhileTheNextOneIsFetched) {
  const Device device = test_device();
  for (const int64_t chunk_bytes : {int64_t{1000}, kChunkBytes}) {
    std::vector<std::vector<std::byte>> chunks;
    for (const int64_t size : {int64_t{1}, chunk_bytes, int64_t{500}, chunk_bytes - 1, int64_t{77}, int64_t{64}})
      chunks.emplace_back(static_cast<size_t>(size), std::byte(1 + chunks.size()));
    for (const int64_t ahead : {1, 2}) {
      const Event nothing_to_wait_for(device);
      PinnedStagingBuffers landing(device, nothing_to_wait_for, chunk_bytes);
      size_t begun = 0;
      for (const std::vector<std::byte>& chunk : chunks) {
        for (; landing.under_way() < ahead && begun < chunks.size(); ++begun) landing.begin(chunk_of(chunks[begun]));
        const std::byte* const found = landing.finish();
        EXPECT_EQ(std::memcmp(chunk.data(), found, chunk.size()), 0) << chunk.size();
      }
      EXPECT_EQ(landing.under_way(), 0);
    }
  }
}

// The values are written 50 ms after the call.
struct Late {
  std::vector<std::byte> bytes = std::vector<std::byte>(1000, std::byte{1});

  Event start(const Stream& stream) {
    stream.launch_host(
        [](void* self) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          auto& late = static_cast<Late*>(self)->bytes;
          std::fill(late.begin(), late.end(), std::byte{2});
        },
        this);
    Event written(stream.device());
    written.record(stream);
    return written;
  }
};

TEST(PinnedStagingBuffers, WaitsForTheCopyThatItReads) {
  const Device device = test_device();
  const Stream stream(device);
  Late late;
  const Event written = late.start(stream);
  PinnedStagingBuffers landing(device, written, 1000);
  landing.begin(chunk_of(late.bytes));
  const std::byte* const found = landing.finish();
  EXPECT_EQ(std::count(found, found + 1000, std::byte{2}), 1000);
}

// An abandoned save: the sanitizers detect copies into freed memory.
TEST(PinnedStagingBuffers, KeepsItsMemoryUntilCopiesInFlightHaveEnded) {
  const Device device = test_device();
  const Stream stream(device);
  Late late;
  const Event written = late.start(stream);
  {
    PinnedStagingBuffers landing(device, written, 1000);
    landing.begin(chunk_of(late.bytes));
  }
  EXPECT_TRUE(written.done());
}

}  // namespace
}  // namespace concord
