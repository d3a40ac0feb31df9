// Threads that write the chunks of several ranks: every byte once, checksums of whole tensors, bounded memory.
#include "core/checkpoint/write/save_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "core/checkpoint/crc32.h"
#include "core/safetensors/index.h"
#include "core/safetensors/testing/files.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using safetensors::DType;
using safetensors::TensorShape;
using safetensors::testing::message_of;

constexpr int64_t kRows = 60, kColumns = 40;

std::vector<TensorShape> tensors() {
  return {{"w", DType::kF32, {kRows, kColumns}}, {"zeros", DType::kF32, {64}}, {"b", DType::kF32, {100}}};
}

SavePlan sample_plan() { return plan_save({"model"}, {{list_text(tensors())}}, 5000, 0); }

std::vector<float> numbers(int64_t count) {
  std::mt19937 random(7);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random());
  return values;
}

// Returns the chunks of rank |rank| of two: half of the columns of w, half of b.
std::vector<SaveChunk> chunks_of(int rank, const std::vector<float>& w, const std::vector<float>& b) {
  const int64_t half = kColumns / 2;
  std::vector<SaveChunk> chunks;
  const auto add = [&](const ShardRun& run, const std::vector<float>& values) {
    auto* const copy = new float[values.size()];
    std::memcpy(copy, values.data(), values.size() * sizeof(float));
    SaveChunk chunk{.set = 0, .runs = {run}, .data = reinterpret_cast<const std::byte*>(copy), .element_size = 4};
    chunk.bytes = static_cast<int64_t>(values.size() * sizeof(float));
    chunk.owner = std::shared_ptr<const float[]>(copy);
    chunks.push_back(std::move(chunk));
  };
  for (int64_t row = 0; row < kRows; row += 4) {
    std::vector<float> part;
    for (int64_t i = row; i < row + 4; ++i) {
      const auto* begin = w.data() + i * kColumns + rank * half;
      part.insert(part.end(), begin, begin + half);
    }
    add({.tensor = "w",
         .count = 4 * half,
         .offset = row * kColumns + rank * half,
         .run_length = half,
         .run_stride = kColumns},
        part);
  }
  add({.tensor = "b", .count = 50, .offset = rank * 50, .run_length = 50, .run_stride = 50},
      {b.begin() + rank * 50, b.begin() + rank * 50 + 50});
  if (rank == 1) {
    add({.tensor = "zeros", .count = 64, .offset = 0, .run_length = 64, .run_stride = 64}, std::vector<float>(64));
  }
  return chunks;
}

// Like SaveJob: one thread passes chunks on, three write them.
void write_rank(SaveFiles* files, int rank, std::vector<SaveChunk> chunks, int64_t limit) {
  ChunkQueue queue(limit);
  std::atomic<int64_t> held = 0, most = 0;
  std::vector<std::jthread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      while (const std::optional<SaveChunk> chunk = queue.pop()) {
        files->write(*chunk, chunk->data);
        held -= chunk->reserved;
        queue.release(chunk->reserved);
      }
    });
  }
  for (SaveChunk& chunk : chunks) {
    ASSERT_TRUE(queue.reserve(chunk.bytes));
    held += chunk.bytes;
    most = std::max(most.load(), held.load());
    chunk.reserved = chunk.bytes;
    std::vector<SaveChunk> one(1);
    one.front() = std::move(chunk);
    queue.push(std::move(one));
  }
  queue.close();
  writers.clear();
  EXPECT_LE(most, std::max<int64_t>(limit, 4 * kColumns / 2 * 4)) << "or one chunk";
  files->finish(rank);
}

TEST(SaveFiles, ThreadsOfAllRanksWriteEveryByteWithItsChecksum) {
  const std::vector<float> w = numbers(kRows * kColumns), b = numbers(100);
  for (const int64_t limit : {1, 700, 1 << 20}) {
    const tests::TemporaryFolder folder;
    const SavePlan plan = sample_plan();
    ASSERT_GT(plan.sets[0].folder.files.size(), 1u);
    SaveFiles first(folder.path(), plan), second(folder.path(), plan);
    {
      const std::jthread other([&] { write_rank(&second, 1, chunks_of(1, w, b), limit); });
      first.create();
      write_rank(&first, 0, chunks_of(0, w, b), limit);
    }
    const WrittenTensors written = first.collect({0, 2});
    EXPECT_EQ(written.bytes, plan.total_bytes);
    Manifest manifest;
    first.describe(written, &manifest);
    for (const auto& [name, values] : {std::pair("w", w), {"b", b}, {"zeros", std::vector<float>(64)}}) {
      const std::string& file = plan.sets[0].folder.file_of.at(name);
      const safetensors::Reader reader(folder.path() + "/" + file);
      const auto bytes = reader.data(reader.at(name));
      EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0) << name;
      EXPECT_EQ(manifest.files.at(file).tensors.at(name), crc32(std::as_bytes(std::span(values)))) << name;
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}),
              static_cast<int64_t>(plan.sets[0].folder.files.size()))
        << "what the ranks told each other is gone";
  }
}

