// Saves and loads in chunks: many small chunks give the same bytes as one, and tensors beyond the default sizes are
// complete. Parameters are on the device of the platform that the program runs on.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/testing/sample_parameters.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write/replicated_save.h"
#include "core/checkpoint/write/save_job.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

namespace fs = std::filesystem;
using concord::testing::SampleParameters;
using concord::testing::stage_specs;
using safetensors::testing::read_file;

// Returns the content of all files, by name.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = read_file(entry.path());
  return files;
}

// Returns the sample's parameters with the values of the file in |folder|: adjacent elements differ.
SampleParameters read_sample(const ParallelContext& job, const std::string& folder, const HfLoadOptions& options = {}) {
  const ShardPlace place = shard_place(job.layout(), job.rank());
  SampleParameters sample(stage_specs(job.coordinates().pp, job.layout().pp()), place, at::kFloat, job.torch_device());
  load_hf_weights(folder, sample.list, place, options);
  return sample;
}

void write_sample_folder(const std::string& folder) {
  fs::create_directory(folder);
  concord::testing::write_sample(folder + "/model.safetensors", stage_specs(0, 1));
}

// Several chunks per row, several rows per chunk, more than a tensor; none divides all shards.
constexpr int64_t kSmallChunks[] = {52, 1000, 5000};

TEST(SaveChunks, OfAnySizeGiveTheSameBytes) {
  const TemporaryFolder folder;
  const std::string whole = folder / "whole", first = folder / "first";
  write_sample_folder(first);
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = read_sample(job, first);
    save_hf_weights(whole, sample.list, job, {.manifest = true});
    for (const SaveJob::Source source : {SaveJob::Source::live, SaveJob::Source::copy}) {
      for (const int64_t bytes : kSmallChunks) {
        const HfSaveOptions options{.overwrite = true, .manifest = true, .memory_limit = 100, .chunk_bytes = bytes};
        SaveJob(folder / "chunks", sample.list, job, options, source).wait();
        if (job.rank() == 0) {
          EXPECT_TRUE(contents(folder / "chunks") == contents(whole)) << bytes;
        }
        job.world_group().barrier().wait();
      }
    }
  });
}

TEST(LoadWindows, OfAnySizeGiveTheSameValues) {
  const TemporaryFolder folder;
  const std::string first = folder / "first";
  write_sample_folder(first);
  expect_job(2, {}, [&](ParallelContext& job) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {  // copied, and converted
      for (const int64_t tp : {1, 2}) {
        const ShardPlace place{{{{tp, tp - 1}, {}, {}}}};
        const SampleParameters expected(stage_specs(0, 1), place, type, job.torch_device()),
            found(stage_specs(0, 1), place, type, job.torch_device());
        load_hf_weights(first, expected.list, place);
        for (const int64_t bytes : {100, 1000, 5000}) {
          load_hf_weights(first, found.list, place, {.sharing = tp == 1 ? &job : nullptr, .window_bytes = bytes});
          for (size_t i = 0; i < found.list.size(); ++i) {
            EXPECT_TRUE(found.list[i]->value.equal(expected.list[i]->value)) << found.list[i]->spec.name << bytes;
            const at::NoGradGuard no_grad;
            found.list[i]->value.fill_(777);
          }
        }
      }
    }
  });
}

// ------------------------------------------------------------------------------------------------- between machines

// Makes |job| appear to be on two machines, of which the first has |ranks|. Returns the machine of this rank.
int64_t split_into_machines(const ParallelContext& job, int64_t ranks) {
  const int64_t machine = job.rank() < ranks ? 0 : 1;
  set_variable("LOCAL_RANK", std::to_string(job.rank() - machine * ranks));
  set_variable("LOCAL_WORLD_SIZE", std::to_string(machine == 0 ? ranks : job.world() - ranks));
  return machine;
}

