// Folders written by jobs of real processes: the same bytes from every layout, all or nothing.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/read/parallel_load.h"
#include "core/checkpoint/testing/sample_parameters.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write/save_job.h"
#include "core/mesh/agreement.h"
#include "core/mesh/store/store.h"
#include "core/safetensors/index.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/store_stranger.h"

namespace concord::tests {
namespace {

namespace fs = std::filesystem;
using concord::testing::SampleParameters;
using concord::testing::stage_specs;
using safetensors::testing::message_of;
using safetensors::testing::read_file;
using safetensors::testing::write_file;
using ::testing::HasSubstr;

SampleParameters parameters_of(const ParallelContext& job, at::ScalarType type = at::kFloat) {
  return {stage_specs(job.coordinates().pp, job.layout().pp()), shard_place(job.layout(), job.rank()), type};
}

// Returns the content of all files, by name.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = read_file(entry.path());
  return files;
}

// Runs a job that loads |from| and saves |to|.
void pass_on(int world, const InitializeArgs& args, const std::string& from, const std::string& to,
             const HfSaveOptions& options, at::ScalarType type = at::kFloat) {
  expect_job(world, args, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job, type);
    load_hf_weights(from, sample.list, shard_place(job.layout(), job.rank()));
    save_hf_weights(to, sample.list, job, options);
    EXPECT_TRUE(fs::exists(to)) << "it is there when the call returns";
  });
}

TEST(HfWeightsSave, GivesTheSameBytesFromEveryLayout) {
  const TemporaryFolder folder;
  const std::string first = folder.path() + "/first";
  fs::create_directory(first);
  concord::testing::write_sample(first + "/model.safetensors", stage_specs(0, 1));
  const HfSaveOptions options{.max_shard_bytes = 20'000, .config_json = "{}\n"};
  const struct {
    int world;
    InitializeArgs args;
  } jobs[] = {{1, {}},
              {2, {.tensor_model_parallel_size = 2}},
              {2, {}},  // two replicas
              {2, {.pipeline_model_parallel_size = 2}},
              {4, {.tensor_model_parallel_size = 4}},
              {4, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2}},
              {4, {.context_parallel_size = 2, .expert_model_parallel_size = 4}}};
  std::map<std::string, std::string> expected;
  std::string from = first;
  for (size_t i = 0; i < std::size(jobs); ++i) {
    const std::string to = folder.path() + "/" + std::to_string(i);
    pass_on(jobs[i].world, jobs[i].args, from, to, options);
    if (i == 0) {
      expected = files_of(to);
      EXPECT_GT(expected.size(), 4u) << "several files, index, config";
    } else {
      EXPECT_TRUE(files_of(to) == expected) << i;
    }
    from = to;
  }
  const safetensors::Weights before(first), after(from);
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& [name, tensor] : before.tensors()) {
    const safetensors::Weights::Tensor* other = after.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(other->info->shape, tensor.info->shape);
    EXPECT_TRUE(std::ranges::equal(other->file->data(*other->info), tensor.file->data(*tensor.info))) << name;
  }
}

// ------------------------------------------------------------------------------------------- read once, sent on

struct SharingJob {
  int world;
  InitializeArgs args;
};
const SharingJob kSharingJobs[] = {
    {2, {}},  // two replicas
    {3, {}},
    {2, {.context_parallel_size = 2}},
    {4, {.tensor_model_parallel_size = 2}},
    {4, {.pipeline_model_parallel_size = 2}},
    {4, {.expert_model_parallel_size = 2}},
    {4, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2, .expert_tensor_parallel_size = 1}},
    {2, {.tensor_model_parallel_size = 2}}};  // no replicas to share with

// Returns the bytes of fp32 that a rank has to read if each byte that its data-parallel group shares is read once.
double fair_bytes(const SampleParameters& sample, const ParallelContext& job) {
  double bytes = 0;
  for (const Parameter* parameter : sample.list) {
    const bool is_expert = parameter->spec.replicated_over.back() == GroupKind::edp;
    const auto group = job.layout().group_of(is_expert ? GroupKind::edp : GroupKind::dp_cp, job.rank());
    for (const ShardRun& run : shard_runs(parameter->spec, shard_place(job.layout(), job.rank())))
      bytes += static_cast<double>(run.count) * sizeof(float) / static_cast<double>(group->size());
  }
  return bytes;
}

