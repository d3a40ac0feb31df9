#include "core/checkpoint/write/save_job.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/paths.h"
#include "core/base/threads.h"
#include "core/checkpoint/auxiliary_files.h"
#include "core/checkpoint/crc32.h"
#include "core/checkpoint/read/machine_copies.h"
#include "core/checkpoint/write/metadata_files.h"
#include "core/checkpoint/write/replication.h"
#include "core/mesh/agreement.h"
#include "core/mesh/job_environment.h"
#include "core/torch/device.h"
#include "platform/cpp/memory.hpp"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMinMemory = 1 << 30;       // limit of copies in host memory
constexpr int64_t kMaxWriters = 4;            // threads per rank, if nothing else runs
constexpr int64_t kMaxBackgroundWriters = 2;  // in parallel with a training step, which needs cores too
constexpr int64_t kAlignment = 64;            // bytes, for copies on a device
constexpr int64_t kDeviceReserve = 20;        // 1 / this part of a device's memory stays free

// Returns the default limit of copies in host memory: twice the largest shard.
int64_t memory_limit(std::span<Parameter* const> parameters) {
  size_t largest = 0;
  for (const Parameter* parameter : parameters) largest = std::max(largest, parameter->value.nbytes());
  return std::max(kMinMemory, 2 * static_cast<int64_t>(largest));
}

}  // namespace

SaveJob::SaveJob(std::string folder, std::span<Parameter* const> parameters, ParallelContext& context,
                 HfSaveOptions options, Source source, std::shared_ptr<const GlobalSavePlan> previous)
    : folder_(without_trailing_slashes(std::move(folder))),
      context_(context),
      options_(std::move(options)),
      writers_(options_.writers.value_or(RankRange{0, context.world()})),
      source_(source) {
  try {
    if (options_.replicated) divide_among_machines();
    nonce_ = broadcast_text(context_, context_.rank() == 0 ? make_nonce() : "", 0);
    plan_ = create_global_plan(parameters, options_, context_, std::move(previous), [&] {
      if (is_leader()) begin();
    });
  } catch (const Error& error) {
    throw Error(error.status(), fmt::format("{}; while saving {}", error.what(), folder_));
  }
  files_.emplace(temporary_folder(folder_, nonce_), plan_->plan);
  std::vector<SaveChunk> chunks = own_chunks(*plan_, parameters, options_, context_);
  writer_.emplace(*files_, context_.device(), options_.chunk_bytes,
                  options_.memory_limit > 0 ? options_.memory_limit : memory_limit(parameters));
  if (source == Source::copy) copy_on_device(&chunks);
  if (!context_.torch_device().is_cpu()) writer_->read_after(torch_stream(context_.device()));
  start(&SaveJob::write_part);
  try {
    if (machines_) {
      replicate_chunks(chunks, plan_->plan, *machines_, context_, options_.chunk_bytes,
                       [&](SaveChunk chunk) { writer_->add_copy(std::move(chunk)); });
    }
    writer_->pass_on(std::move(chunks), source == Source::copy);
  } catch (...) {
    abandon();
    throw;
  }
}

SaveJob::~SaveJob() { abandon(); }

// Only rank 0 has all of the metadata files.
void SaveJob::divide_among_machines() {
  machines_ = machines_of(context_);
  writers_ = machines_->ranks_of(machines_->machine_of(context_.rank()));
  options_.more_files = files_of_first_rank(options_.more_files, context_);
}

// The leader creates the folder.
void SaveJob::begin() {
  if (fs::exists(folder_) && !(fs::is_directory(folder_) && (options_.overwrite || fs::is_empty(folder_)))) {
    throw ConfigError(fmt::format("{}: already exists; choose another folder, or overwrite it", folder_));
  }
  made_.emplace(folder_, nonce_);
}

// Copies the chunks on a device within its memory, if there is enough.
void SaveJob::copy_on_device(std::vector<SaveChunk>* chunks) {
  if (context_.torch_device().is_cpu()) return;
  int64_t bytes = 0;
  std::vector<int64_t> offsets;
  const std::vector<ChunkCopy> plan = plan_copies(*chunks, kAlignment, &bytes, &offsets);
  const MemoryInfo memory = context_.device().memory();
  if (bytes == 0 || memory.free_bytes < bytes + memory.total_bytes / kDeviceReserve) return;
  const at::Tensor copies = at::empty({bytes}, at::TensorOptions(context_.torch_device()).dtype(at::kByte));
  const auto owner = std::make_shared<const at::Tensor>(copies);
  const Stream stream = torch_stream(context_.device());
  auto* const to = static_cast<std::byte*>(copies.data_ptr());
  for (const ChunkCopy& each : plan) copy(stream, to + each.to, each.from, each.bytes, CopyKind::kDeviceToDevice);
  for (size_t i = 0; i < chunks->size(); ++i) {
    if (offsets[i] < 0) continue;
    (*chunks)[i].data = to + offsets[i];
    (*chunks)[i].owner = owner;
  }
}

