#include "core/data_parallel/ddp.h"

#include <fmt/core.h>

#include "core/base/config_error.h"
#include "core/data_parallel/reducer.h"
#include "core/mesh/platform_crossing.h"

namespace concord {
namespace {

// Platforms round differently, so a weight that each of them updates by itself would soon have several values.
void check_replicas(const ParallelContext& job, bool shards_update) {
  if (shards_update || !replicas_cross_platforms(job)) return;
  throw ConfigError(fmt::format(
      "replicas are on different platforms ({}), which round updates differently; set use_distributed_optimizer to "
      "true: then each weight is updated on one rank",
      job.platforms().to_string()));
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(std::vector<Chunk> chunks, ParallelContext& job,
                                                 const DataParallelOptions& options)
    : options_(options), job_(&job) {
  if (options_.overlap_param_gather && !options_.use_distributed_optimizer) {
    throw ConfigError("overlap_param_gather requires use_distributed_optimizer: without it there is nothing to gather");
  }
  check_replicas(job, options_.use_distributed_optimizer);
  for (Chunk& chunk : chunks) {
    chunks_.push_back(std::make_unique<Reducer>(*this, std::move(chunk), !chunks_.empty()));
  }
}

DistributedDataParallel::~DistributedDataParallel() = default;

std::vector<const GradBuffer*> DistributedDataParallel::buffers() const {
  std::vector<const GradBuffer*> all;
  for (const auto& chunk : chunks_) {
    for (const auto& buffer : chunk->buffers()) all.push_back(buffer.get());
  }
  return all;
}

const BucketPlan& DistributedDataParallel::plan(size_t chunk) const { return chunks_.at(chunk)->plan(); }

void DistributedDataParallel::begin_step(int64_t micro_batches, bool defer_reduction) {
  if (micro_batches < 1) {
    throw ConfigError(fmt::format("a step of {} micro-batches; must be >= 1", micro_batches));
  }
  for (const auto& chunk : chunks_) chunk->begin_step(micro_batches, defer_reduction);
}

void DistributedDataParallel::flush_grads() {
  for (const auto& chunk : chunks_) chunk->flush_grads();
}

void DistributedDataParallel::set_step_replayed(int64_t micro_batches) {
  for (const auto& chunk : chunks_) chunk->set_step_replayed(micro_batches);
}

void DistributedDataParallel::require_finite_grads() {
  for (const auto& chunk : chunks_) chunk->require_finite_grads();
}

// Chunks run from first to last, so gradients arrive from last to first.
void DistributedDataParallel::start_grad_sync() {
  for (size_t i = chunks_.size(); i-- > 0;) chunks_[i]->start_grad_sync();
}

void DistributedDataParallel::finish_grad_sync() {
  start_grad_sync();
  for (size_t i = chunks_.size(); i-- > 0;) chunks_[i]->finish_grad_sync();
}

void DistributedDataParallel::gather_parameters() {
  for (const auto& chunk : chunks_) chunk->gather_parameters();
  if (!options_.overlap_param_gather) finish_param_gather();
}

void DistributedDataParallel::finish_param_gather() {
  for (const auto& chunk : chunks_) chunk->finish_param_gather();
}

}  // namespace concord