TEST(HfWeightsShared, EveryByteIsReadOncePerDataParallelGroupAndArrivesEverywhere) {
  const TemporaryFolder folder;
  concord::testing::write_sample(folder.path() + "/model.safetensors", stage_specs(0, 1));
  for (const SharingJob& each : kSharingJobs) {
    expect_job(each.world, each.args, [&](ParallelContext& job) {
      const ShardPlace place = shard_place(job.layout(), job.rank());
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const SampleParameters alone = parameters_of(job, type), shared = parameters_of(job, type);
        const int64_t bytes_alone = load_hf_weights(folder.path(), alone.list, place);
        const int64_t bytes = load_hf_weights(folder.path(), shared.list, place, {.sharing = &job});
        for (size_t i = 0; i < alone.list.size(); ++i) {
          EXPECT_TRUE(alone.list[i]->value.equal(shared.list[i]->value)) << alone.list[i]->spec.name;
        }
        const auto thousandths =
            std::llround(1000 * fair_bytes(shared, job));  // thousandths of a byte, for the sum of fractions
        EXPECT_NEAR(static_cast<double>(all_reduce_scalar(job, bytes, ReduceOp::kSum)),
                    static_cast<double>(all_reduce_scalar(job, thousandths, ReduceOp::kSum)) / 1000, 0.1);
        EXPECT_LE(bytes, bytes_alone);
      }
    });
  }
}

// Returns the bytes that this process has read, as counted by the kernel.
int64_t bytes_of_reads() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  file >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

TEST(HfWeightsShared, TheKernelSeesEveryByteReadOnce) {
  const TemporaryFolder folder;
  const ShardSpec spec{.name = "w", .dims = {{1 << 10}, {1 << 10}}, .replicated_over = {GroupKind::dp_cp}};
  concord::testing::write_sample(folder.path() + "/model.safetensors", {spec});
  expect_job(4, {}, [&](ParallelContext& job) {
    const SampleParameters sample({spec}, ShardPlace{});
    for (const bool shares : {true, false}) {
      const int64_t before = bytes_of_reads();
      load_hf_weights(folder.path(), sample.list, ShardPlace{}, {.sharing = shares ? &job : nullptr});
      const int64_t own = bytes_of_reads() - before;
      EXPECT_NEAR(static_cast<double>(all_reduce_scalar(job, own, ReduceOp::kSum)), (shares ? 1 : 4) * (4 << 20),
                  1 << 18);
    }
  });
}

TEST(HfWeightsShared, AllRanksThrowWhereOneCannotOpenTheFiles) {
  const TemporaryFolder folder;
  concord::testing::write_sample(folder.path() + "/model.safetensors", stage_specs(0, 1));
  expect_job(2, {}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    const std::string from = folder.path() + (job.rank() == 1 ? "/elsewhere" : "");
    EXPECT_THAT(message_of<ConfigError>([&] {
                  load_hf_weights(from, sample.list, shard_place(job.layout(), job.rank()), {.sharing = &job});
                }),
                ::testing::AllOf(HasSubstr("/elsewhere"), HasSubstr("(rank 1)")));
  });
}

// Rounds of 256 bytes; rank 1 fails in its second one.
TEST(SharedRead, ARankThatFailsDoesNotKeepTheOthersWaiting) {
  expect_job(3, {}, [](ParallelContext& job) {
    const std::vector<at::Tensor> values = {at::zeros({500}), at::zeros({70}, at::kBFloat16), at::zeros({9})};
    const auto fill = [&](std::span<const ReadShard> pieces, std::byte* share) {
      for (const ReadShard& piece : pieces) {
        at::from_blob(share + piece.at, {piece.end - piece.begin}, values[piece.tensor].options())
            .copy_(at::arange(piece.begin, piece.end));
      }
    };
    ProcessGroup& group = job.world_group();
    EXPECT_EQ(read_and_all_gather(group, at::kCPU, values, fill, 256), nullptr);
    for (const at::Tensor& value : values) {
      EXPECT_TRUE(value.equal(at::arange(value.numel()).to(value.scalar_type())));
    }
    int rounds = 0;
    const std::exception_ptr error = read_and_all_gather(
        group, at::kCPU, values,
        [&](std::span<const ReadShard> pieces, std::byte* share) {
          if (++rounds == 2 && job.rank() == 1) throw std::runtime_error("a bad disk");
          fill(pieces, share);
        },
        256);
    EXPECT_EQ(error != nullptr, job.rank() == 1);
    EXPECT_EQ(rounds == 2, job.rank() == 1) << "it has stopped reading";
  });
}