void SaveJob::start(void (SaveJob::*phase)()) {
  task_.start([this, phase] {
    try {
      (this->*phase)();
    } catch (...) {
      writer_->abandon();
      throw;
    }
  });
}

void SaveJob::write_part() {
  if (is_leader()) {
    remove_abandoned_saves(fs::path(folder_).parent_path().string());
    files_->create(/*reserves=*/!machines_);
  } else if (!sees_temporary_folder(folder_, nonce_)) {
    throw ConfigError(fmt::format(
        "{}: was created by rank {} but is not visible here; {} write into one folder, so {} must be "
        "on a file system that all of them see{}",
        temporary_folder(folder_, nonce_), writers_.begin, options_.writers ? writers_.to_string() : "all ranks",
        folder_, options_.writers ? "" : ", or every machine writes one of its own: save_on_each_node"));
  }
  const int64_t most = source_ == Source::copy ? kMaxBackgroundWriters : kMaxWriters;
  writer_->write(cores_for_each(read_job_environment().local_world, most));
  files_->finish(context_.rank());
}

void SaveJob::finish_folder() {
  if (!machines_) written_ = files_->collect(writers_);
  digest_ = crc32(std::as_bytes(std::span(written_.shares)));
  if (options_.stale_digest == digest_) {
    throw std::runtime_error(
        fmt::format("{}: every tensor is the same as in the checkpoint before it, although the model was trained in "
                    "between; it was not saved. This is an error in Concord or in a plugin",
                    folder_));
  }
  Manifest manifest;
  files_->describe(written_, &manifest);
  const std::string temporary = temporary_folder(folder_, nonce_);
  if (machines_) {
    write_file_durably(temporary + "/" + kMachineFile,
                       machine_json(machines_->machine_of(context_.rank()), machines_->first.size()));
  }
  write_metadata_files(temporary, plan_->plan, options_, options_.manifest ? &manifest : nullptr);
  made_->publish();
  if (!has_several_folders()) tidy();
}

// The checksums cover the data of all machines.
void SaveJob::sum_written() {
  WrittenTensors own;
  run_and_propagate_errors(context_, [&] {
    if (is_leader()) own = files_->collect(writers_);
  });
  written_ = sum_over_machines(own, *machines_, context_);
}

void SaveJob::tidy() {
  if (options_.after_publish) options_.after_publish();
}

SaveJob::Progress SaveJob::progress() const {
  if (task_.is_running()) return Progress::busy;
  return task_.has_failed() ? Progress::failed : Progress::through;
}

void SaveJob::advance(Progress of_all_ranks) {
  if (of_all_ranks == Progress::failed) fail();
  if (of_all_ranks == Progress::through) next_phase();
}

void SaveJob::next_phase() {
  task_.join();
  if (phase_ == Phase::writing) {
    phase_ = Phase::finishing;
    if (machines_) sum_written();
    if (is_leader()) start(&SaveJob::finish_folder);
  } else if (phase_ == Phase::finishing && has_several_folders()) {
    phase_ = Phase::tidying;  // not before: until now an older save may be the latest one that all machines have
    if (is_leader()) start(&SaveJob::tidy);
  } else {
    phase_ = Phase::done;
  }
}

void SaveJob::wait() {
  try {
    while (!is_done()) {
      run_and_propagate_errors(context_, [&] {
        task_.join();
        task_.rethrow();
      });
      next_phase();
    }
  } catch (const Error& error) {
    throw Error(error.status(), fmt::format("{}; while saving {}", error.what(), folder_));
  }
}

void SaveJob::fail() {
  writer_->abandon();
  task_.join();
  run_and_propagate_errors(context_, [&] { task_.rethrow(); });
  throw std::runtime_error(fmt::format("{}: was not saved", folder_));
}

void SaveJob::abandon() noexcept {
  if (writer_) writer_->abandon();
  task_.join();
}

}  // namespace concord
