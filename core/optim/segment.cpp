#include "core/optim/segment.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/base/code_map.h"
#include "core/base/config_error.h"
#include "core/checkpoint/hf_plan.h"
#include "core/optim/state_precision.h"

namespace concord {
namespace {

bool spans_tp(GroupKind kind) {
  switch (kind) {
    case GroupKind::tp:
    case GroupKind::tp_pp:
    case GroupKind::tp_dp:
    case GroupKind::tp_cp:
    case GroupKind::tp_dp_cp: return true;
    default: return false;
  }
}

// The first of the ranks that hold the same elements counts them. Data-parallel ranks are excluded: each counts a part.
bool counts(const Parameter& parameter, const RankCoordinates& at) {
  for (const GroupKind kind : parameter.spec.replicated_over) {
    if (spans_tp(kind) && at.tp > 0) return false;
    if (kind == GroupKind::etp && at.etp > 0) return false;
    if (kind == GroupKind::ep && at.ep > 0) return false;
    if (kind == GroupKind::tp_ep && (at.etp > 0 || at.ep > 0)) return false;
  }
  return !(parameter.shared_embedding && at.pp > 0);
}

// Calls visitor(slot) for every slot of the buffer.
template <class Visitor>
void each_slot(const GradBuffer& buffer, Visitor&& visitor) {
  for (const BucketPlan::Bucket& bucket : buffer.plan().buckets) {
    for (const BucketPlan::Slot& slot : bucket.slots) visitor(slot);
  }
}

// If all data-parallel ranks have the whole gradient, each counts one of the equal parts.
std::vector<BufferRange> counted_ranges(const GradBuffer& buffer) {
  if (buffer.plan().shards > 1) return buffer.owned();
  const int64_t ranks = buffer.group().size(), rank = buffer.group().rank(), elements = buffer.plan().elements;
  return {{elements * rank / ranks, elements * (rank + 1) / ranks}};
}

// Leaves |kept| elements in |segment| and returns the rest.
Segment split_off(Segment& segment, int64_t kept) {
  Segment rest = segment;
  segment.range.end = segment.range.begin + kept;
  rest.range.begin = segment.range.end;
  rest.local_begin += kept;
  return rest;
}

std::vector<Segment>::iterator next(std::vector<Segment>& segments, size_t index) {
  return segments.begin() + static_cast<std::ptrdiff_t>(index) + 1;
}

}  // namespace

std::vector<Segment> cut_segments(const DistributedDataParallel& ddp, const Multipliers& multipliers,
                                  const HostShare& host) {
  std::vector<Segment> segments;
  int64_t elements = 0;
  for (const GradBuffer* buffer : ddp.buffers()) {
    const std::vector<BufferRange> owned = buffer->owned();
    each_slot(*buffer, [&](const BucketPlan::Slot& slot) {
      const Parameter& parameter = *buffer->parameters()[slot.parameter];
      for (const BufferRange& part : owned) {
        const BufferRange range = intersection(part, {slot.begin, slot.end});
        if (range.size() == 0) continue;
        segments.push_back({buffer, &parameter, range, range.begin - slot.begin, multipliers(parameter)});
        elements += range.size();
      }
    });
  }
  auto left = static_cast<int64_t>(std::llround(host.fraction * static_cast<double>(elements)));
  for (size_t i = 0; i < segments.size() && left > 0; ++i) {
    const int64_t taken = next_host_piece(segments[i].size(), left, host);
    if (taken == 0) break;
    if (taken < segments[i].size()) segments.insert(next(segments, i), split_off(segments[i], taken));
    segments[i].on_host = true;
    left -= taken;
  }
  return segments;
}

std::vector<ShardRun> scale_runs(std::vector<ShardRun> runs) {
  for (ShardRun& run : runs) {
    const bool has_rows = run.count > run.run_length;
    for (const int64_t number :
         {run.local, run.count, run.offset, has_rows ? run.run_length : 0, has_rows ? run.run_stride : 0}) {
      if (number % kStateBlock == 0) continue;
      throw ConfigError(fmt::format(
          "8-bit state has blocks of {} elements, but this layout splits {} into parts that are not multiples of it "
          "(row "
          "of {} from {}); use bf16 for exp_avg_dtype and exp_avg_sq_dtype, or another tensor parallel size",
          kStateBlock, run.tensor, run.run_length, run.offset));
    }
    run.local /= kStateBlock;
    run.count /= kStateBlock;
    run.offset /= kStateBlock;
    run.run_length = has_rows ? run.run_length / kStateBlock : run.count;
    run.run_stride = has_rows ? run.run_stride / kStateBlock : run.count;
  }
  return runs;
}

std::vector<BufferRange> counted_parts(const Segment& segment, const RankCoordinates& place) {
  std::vector<BufferRange> parts;
  if (!counts(*segment.parameter, place)) return parts;
  for (const BufferRange& counted : counted_ranges(*segment.buffer)) {
    const BufferRange part = intersection(counted, segment.range);
    if (part.size() > 0) parts.push_back(part);
  }
  return parts;
}

std::vector<BufferRange> saved_parts(const Segment& segment, const RankLayout& layout, int64_t rank,
                                     const std::optional<RankRange>& writers) {
  const RankCoordinates place = layout.coordinates(rank);
  if (!writers || segment.buffer->plan().shards > 1) return counted_parts(segment, place);
  if (segment.parameter->shared_embedding && place.pp > 0) return {};
  const Replicas holders = replicas_of(segment.parameter->spec, layout, rank, writers);
  const auto [begin, end] = written_share(segment.size(), holders);
  const BufferRange part{segment.range.begin + begin, segment.range.begin + end};
  return part.size() > 0 ? std::vector{part} : std::vector<BufferRange>();
}

std::vector<at::Tensor> counted_grads(const DistributedDataParallel& ddp) {
  std::vector<at::Tensor> grads;
  const RankCoordinates& at = ddp.job().coordinates();
  for (const GradBuffer* buffer : ddp.buffers()) {
    const std::vector<BufferRange> counted = counted_ranges(*buffer);
    each_slot(*buffer, [&](const BucketPlan::Slot& slot) {
      if (!counts(*buffer->parameters()[slot.parameter], at)) return;
      for (const BufferRange& part : counted) {
        const BufferRange range = intersection(part, {slot.begin, slot.end});
        if (range.size() > 0) grads.push_back(GradBuffer::part(buffer->grads(), range));
      }
    });
  }
  return grads;
}

FlatType flat_type(const at::Tensor& tensor) {
  if (!tensor.defined()) return FlatType::none;
  switch (tensor.scalar_type()) {
    case c10::kFloat: return FlatType::f32;
    case c10::kBFloat16: return FlatType::bf16;
    case c10::kHalf: return FlatType::f16;
    default:
      throw ConfigError(
          fmt::format("the optimizer does not support tensors of dtype {}", c10::toString(tensor.scalar_type())));
  }
}

GroupMultipliers default_multipliers(const Parameter& parameter) {
  const std::string& name = parameter.spec.name;
  const size_t dims = parameter.spec.dims.size() - (parameter.spec.stacked ? 1 : 0);
  const bool plain = dims < 2 || name.ends_with("bias");
  return {1, plain ? 0.0 : 1.0};
}

}  // namespace concord