TEST(HfWeightsSave, WritesTheTypeOfTheParameters) {
  const TemporaryFolder folder;
  concord::testing::write_sample(folder.path() + "/model.safetensors", stage_specs(0, 1));
  pass_on(2, {.tensor_model_parallel_size = 2}, folder.path(), folder.path() + "/half", {}, at::kBFloat16);
  const safetensors::Weights weights(folder.path() + "/half");
  EXPECT_EQ(weights.files().size(), 1u);
  for (const auto& [name, tensor] : weights.tensors()) EXPECT_EQ(tensor.info->dtype, safetensors::DType::kBF16);
  EXPECT_EQ(weights.find("model.embed_tokens.weight")->info->shape, (std::vector<int64_t>{50, 24})) << "no padding";
}

TEST(HfWeightsSave, CarriesTokenizerAndConfigsOver) {
  const TemporaryFolder folder;
  const std::string source = folder.path() + "/source";
  fs::create_directory(source);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "merges.txt", "model.safetensors", "README.md", "pytorch_model.bin"})
    write_file(source + "/" + name, name);
  std::string long_text;  // copied in several different pieces of 1 MiB
  for (int i = 0; i < 3'000'000; ++i) long_text += static_cast<char>('a' + i % 23);
  write_file(source + "/tokenizer.model", long_text);
  chmod((source + "/tokenizer.json").c_str(), 0400);
  expect_job(1, {}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(folder.path() + "/a", sample.list, job, {.source = source});
    save_hf_weights(folder.path() + "/b/", sample.list, job, {.config_json = "mine", .source = source});
  });
  const auto files = files_of(folder.path() + "/a");
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre("config.json", "generation_config.json", "merges.txt", "model.safetensors",
                                            "tokenizer.json", "tokenizer.model", "tokenizer_config.json"));
  EXPECT_EQ(files.at("tokenizer.json"), "tokenizer.json");
  EXPECT_TRUE(files.at("tokenizer.model") == long_text);
  EXPECT_EQ(files.at("config.json"), "config.json");
  EXPECT_EQ(read_file(folder.path() + "/b/config.json"), "mine");
}

TEST(HfWeightsSave, NamesAFileThatCannotBeCarriedOver) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder.path() + "/merges.txt").c_str(), 0600), 0);
  expect_job(1, {}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    const std::string words = message_of<ConfigError>(
        [&] { save_hf_weights(folder.path() + "/a", sample.list, job, {.source = folder.path()}); });
    EXPECT_THAT(words, HasSubstr("merges.txt: is not a regular file but a pipe"));
  });
}

TEST(HfWeightsSave, ReplacesAFolderOnlyWhereItIsAsked) {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/model";
  fs::create_directory(target);  // an empty folder may be filled
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(target, sample.list, job, {.config_json = "old"});
    const std::string words =
        message_of<ConfigError>([&] { save_hf_weights(target, sample.list, job, {.config_json = "new"}); });
    EXPECT_THAT(words, HasSubstr(target + ": already exists")) << "on all ranks";
    EXPECT_EQ(read_file(target + "/config.json"), "old");
  });
  write_file(target + "/leftover", "x");
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(target, sample.list, job, {.config_json = "new", .overwrite = true});
  });
  EXPECT_EQ(read_file(target + "/config.json"), "new");
  EXPECT_EQ(read_file(target + "/leftover"), "x") << "a file that no save wrote stays";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "no temporary folder is left";
}