TEST(SaveFiles, MissingBytesAndForeignPartsAreErrors) {
  const std::vector<float> w = numbers(kRows * kColumns), b = numbers(100);
  const tests::TemporaryFolder folder;
  const SavePlan plan = sample_plan();
  SaveFiles files(folder.path(), plan);
  files.create();
  write_rank(&files, 0, chunks_of(0, w, b), 1 << 20);
  const WrittenTensors written = files.collect({0, 1});
  Manifest manifest;
  EXPECT_THAT(message_of<std::runtime_error>([&] { files.describe(written, &manifest); }),
              ::testing::HasSubstr("but it needs"));
  for (const char* text : {"12\n99 00000001\n", "x\n", "12", "12\n0\n"}) {
    safetensors::testing::write_file(folder.path() + "/.concord-part-0", text);
    EXPECT_THAT(message_of<std::runtime_error>([&] { files.collect({0, 1}); }),
                ::testing::HasSubstr("was changed by another process"))
        << text;
  }
}

// Two machines, each with a rank and a copy of the other one's data: both have everything, and count it once.
TEST(SaveFiles, CopiesAreWrittenAndNotCounted) {
  const std::vector<float> w = numbers(kRows * kColumns), b = numbers(100);
  const SavePlan plan = sample_plan();
  WrittenTensors sum;
  for (const int machine : {0, 1}) {
    const tests::TemporaryFolder folder;
    SaveFiles files(folder.path(), plan);
    files.create(/*reserves=*/false);
    for (SaveChunk& copy : chunks_of(1 - machine, w, b)) {
      copy.is_copy = true;
      files.write(copy, copy.data);
    }
    write_rank(&files, 0, chunks_of(machine, w, b), 1 << 20);
    sum.add(files.collect({0, 1}));
    const std::string& file = plan.sets[0].folder.file_of.at("w");
    const safetensors::Reader reader(folder.path() + "/" + file);
    const auto bytes = reader.data(reader.at("w"));
    EXPECT_EQ(std::memcmp(bytes.data(), w.data(), bytes.size()), 0);
    if (machine == 0) continue;
    Manifest manifest;
    files.describe(sum, &manifest);
    EXPECT_EQ(manifest.files.at(file).tensors.at("w"), crc32(std::as_bytes(std::span(w))));
  }
}

TEST(SaveFiles, HolesTakeNoSpace) {
  const tests::TemporaryFolder folder;
  constexpr int64_t kBytes = 64 << 20;
  const SavePlan plan = plan_save({"model"}, {{list_text({{"w", DType::kI8, {kBytes}}})}}, 1 << 30, 0);
  SaveFiles(folder.path(), plan).create(/*reserves=*/false);
  struct stat state{};
  ASSERT_EQ(::stat((folder.path() + "/model.safetensors").c_str(), &state), 0);
  EXPECT_GT(state.st_size, kBytes);
  EXPECT_LT(state.st_blocks * 512, 1 << 20);
}

// Chunks are copied faster than they are written. A chunk larger than the limit is copied alone.
TEST(ChunkQueue, CopiesTakeNoMoreThanTheLimit) {
  ChunkQueue queue(100);
  std::atomic<int64_t> taken = 0;
  std::jthread writer([&] {
    while (const std::optional<SaveChunk> chunk = queue.pop()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      taken -= chunk->reserved;
      queue.release(chunk->reserved);
    }
  });
  for (int i = 0; i < 5; ++i) {
    for (const int64_t bytes : {60, 40, 30, 250, 100, 1}) {
      ASSERT_TRUE(queue.reserve(bytes));
      EXPECT_LE(taken += bytes, std::max<int64_t>(100, bytes));
      SaveChunk chunk;
      chunk.reserved = bytes;
      queue.push({chunk});
    }
  }
  queue.close();
}

TEST(ChunkQueue, WhoWaitsIsToldThatItIsAbandoned) {
  ChunkQueue queue(10);
  ASSERT_TRUE(queue.reserve(10));
  std::vector<std::jthread> waiting;
  std::atomic<int> ended = 0;
  waiting.emplace_back([&] { ended += queue.reserve(1) ? 0 : 1; });
  waiting.emplace_back([&] { ended += queue.pop() ? 0 : 1; });
  queue.abandon();
  waiting.clear();
  EXPECT_EQ(ended, 2);
}

// Two allocations may be adjacent in memory: CUDA then rejects a copy that spans both.
TEST(PlanCopies, JoinsNeighboursWithinAnAllocationOnly) {
  std::array<std::byte, 4096> memory{};
  const int first = 0, second = 0;  // two allocations
  const auto chunk = [&](int64_t begin, int64_t bytes, const void* allocation) {
    SaveChunk made;
    made.data = memory.data() + begin;
    made.allocation = allocation;
    made.bytes = bytes;
    made.on_host = false;
    return made;
  };
  std::vector<SaveChunk> chunks = {chunk(0, 1000, &first), chunk(1000, 24, &first), chunk(1024, 100, &second),
                                   chunk(1124, 100, &second), chunk(512, 10, &second)};
  chunks.insert(chunks.begin() + 2, SaveChunk());  // on the host
  int64_t bytes = 0;
  std::vector<int64_t> offsets;
  EXPECT_THAT(plan_copies(chunks, 64, &bytes, &offsets),
              ::testing::ElementsAre(ChunkCopy{memory.data(), 0, 1024}, ChunkCopy{memory.data() + 1024, 1024, 200},
                                     ChunkCopy{memory.data() + 512, 1280, 10}));
  EXPECT_THAT(offsets, ::testing::ElementsAre(0, 1000, -1, 1024, 1124, 1280));
  EXPECT_EQ(bytes, 1290);
}

}  // namespace
}  // namespace concord
