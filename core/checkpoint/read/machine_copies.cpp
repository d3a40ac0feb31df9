#include "core/checkpoint/read/machine_copies.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/threads.h"
#include "core/checkpoint/auxiliary_files.h"
#include "core/checkpoint/verify.h"
#include "core/mesh/agreement.h"
#include "core/mesh/job_environment.h"
#include "core/safetensors/writer.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using safetensors::FilePart;

constexpr uint64_t kMaxMachineBytes = 1000;
constexpr int64_t kMaxVerifyThreads = 8;

// A hole reads as zeros, so the maximum over all machines is the data. Signed bytes can be reduced on all platforms:
// inverting the highest bit maps unsigned bytes to them in the same order.
constexpr int64_t kHighestBit = -128;

// Returns the copies of all machines.
std::vector<MachineCopy> gather_copies(const MachineCopy& own, const Machines& machines, ParallelContext& job) {
  const std::vector<int64_t> machine = all_gather_scalar(job, own.machine),
                             count = all_gather_scalar(job, own.machines), digest = all_gather_scalar(job, own.digest);
  std::vector<MachineCopy> copies;
  for (const int64_t first : machines.first) {
    const auto rank = static_cast<size_t>(first);
    copies.push_back({machine[rank], count[rank], digest[rank]});
  }
  return copies;
}

// Fills |window| from the file.
void read_window(const InputFile& file, uint64_t begin, const at::Tensor& window) {
  const std::span<std::byte> bytes(static_cast<std::byte*>(window.data_ptr()), window.nbytes());
  if (file.read_at(begin, bytes) < bytes.size()) throw std::runtime_error(file.path() + ": is shorter than it was");
  window.bitwise_xor_(kHighestBit);
}

void write_window(FilePart* file, uint64_t begin, const at::Tensor& window) {
  window.bitwise_xor_(kHighestBit);
  file->write(begin, {static_cast<const std::byte*>(window.const_data_ptr()), window.nbytes()});
}

// Merges the files |from| of |bytes| bytes, empty on ranks without a copy, into the files |to|, empty on ranks that do
// not write.
void merge_file(const std::string& from, const std::string& to, uint64_t bytes, int64_t chunk_bytes,
                ParallelContext& job) {
  std::optional<InputFile> source;
  std::optional<FilePart> target;
  run_and_propagate_errors(job, [&] {
    if (!from.empty()) source.emplace(from);
    if (source && source->size() != bytes) {
      throw ConfigError(fmt::format("{}: has {} bytes, but the manifest says {}", from, source->size(), bytes));
    }
    if (!to.empty()) target.emplace(to, FilePart::Mode::create, bytes);
  });
  const auto at_once = static_cast<uint64_t>(chunk_bytes);
  for (uint64_t begin = 0; begin < bytes; begin += at_once) {
    const auto length = static_cast<int64_t>(std::min(bytes - begin, at_once));
    at::Tensor window = at::full({length}, kHighestBit, at::kChar);
    run_and_propagate_errors(job, [&] {
      if (source) read_window(*source, begin, window);
    });
    window = window.to(job.torch_device());
    job.world_group().all_reduce(window, ReduceOp::kMax).synchronize();
    window = window.to(at::kCPU);
    run_and_propagate_errors(job, [&] {
      if (target) write_window(&*target, begin, window);
    });
  }
}

// Compares |folder| of each machine with its manifest, each rank a part of the bytes.
void verify_merged(const std::string& folder, ParallelContext& job) {
  const JobEnvironment environment = read_job_environment();
  run_and_propagate_errors(job, [&] {
    const std::vector<Damage> damage = verify_checkpoint(
        folder, {.part = environment.local_rank,
                 .parts = environment.local_world,
                 .threads = static_cast<int>(cores_for_each(environment.local_world, kMaxVerifyThreads))});
    if (!damage.empty()) throw ConfigError(fmt::format("{} is damaged: {}", folder, to_string(damage.front())));
  });
}

}  // namespace

std::string machine_json(size_t machine, size_t machines) {
  return nlohmann::json{{"machine", machine}, {"machines", machines}}.dump() + "\n";
}

MachineCopy read_machine_copy(const std::string& folder) {
  const std::string path = folder + "/" + kMachineFile;
  if (!fs::exists(path) || !has_manifest(folder)) return {};
  const nlohmann::json json = parse_json(InputFile(path).read(kMaxMachineBytes, "a machine's number"), path);
  try {
    return {.machine = json.at("machine").get<int64_t>(),
            .machines = json.at("machines").get<int64_t>(),
            .digest = tensor_digest(read_manifest(folder))};
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{}: {}", path, json_reason(error)));
  }
}

std::vector<size_t> complete_copies(std::span<const MachineCopy> copies) {
  for (const MachineCopy& candidate : copies) {
    std::vector<size_t> found;
    std::set<int64_t> covered;
    for (size_t i = 0; i < copies.size(); ++i) {
      const auto& [machine, machines, digest] = copies[i];
      if (digest != candidate.digest || machines != candidate.machines || machine < 0 || machine >= machines) continue;
      found.push_back(i);
      covered.insert({machine, machine == 0 ? machines - 1 : machine - 1});
    }
    if (!found.empty() && std::cmp_equal(covered.size(), candidate.machines)) return found;
  }
  return {};
}

bool merge_copies(const std::string& folder, const std::string& target, ParallelContext& job, int64_t chunk_bytes) {
  const Machines machines = machines_of(job);
  const size_t own = machines.machine_of(job.rank());
  const bool is_first = machines.is_first(job.rank());
  MachineCopy copy;
  run_and_propagate_errors(job, [&] { copy = read_machine_copy(folder); });
  const std::vector<size_t> holders = complete_copies(gather_copies(copy, machines, job));
  if (holders.empty()) return false;
  const bool holds = is_first && std::ranges::find(holders, own) != holders.end();
  const bool is_source = is_first && own == holders.front();
  std::string text;
  run_and_propagate_errors(job, [&] {
    const std::string path = folder + "/" + kManifestFile;
    if (is_source) text = InputFile(path).read(kMaxManifestBytes, "a manifest");
  });
  text = broadcast_text(job, text, machines.first[holders.front()]);
  const Manifest manifest = parse_manifest(text, kManifestFile);
  run_and_propagate_errors(job, [&] {
    if (is_first) fs::remove_all(target);
    if (is_first) fs::create_directories(target);
  });
  for (const auto& [name, file] : manifest.files) {
    // The metadata files of one machine: those of another may differ, for example if it has a different tokenizer.
    const bool reads = file.by_tensor ? holds : is_source;
    merge_file(reads ? folder + "/" + name : "", is_first ? target + "/" + name : "", file.bytes, chunk_bytes, job);
  }
  run_and_propagate_errors(job, [&] {
    if (is_first) write_file_durably(target + "/" + kManifestFile, text);
  });
  verify_merged(target, job);
  return true;
}

}  // namespace concord