TEST(HfWeightsSave, LeavesNothingWhereOneRankFails) {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/model";
  fs::create_directory(target);
  write_file(target + "/config.json", "old");
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    if (job.rank() == 1) fs::current_path("/");  // a relative folder: rank 1 does not see rank 0's
    if (job.rank() == 0) fs::current_path(folder.path());
    const SampleParameters sample = parameters_of(job);
    const std::string words =
        message_of<ConfigError>([&] { save_hf_weights("model", sample.list, job, {.overwrite = true}); });
    EXPECT_THAT(words, HasSubstr("was created by rank 0 but is not visible here"));
    EXPECT_THAT(words, HasSubstr("(rank 1)"));
  });
  EXPECT_EQ(read_file(target + "/config.json"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(HfWeightsSave, NamesATensorThatTwoRanksHaveInDifferentTypes) {
  const TemporaryFolder folder;
  expect_job(2, {.pipeline_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job, job.rank() == 0 ? at::kFloat : at::kBFloat16);
    const std::string words = message_of<ConfigError>([&] { save_hf_weights(folder.path() + "/m", sample.list, job); });
    EXPECT_THAT(words, HasSubstr("tensor model.embed_tokens.weight is [50, 24] in"));
  });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// ------------------------------------------------------------------------------------ in parallel with a training loop

// Advances the save like a training loop, once per step; returns the number of steps.
int finish_in_steps(SaveJob& save, ParallelContext& job) {
  int steps = 0;
  while (!save.is_done()) {
    ++steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t slowest = all_reduce_scalar(job, static_cast<int64_t>(save.progress()), ReduceOp::kMax);
    save.advance(static_cast<SaveJob::Progress>(slowest));
  }
  return steps;
}

void change(const SampleParameters& sample) {
  const at::NoGradGuard no_grad;
  for (const Parameter* parameter : sample.list) parameter->value.add_(1);
}

TEST(SaveJob, WritesWhatWasThereWhenItBegan) {
  const TemporaryFolder folder;
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(folder.path() + "/expected", sample.list, job, {.manifest = true});
    std::shared_ptr<const GlobalSavePlan> plan;
    for (const int64_t limit : {1, 1 << 30}) {  // room for one chunk at a time, and for all
      const SampleParameters own = parameters_of(job);
      const std::string target = folder.path() + "/" + std::to_string(limit);
      SaveJob save(target, own.list, job, {.manifest = true, .memory_limit = limit}, SaveJob::Source::copy, plan);
      change(own);
      EXPECT_GE(finish_in_steps(save, job), 2);
      EXPECT_TRUE(plan == nullptr || plan == save.plan()) << "it is made once";
      plan = save.plan();
    }
  });
  for (const char* name : {"/1", "/1073741824"}) {
    EXPECT_TRUE(files_of(folder.path() + name) == files_of(folder.path() + "/expected")) << name;
    EXPECT_TRUE(verify_checkpoint(folder.path() + name).empty()) << name;
  }
}

// Each rank has its own folder, as on machines that share none; older ones are removed when both exist.
TEST(SaveJob, WritesAWholeFolderOnEachMachine) {
  const TemporaryFolder folder;
  const std::string all = folder.path() + "/all", machines[] = {folder.path() + "/0", folder.path() + "/1"};
  expect_job(4, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(all, sample.list, job, {.manifest = true});
    const int64_t machine = job.rank() / 2;
    HfSaveOptions options{.manifest = true, .writers = RankRange{2 * machine, 2 * machine + 2}};
    options.after_publish = [&] {
      for (const std::string& each : machines) {
        if (!fs::exists(each + "/manifest.json")) write_file(folder.path() + "/too-early", "x");
      }
      write_file(machines[machine] + ".tidied", "x");
    };
    SaveJob save(machines[machine], sample.list, job, options, SaveJob::Source::copy);
    save.wait();
    EXPECT_TRUE(fs::exists(machines[machine] + ".tidied"));
    EXPECT_EQ(save.digest() != 0, job.rank() % 2 == 0) << "on the first of each machine";
  });
  EXPECT_FALSE(fs::exists(folder.path() + "/too-early"));
  for (const std::string& each : machines) {
    EXPECT_TRUE(verify_checkpoint(each).empty());
    EXPECT_EQ(files_of(each), files_of(all));
  }
}

TEST(SaveJob, AnErrorInTheBackgroundReachesAllRanks) {
  const TemporaryFolder folder;
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    if (job.rank() == 1) {  // limits the size of its files
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{64, 64};
      ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    const SampleParameters sample = parameters_of(job);
    const std::string words = message_of<std::runtime_error>([&] {
      SaveJob save(folder.path() + "/model", sample.list, job, {}, SaveJob::Source::copy);
      finish_in_steps(save, job);
    });
    EXPECT_THAT(words, ::testing::AllOf(HasSubstr("File too large"), HasSubstr("(rank 1)")));
  });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SaveJob, LeavesNothingWhereItIsAbandoned) {
  const TemporaryFolder folder;
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    {
      const SaveJob save(folder.path() + "/model", sample.list, job, {}, SaveJob::Source::copy);
    }
    job.world_group().barrier().wait();
  });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SaveJob, RefusesWhatHasNotChangedAlthoughItShouldHave) {
  const TemporaryFolder folder;
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    SaveJob first(folder.path() + "/first", sample.list, job, {}, SaveJob::Source::live);
    first.wait();
    const HfSaveOptions options{.stale_digest = first.digest()};
    EXPECT_THAT(
        message_of<std::runtime_error>([&] { save_hf_weights(folder.path() + "/stale", sample.list, job, options); }),
        HasSubstr("every tensor is the same as in the checkpoint before it"));
    EXPECT_FALSE(fs::exists(folder.path() + "/stale"));
    job.world_group().barrier().wait();
    change(sample);
    save_hf_weights(folder.path() + "/second", sample.list, job, options);
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
}

