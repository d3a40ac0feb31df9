// Saves and loads in chunks: many small chunks give the same bytes as one, and tensors beyond the default sizes are
// complete. Parameters are on the device of the platform that the program runs on.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/read/machine_copies.h"
#include "core/checkpoint/testing/sample_parameters.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write/save_job.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

namespace fs = std::filesystem;
using concord::testing::SampleParameters;
using concord::testing::stage_specs;
using safetensors::testing::read_file;
using ::testing::HasSubstr;

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

// Makes |job| appear to be on machines with |ranks| ranks each. Returns the machine of this rank.
int64_t split_into_machines(const ParallelContext& job, const std::vector<int64_t>& ranks) {
  int64_t machine = 0, first = 0;
  while (job.rank() >= first + ranks[static_cast<size_t>(machine)]) first += ranks[static_cast<size_t>(machine++)];
  set_variable("LOCAL_RANK", std::to_string(job.rank() - first));
  set_variable("LOCAL_WORLD_SIZE", std::to_string(ranks[static_cast<size_t>(machine)]));
  return machine;
}

// A job whose machines have one folder each, |folder|/<machine>.
class MachineFolders {
 public:
  MachineFolders(ParallelContext& job, const std::string& folder, const std::vector<int64_t>& ranks)
      : job_(job), folder_(folder), machine_(split_into_machines(job, ranks)) {}

  std::string copy_of(int64_t machine) const { return folder_ + "/" + std::to_string(machine) + "/copy"; }
  std::string merged() const { return folder_ + "/" + std::to_string(machine_) + "/merged"; }

  void save(const SampleParameters& sample, int64_t chunk_bytes) {
    SaveJob(copy_of(machine_), sample.list, job_,
            {.with_config = false,
             .overwrite = true,
             .manifest = true,
             .memory_limit = 1,
             .replicated = true,
             .chunk_bytes = chunk_bytes},
            SaveJob::Source::live)
        .wait();
  }
  // Runs |change| on one rank, between other calls of all ranks.
  void change(const std::function<void()>& change) {
    job_.world_group().barrier().wait();
    if (job_.rank() == 0) change();
    job_.world_group().barrier().wait();
  }
  void lose(int64_t machine) {
    change([&] { fs::remove_all(copy_of(machine)); });
  }
  bool merge(int64_t chunk_bytes) { return merge_copies(copy_of(machine_), merged(), job_, chunk_bytes); }
  std::string refusal() {
    return safetensors::testing::message_of<std::runtime_error>([&] { merge(kChunkBytes); });
  }
  void expect_merged(const std::string& whole, int64_t chunk_bytes) {
    EXPECT_TRUE(merge(chunk_bytes));
    EXPECT_TRUE(contents(merged()) == contents(whole)) << "machine " << machine_ << " in chunks of " << chunk_bytes;
  }

 private:
  ParallelContext& job_;
  const std::string folder_;
  const int64_t machine_;
};

const HfSaveOptions kWhole{.with_config = false, .overwrite = true, .manifest = true};

// Stages of different sizes. With two machines each has everything; with three each has two stages.
TEST(MachineCopies, OfAnySizeAreMergedToTheSameBytesAfterALoss) {
  const TemporaryFolder folder;
  write_sample_folder(folder / "first");
  for (const std::vector<int64_t>& ranks : {std::vector<int64_t>{2, 1}, {1, 2}, {1, 1, 1}}) {
    expect_job(3, {.pipeline_model_parallel_size = 3}, [&](ParallelContext& job) {
      MachineFolders machines(job, folder.path(), ranks);
      const SampleParameters sample = read_sample(job, folder / "first");
      save_hf_weights(folder / "whole", sample.list, job, kWhole);
      for (int64_t lost = 0; lost < static_cast<int64_t>(ranks.size()); ++lost) {
        for (const int64_t bytes : {52, 1000, 5000}) {
          if (bytes == 52 && lost > 0) continue;  // hundreds of chunks, each with three collective operations
          machines.save(sample, bytes);
          machines.lose(lost);
          machines.expect_merged(folder / "whole", bytes);
        }
      }
      machines.lose(0);
      EXPECT_FALSE(machines.merge(kChunkBytes)) << "two neighbours are lost";
    });
  }
}

