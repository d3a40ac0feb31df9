#include "core/checkpoint/write/global_save_plan.h"

#include <ATen/core/Tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/mesh/agreement.h"

namespace concord {
namespace {

std::vector<safetensors::TensorShape> tensors_of(std::span<Parameter* const> parameters) {
  std::vector<safetensors::TensorShape> tensors;
  for (const Parameter* parameter : parameters) {
    const std::optional<safetensors::DType> dtype = file_type(parameter->value.scalar_type());
    if (!dtype || !parameter->value.is_contiguous()) {
      throw ConfigError(fmt::format("parameter {} is {}; only contiguous Float, Double, BFloat16 or Half can be saved",
                                    parameter->spec.name, c10::toString(parameter->value.scalar_type())));
    }
    for (GlobalTensor& tensor : global_tensors(parameter->spec)) {
      tensors.push_back({std::move(tensor.name), *dtype, std::move(tensor.shape)});
    }
  }
  return tensors;
}

// Returns the tensors of each stage. All ranks of a stage have parts of the same tensors; the first one reports them.
std::vector<std::string> exchange_lists(const std::string& own, ParallelContext& job) {
  std::vector<std::string> lists;
  for (int64_t stage = 0; stage < job.layout().pp(); ++stage) {
    lists.push_back(broadcast_text(job, own, job.layout().rank_at(0, 0, 0, stage)));
  }
  return lists;
}

// Splits |values| (flat) into chunks of at most |chunk_bytes|: views, without the runs that an earlier stage writes.
void cut_into_chunks(size_t set, std::vector<ShardRun> runs, const at::Tensor& values, int64_t chunk_bytes,
                     const std::set<std::string>& of_earlier_stages, std::vector<SaveChunk>* chunks) {
  std::erase_if(runs, [&](const ShardRun& run) { return of_earlier_stages.count(run.tensor) > 0; });
  const int64_t size = values.element_size(), at_once = chunk_bytes / size;
  for (int64_t begin = 0; begin < values.numel() && !runs.empty(); begin += at_once) {
    const int64_t end = std::min(begin + at_once, values.numel());
    SaveChunk chunk{.set = set, .runs = values.numel() > at_once ? cut_runs(runs, begin, end) : runs};
    if (chunk.runs.empty()) continue;
    chunk.data = static_cast<const std::byte*>(values.const_data_ptr()) + begin * size;
    chunk.allocation = values.storage().data();
    chunk.element_size = size;
    chunk.bytes = (end - begin) * size;
    chunk.on_host = values.device().is_cpu();
    chunks->push_back(std::move(chunk));
  }
}

}  // namespace

std::shared_ptr<const GlobalSavePlan> create_global_plan(std::span<Parameter* const> parameters,
                                                         const HfSaveOptions& options, ParallelContext& context,
                                                         std::shared_ptr<const GlobalSavePlan> previous,
                                                         const std::function<void()>& first) {
  auto agreed = std::make_shared<GlobalSavePlan>();
  agreed->max_shard_bytes = options.max_shard_bytes;
  run_and_propagate_errors(context, [&] {
    agreed->own_sets.emplace_back(options.stem, tensors_of(parameters));
    for (const SavedTensors& more : options.more) agreed->own_sets.emplace_back(more.stem, more.tensors);
    first();
  });
  const bool is_same =
      previous && previous->own_sets == agreed->own_sets && previous->max_shard_bytes == agreed->max_shard_bytes;
  if (all_reduce_scalar(context, is_same ? 0 : 1, ReduceOp::kMax) == 0) return previous;
  std::vector<std::string> stems, own;
  run_and_propagate_errors(context, [&] {
    for (const auto& [stem, tensors] : agreed->own_sets) {
      stems.push_back(stem);
      own.push_back(list_text(tensors));
    }
  });
  std::vector<std::vector<std::string>> of_stages;
  for (const std::string& list : own) of_stages.push_back(exchange_lists(list, context));
  run_and_propagate_errors(
      context, [&] { agreed->plan = plan_save(stems, of_stages, agreed->max_shard_bytes, context.coordinates().pp); });
  return agreed;
}

std::vector<SaveChunk> own_chunks(const GlobalSavePlan& plan, std::span<Parameter* const> parameters,
                                  const HfSaveOptions& options, const ParallelContext& context) {
  std::vector<SaveChunk> chunks;
  for (const Parameter* parameter : parameters) {
    const WrittenPart part = written_part(parameter->spec, context.layout(), context.rank(), options.writers);
    cut_into_chunks(0, part.runs, parameter->used().detach().view({-1}).narrow(0, part.begin, part.end - part.begin),
                    options.chunk_bytes, plan.plan.sets[0].of_earlier_stages, &chunks);
  }
  for (size_t i = 0; i < options.more.size(); ++i) {
    for (const SavedTensors::Part& part : options.more[i].parts) {
      cut_into_chunks(i + 1, part.runs, part.values, options.chunk_bytes, plan.plan.sets[i + 1].of_earlier_stages,
                      &chunks);
    }
  }
  return chunks;
}

}  // namespace concord