// ------------------------------------------------------------------------------------------- ranks that are lost

// A fault of one rank, and its position: before the save, or in the reduction at the end of one of its steps.
struct Fault {
  int rank;
  int signal;
  int reduction;  // index of the save's reduction; 0: before it
  int calls;      // calls of the group until then
};

// All steps: the folder, the lists of tensors, the plan, the bytes, the end.
std::vector<Fault> at_every_step(int signal) {
  std::vector<Fault> faults;
  for (const int rank : {0, 1}) {
    for (const auto& [reduction, calls] : {std::pair(0, 0), {1, 1}, {3, 3}, {5, 6}, {7, 9}, {8, 10}})
      faults.push_back({rank, signal, reduction, calls});
  }
  return faults;
}

int64_t calls_made(ParallelContext& job) {
  int64_t made = 0;
  for (const GroupPosition& position : job.flight_recorder().positions()) made = std::max(made, position.made);
  return made;
}

// Runs on the faulty rank: stays in its reduction until the signal arrives.
void meet_the_fault(const Fault& fault, const std::string& target, ParallelContext& job) {
  if (fault.reduction == 0) kill(getpid(), fault.signal);
  std::thread([&] {
    while (calls_made(job) < fault.calls) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(getpid(), fault.signal);
  }).detach();
  const SampleParameters sample = parameters_of(job);
  save_hf_weights(target, sample.list, job);
  ADD_FAILURE() << "the reduction has ended";
}

// Runs one rank of a job that was started by plain variables: no launcher terminates it.
void save_with(const Fault& fault, const std::string& folder, int rank, int port) {
  enter_job(rank, 2, port);
  if (rank == fault.rank && fault.reduction > 0) {
    set_variable("CONCORD_LAYERS", "fault");
    set_variable("CONCORD_FAULT", "comm.all_reduce@" + std::to_string(fault.reduction) + "=delay:100s");
  }
  const bool stops = fault.signal == SIGSTOP;
  ParallelContext& job = initialize(
      {.tensor_model_parallel_size = 2, .ddp_timeout = stops ? 3 : 100, .flight_folder = folder + "/flight"});
  const std::string target = folder + "/model";
  if (rank == fault.rank) {
    job.store().set("pid", std::to_string(getpid()));
    job.store().get("pid is known", std::chrono::seconds(60));
    return meet_the_fault(fault, target, job);
  }
  const pid_t lost = std::stoi(job.store().get("pid", std::chrono::seconds(60)));
  job.store().set("pid is known", "1");
  const SampleParameters sample = parameters_of(job);
  const std::string words = message_of<Error>([&] { save_hf_weights(target, sample.list, job); });
  EXPECT_THAT(words, ::testing::StartsWith("rank " + std::to_string(fault.rank) + " "));
  EXPECT_THAT(words, HasSubstr("pid " + std::to_string(lost) + (stops ? " is stopped" : " has ended")));
  EXPECT_THAT(words, HasSubstr("; while saving " + target));
  job.stop_watching();
  kill(lost, SIGKILL);
}

bool is_temporary(const fs::path& path) { return path.filename().string().find(".tmp-") != std::string::npos; }

int temporary_folders(const std::string& folder) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) count += is_temporary(entry.path()) ? 1 : 0;
  return count;
}