// Saves parts, removes those of the machine |lost|, gathers and assembles them: the file equals that of the save
// |whole|.
void lose_and_gather(ParallelContext& job, const SampleParameters& sample, const std::string& folder, int64_t machine,
                     int64_t lost, int64_t chunk_bytes) {
  const std::string own = folder + "/" + std::to_string(machine), parts = own + "/parts";
  save_replicated(parts, sample.list, job, {.with_config = false, .chunk_bytes = chunk_bytes}, nullptr);
  job.world_group().barrier().wait();
  if (job.rank() == 0) {
    const auto a = contents(folder + "/0/parts"), b = contents(folder + "/1/parts");
    for (const auto& [name, bytes] : a) {
      EXPECT_TRUE(!b.contains(name) || bytes == b.at(name)) << name << " differs on another machine";
    }
    fs::remove_all(folder + "/" + std::to_string(lost) + "/parts");
  }
  job.world_group().barrier().wait();
  EXPECT_TRUE(fetch_missing_shards(parts, job, chunk_bytes));
  assemble_parts(parts, own + "/assembled", job);
  EXPECT_TRUE(contents(own + "/assembled") == contents(folder + "/whole"))
      << "machine " << machine << " in chunks of " << chunk_bytes;
  job.world_group().barrier().wait();
}

// Parts of different lengths, of two ranks on the first machine and of one on the second.
TEST(PartChunks, OfAnySizeMoveWholePartsBetweenMachines) {
  const TemporaryFolder folder;
  write_sample_folder(folder / "first");
  expect_job(3, {.pipeline_model_parallel_size = 3}, [&](ParallelContext& job) {
    const int64_t machine = split_into_machines(job, 2);
    const SampleParameters sample = read_sample(job, folder / "first");
    save_hf_weights(folder / "whole", sample.list, job, {.with_config = false});
    for (const int64_t lost : {0, 1}) {
      for (const int64_t bytes : {1000, 5000}) lose_and_gather(job, sample, folder.path(), machine, lost, bytes);
    }
  });
}

// ----------------------------------------------------------------------------------------------- the default sizes

// 16.8 MB in one row: more than a chunk of a save (16 MiB), a window of a load (8 MiB) and a piece of a check (4 MiB).
const ShardSpec kLarge{.name = "w", .dims = {{4'200'000}}, .replicated_over = {GroupKind::tp, GroupKind::dp_cp}};

void fill_with_numbers(const SampleParameters& sample) {
  const at::NoGradGuard no_grad;
  const at::Tensor& value = sample.parameters[0].value;
  value.copy_(at::arange(value.numel(), at::kFloat));  // exact: below 2^24
}

TEST(SaveChunks, ATensorBeyondTheDefaultSizesIsSavedVerifiedAndLoaded) {
  const TemporaryFolder folder;
  expect_job(1, {}, [&](ParallelContext& job) {
    const SampleParameters sample({kLarge}, ShardPlace{}, at::kFloat, job.torch_device());
    ASSERT_GT(static_cast<int64_t>(sample.parameters[0].value.nbytes()), kChunkBytes);
    fill_with_numbers(sample);
    for (const SaveJob::Source source : {SaveJob::Source::live, SaveJob::Source::copy}) {
      SaveJob(folder / "large", sample.list, job, {.overwrite = true, .manifest = true}, source).wait();
      EXPECT_TRUE(verify_checkpoint(folder / "large").empty());
      const SampleParameters loaded({kLarge}, ShardPlace{}, at::kFloat, job.torch_device());
      load_hf_weights(folder / "large", loaded.list, ShardPlace{});
      EXPECT_TRUE(loaded.parameters[0].value.equal(sample.parameters[0].value));
    }
  });
}

// One stage per rank, so that each rank's part exceeds the default size.
TEST(PartChunks, APartBeyondTheDefaultSizeMovesBetweenMachines) {
  const TemporaryFolder folder;
  expect_job(2, {.pipeline_model_parallel_size = 2}, [&](ParallelContext& job) {
    const int64_t machine = split_into_machines(job, 1);
    ShardSpec own = kLarge;
    own.name += std::to_string(job.rank());
    const SampleParameters sample({own}, ShardPlace{}, at::kFloat, job.torch_device());
    fill_with_numbers(sample);
    save_hf_weights(folder / "whole", sample.list, job, {.with_config = false});
    lose_and_gather(job, sample, folder.path(), machine, 0, kChunkBytes);
  });
}

}  // namespace
}  // namespace concord::tests