// Replicas divide their elements, and each has another part of every tensor.
TEST(MachineCopies, HaveTheSharesOfReplicas) {
  const TemporaryFolder folder;
  write_sample_folder(folder / "first");
  expect_job(4, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    MachineFolders machines(job, folder.path(), {1, 1, 1, 1});
    const SampleParameters sample = read_sample(job, folder / "first");
    save_hf_weights(folder / "whole", sample.list, job, kWhole);
    machines.save(sample, 1000);
    machines.lose(0);
    machines.lose(2);
    machines.expect_merged(folder / "whole", 1000);
  });
}

TEST(MachineCopies, OfAnotherSaveDoNotCount) {
  const TemporaryFolder folder;
  write_sample_folder(folder / "first");
  expect_job(3, {.pipeline_model_parallel_size = 3}, [&](ParallelContext& job) {
    MachineFolders machines(job, folder.path(), {1, 1, 1});
    const SampleParameters sample = read_sample(job, folder / "first");
    machines.save(sample, 1000);
    machines.change([&] { fs::rename(machines.copy_of(1), folder / "earlier"); });
    const at::NoGradGuard no_grad;
    sample.list[0]->value.add_(1);
    machines.save(sample, 1000);
    machines.lose(0);
    machines.change([&] {
      fs::remove_all(machines.copy_of(1));
      fs::rename(folder / "earlier", machines.copy_of(1));
    });
    EXPECT_FALSE(machines.merge(kChunkBytes));
    EXPECT_FALSE(fs::exists(machines.merged()));
  });
}

// Overwrites the bytes at |place| of |file| with |bytes|.
void overwrite(const std::string& file, uint64_t place, const std::string& bytes) {
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(static_cast<std::streamoff>(place))
      << bytes;
}

TEST(MachineCopies, ThatAreDamagedAreRefusedWithTheReason) {
  const TemporaryFolder folder;
  write_sample_folder(folder / "first");
  expect_job(2, {.pipeline_model_parallel_size = 2}, [&](ParallelContext& job) {
    MachineFolders machines(job, folder.path(), {1, 1});
    const SampleParameters sample = read_sample(job, folder / "first");
    const std::string copy = machines.copy_of(1), file = copy + "/model.safetensors";
    const auto refusal = [&](const std::function<void()>& damage) {
      machines.save(sample, 1000);
      machines.lose(0);
      machines.change(damage);
      return machines.refusal();
    };
    EXPECT_THAT(refusal([&] { fs::resize_file(file, fs::file_size(file) - 1); }), HasSubstr("but the manifest says"));
    EXPECT_THAT(refusal([&] { fs::resize_file(file, fs::file_size(file) + 1); }), HasSubstr("but the manifest says"));
    EXPECT_THAT(refusal([&] { fs::remove(file); }), HasSubstr("cannot be opened"));
    EXPECT_THAT(refusal([&] {
                  const std::string whole = read_file(file);
                  overwrite(file, whole.size() - 1, std::string(1, static_cast<char>(whole.back() ^ 1)));
                }),
                HasSubstr("has the checksum"));
    EXPECT_THAT(refusal([&] { overwrite(file, 0, std::string(8, '\xff')); }), HasSubstr("its header cannot be read"));
    EXPECT_THAT(refusal([&] { overwrite(file, 9, "x"); }), HasSubstr("its header has the checksum"));
    EXPECT_THAT(refusal([&] { overwrite(copy + "/manifest.json", 0, "x"); }), HasSubstr("manifest.json"));
    EXPECT_THAT(refusal([&] { overwrite(copy + "/machine.json", 0, "x"); }), HasSubstr("machine.json"));
    EXPECT_THAT(refusal([&] {  // a name that leads out of the folder
                  const std::string manifest = copy + "/manifest.json";
                  overwrite(manifest, read_file(manifest).find("\"model") + 1, "../el");
                }),
                HasSubstr("'../el.safetensors'; must be another file in the same folder"));
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

// One stage per rank, so that each rank's data exceeds the default size.
TEST(MachineCopies, BeyondTheDefaultSizeAreMerged) {
  const TemporaryFolder folder;
  expect_job(2, {.pipeline_model_parallel_size = 2}, [&](ParallelContext& job) {
    MachineFolders machines(job, folder.path(), {1, 1});
    ShardSpec own = kLarge;
    own.name += std::to_string(job.rank());
    const SampleParameters sample({own}, ShardPlace{}, at::kFloat, job.torch_device());
    fill_with_numbers(sample);
    save_hf_weights(folder / "whole", sample.list, job, kWhole);
    machines.save(sample, kChunkBytes);
    machines.lose(0);
    machines.expect_merged(folder / "whole", kChunkBytes);
  });
}

}  // namespace
}  // namespace concord::tests