void expect_saves_that_end(const std::vector<Fault>& faults) {
  const TemporaryFolder parent;
  const auto folder_of = [&](size_t i) { return parent.path() + "/" + std::to_string(i); };
  std::vector<std::unique_ptr<Ranks>> jobs;
  for (size_t i = 0; i < faults.size(); ++i) {
    fs::create_directories(folder_of(i) + "/flight");
    jobs.push_back(std::make_unique<Ranks>(
        2, [&, i, port = free_port()](int rank) { save_with(faults[i], folder_of(i), rank, port); }));
  }
  for (size_t i = 0; i < faults.size(); ++i) {
    const auto outcomes = jobs[i]->wait();
    const auto lost = static_cast<size_t>(faults[i].rank);
    EXPECT_EQ(outcomes[lost].signal, SIGKILL) << i << ": " << outcomes[lost].describe();
    EXPECT_TRUE(outcomes[1 - lost].ok()) << i << ": " << outcomes[1 - lost].describe();
    if (lost == 1) {
      EXPECT_EQ(temporary_folders(folder_of(i)), 0) << i << ": rank 0 lives and removes it";
    }
    EXPECT_EQ(fs::exists(folder_of(i) + "/model"), faults[i].reduction == 8) << i << ": at the end it is published";
  }
  expect_job(1, {}, [&](ParallelContext& job) {
    const SampleParameters sample = parameters_of(job);
    for (size_t i = 0; i < faults.size(); ++i) save_hf_weights(folder_of(i) + "/next", sample.list, job);
  });
  for (size_t i = 0; i < faults.size(); ++i) {
    EXPECT_EQ(temporary_folders(folder_of(i)), 0) << i << ": the next save removes what nobody owns";
    const std::string model = folder_of(i) + "/model";
    if (fs::exists(model)) {
      EXPECT_TRUE(files_of(model) == files_of(folder_of(i) + "/next")) << i << ": it is whole";
    }
  }
}

TEST(HfWeightsSave, ARankThatIsKilledAtAnyStepEndsItForTheOthers) { expect_saves_that_end(at_every_step(SIGKILL)); }

TEST(HfWeightsSave, ARankThatStopsAtAnyStepEndsItForTheOthers) { expect_saves_that_end(at_every_step(SIGSTOP)); }

// ---------------------------------------------------------------------------------------------- others at the store

// A third process without the job's token attacks the store while the job serves it.
TEST(HfWeightsSave, AStrangerAtTheStoreHasNoSay) {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/model";
  expect_job(1, {},
             [&](ParallelContext& job) { save_hf_weights(folder.path() + "/expected", parameters_of(job).list, job); });
  const int port = free_port();
  constexpr int kSaves = 20;
  expect_ranks(3, [&](int rank) {
    if (rank == 2) {
      StoreStranger stranger(port);
      while (!stranger.attack()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the job serves it
      while (stranger.attack()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    set_variable("CONCORD_JOB_TOKEN", "0123456789abcdef0123456789abcdef");  // so that the store has a port
    enter_job(rank, 2, port);
    ParallelContext& job = initialize({.tensor_model_parallel_size = 2});
    const SampleParameters sample = parameters_of(job);
    for (int i = 0; i < kSaves; ++i) save_hf_weights(target, sample.list, job, {.overwrite = true});
    finalize();
  });
  EXPECT_TRUE(files_of(target) == files_of(folder.path() + "/expected"));
}

// A local store that lists its keys.
class ListedStore : public Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    keys.insert(key);
    store_->set(key, value);
  }
  void wait(std::span<const std::string> wanted, Milliseconds timeout) override { store_->wait(wanted, timeout); }
  std::vector<std::string> get_all(std::span<const std::string> wanted, Milliseconds timeout) override {
    return store_->get_all(wanted, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    keys.insert(key);
    return store_->add(key, amount);
  }
  bool check(std::span<const std::string> wanted) override { return store_->check(wanted); }
  bool remove(const std::string& key) override {
    keys.erase(key);
    return store_->remove(key);
  }

  std::set<std::string> keys;

 private:
  std::shared_ptr<Store> store_ = make_local_store();
};

TEST(HfWeightsSave, LeavesNothingInTheStore) {
  const TemporaryFolder folder;
  const int port = free_port();
  expect_ranks(1, [&](int rank) {
    enter_job(rank, 1, port);
    const auto store = std::make_shared<ListedStore>();
    ParallelContext& job = initialize({}, store);
    const SampleParameters sample = parameters_of(job);
    save_hf_weights(folder.path() + "/first", sample.list, job);
    const std::set<std::string> before = store->keys;
    EXPECT_FALSE(before.empty());
    for (const char* name : {"/a", "/b", "/c"}) save_hf_weights(folder.path() + name, sample.list, job);
    EXPECT_EQ(store->keys, before);
    finalize();
  });
}

}  // namespace
}  // namespace concord::tests
