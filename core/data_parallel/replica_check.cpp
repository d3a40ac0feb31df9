#include "core/data_parallel/replica_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/data_parallel/checksum.h"
#include "core/mesh/agreement.h"

namespace concord {
namespace {

bool is_repeated_over_tp(const Parameter& parameter) {
  const auto& groups = parameter.spec.replicated_over;
  return std::find(groups.begin(), groups.end(), GroupKind::tp) != groups.end();
}

template <class Pieces>
std::vector<at::Tensor> tensors_of(const Pieces& pieces) {
  std::vector<at::Tensor> tensors;
  for (const auto& piece : pieces) tensors.push_back(piece.flat);
  return tensors;
}

bool is_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

std::string parameter_name(const GradBuffer& buffer, const BucketPlan::Slot& slot) {
  return "the parameter " + buffer.parameters()[slot.parameter]->spec.name;
}

std::string gradient_name(const GradBuffer& buffer, const BucketPlan::Slot& slot) {
  return "the gradient of " + buffer.parameters()[slot.parameter]->spec.name;
}

}  // namespace

ReplicaCheck::ReplicaCheck(DistributedDataParallel& ddp) : ddp_(ddp) {
  const RankLayout& layout = ddp.job().layout();
  // The larger group comes first: it is more likely to have a majority, and run() reports the first difference.
  if (layout.tp() > 1) add_parameters(GroupKind::tp_dp_cp, is_repeated_over_tp);
  for (const GradBuffer* buffer : ddp.buffers()) add_buckets(*buffer);
  add_parameters(GroupKind::embedding, [](const Parameter& parameter) { return parameter.shared_embedding; });
}

// Buffers of the same group share a set, and thus its collective.
void ReplicaCheck::add_buckets(const GradBuffer& buffer) {
  if (buffer.group().size() == 1) return;
  if (sets_.empty() || sets_.back().group != &buffer.group()) sets_.push_back({&buffer.group(), {}});
  std::vector<Part>& parts = sets_.back().parts;
  for (const BucketPlan::Bucket& bucket : buffer.plan().buckets) {
    const BufferRange whole{bucket.begin, bucket.end};
    Part values{Kind::parameters, GradBuffer::part(buffer.values(), whole), {}};
    Part grads{Kind::gradients, GradBuffer::part(buffer.grads(), whole), {}};
    for (const BucketPlan::Slot& slot : bucket.slots) {
      const BufferRange range{slot.begin, slot.end};
      values.pieces.push_back({parameter_name(buffer, slot), GradBuffer::part(buffer.values(), range)});
      grads.pieces.push_back({gradient_name(buffer, slot), GradBuffer::part(buffer.grads(), range)});
    }
    parts.push_back(std::move(values));
    if (buffer.plan().shards == 1) parts.push_back(std::move(grads));
  }
}

// Adds one part per type, since concatenated tensors have one type.
template <class Chosen>
void ReplicaCheck::add_parameters(GroupKind kind, const Chosen& chosen) {
  ParallelContext& job = ddp_.job();
  if (!job.has_group(kind) || job.group(kind).size() == 1) return;
  Set set{&job.group(kind), {}};
  for (const GradBuffer* buffer : ddp_.buffers()) {
    Part part{Kind::parameters, {}, {}};
    for (const BucketPlan::Bucket& bucket : buffer->plan().buckets) {
      for (const BucketPlan::Slot& slot : bucket.slots) {
        if (!chosen(*buffer->parameters()[slot.parameter])) continue;
        part.pieces.push_back(
            {parameter_name(*buffer, slot), GradBuffer::part(buffer->values(), {slot.begin, slot.end})});
      }
    }
    if (!part.pieces.empty()) set.parts.push_back(std::move(part));
  }
  if (!set.parts.empty()) sets_.push_back(std::move(set));
}

// Returns one verdict for each of |tensors|, in ranks of the group.
std::vector<ReplicaVerdict> ReplicaCheck::compare(const Set& set, std::span<const at::Tensor> tensors) const {
  const std::vector<int64_t> sums = checksums(tensors);
  const at::Tensor own = at::tensor(sums, at::kLong).to(ddp_.job().torch_device());
  const int64_t replicas = set.group->size(), count = own.numel();
  const at::Tensor all = at::empty({replicas, count}, own.options());
  set.group->all_gather(all, own).wait();
  const at::Tensor by_tensor = all.cpu().t().contiguous();
  std::vector<ReplicaVerdict> verdicts;
  for (int64_t i = 0; i < count; ++i) {
    verdicts.push_back(
        judge_replicas({by_tensor.const_data_ptr<int64_t>() + i * replicas, static_cast<size_t>(replicas)}));
  }
  return verdicts;
}

std::optional<ReplicaDifference> ReplicaCheck::find_difference(const Set& set, bool with_gradients) const {
  std::vector<const Part*> compared;
  std::vector<at::Tensor> tensors;
  for (const Part& part : set.parts) {
    if (part.kind == Kind::gradients && !with_gradients) continue;
    compared.push_back(&part);
    tensors.push_back(part.flat.defined() ? part.flat : at::cat(tensors_of(part.pieces)));
  }
  const std::vector<ReplicaVerdict> parts = compare(set, tensors);
  // Every rank of the group has the same verdicts, and thus makes the same calls below.
  std::vector<Piece> suspects;
  const ReplicaVerdict* found = nullptr;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].agree()) continue;
    if (!found) found = &parts[i];
    suspects.insert(suspects.end(), compared[i]->pieces.begin(), compared[i]->pieces.end());
  }
  if (!found) return std::nullopt;

  std::string where;
  int64_t more = 0;
  const std::vector<ReplicaVerdict> pieces = compare(set, tensors_of(suspects));
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].agree()) continue;
    if (!where.empty()) {
      ++more;
      continue;
    }
    found = &pieces[i];
    where = suspects[i].name;
  }
  if (where.empty()) where = "the padding of a bucket, or in the computation of its checksum";
  if (more > 0) where += fmt::format(" and {} more {}", more, more == 1 ? "tensor" : "tensors");
  const std::vector<int64_t> ranks = set.group->ranks().members();
  ReplicaDifference difference{.text = fmt::format("{} in {}", to_text(*found, ranks), where), .culprit = {}};
  if (!found->culprits.empty()) difference.culprit = ranks[static_cast<size_t>(found->culprits.front())];
  return difference;
}

// Returns the difference of the lowest rank that has found one.
std::optional<ReplicaDifference> ReplicaCheck::agree(const std::optional<ReplicaDifference>& own) const {
  ParallelContext& job = ddp_.job();
  const std::optional<RankText> first = first_text(job, own ? own->text : "");
  if (!first) return std::nullopt;
  ReplicaDifference difference{.text = first->text, .culprit = {}};
  const bool knows = job.rank() == first->rank && own->culprit;
  const int64_t culprit = all_reduce_scalar(job, knows ? *own->culprit : -1, ReduceOp::kMax);
  if (culprit >= 0) difference.culprit = culprit;
  return difference;
}

std::optional<ReplicaDifference> ReplicaCheck::first_difference(bool with_gradients) const {
  const at::NoGradGuard no_grad;
  ddp_.finish_param_gather();
  std::optional<ReplicaDifference> first;
  for (const Set& set : sets_) {
    std::optional<ReplicaDifference> difference = find_difference(set, with_gradients);
    if (!first) first = std::move(difference);
  }
  return agree(first);
}

std::optional<ReplicaDifference> ReplicaCheck::run() {
  if (ddp_.job().world() == 1) return std::nullopt;
  return first_difference(/*with_gradients=*/true);
}

// Returns the first parameter on this rank that is not finite.
std::optional<ReplicaDifference> ReplicaCheck::first_not_finite() const {
  const at::NoGradGuard no_grad;
  const int64_t rank = ddp_.job().rank();
  for (const GradBuffer* buffer : ddp_.buffers()) {
    if (is_finite(buffer->values())) continue;
    for (const BucketPlan::Bucket& bucket : buffer->plan().buckets) {
      for (const BucketPlan::Slot& slot : bucket.slots) {
        if (is_finite(GradBuffer::part(buffer->values(), {slot.begin, slot.end}))) continue;
        return ReplicaDifference{fmt::format("{} is not finite on rank {}", parameter_name(*buffer, slot), rank), rank};
      }
    }
  }
  return std::nullopt;
}

std::optional<ReplicaDifference> ReplicaCheck::damaged_parameters() {
  if (const std::optional<ReplicaDifference> difference = first_difference(/*with_gradients=*/false)) return difference;
  return agree(first_not_finite());
}

// Returns an intact replica of the bucket |values|, identical on all ranks of |group|.
std::optional<int64_t> ReplicaCheck::find_intact(ProcessGroup& group, const at::Tensor& values) const {
  const at::Tensor own = at::tensor({checksums(std::vector{values}).at(0), int64_t{is_finite(values)}}, at::kLong)
                             .to(ddp_.job().torch_device());
  const at::Tensor all = at::empty({group.size(), 2}, own.options());
  group.all_gather(all, own).wait();
  const at::Tensor by_kind = all.cpu().t().contiguous();
  const auto count = static_cast<size_t>(group.size());
  const std::span<const int64_t> sums(by_kind.const_data_ptr<int64_t>(), count);
  return intact_replica(sums, {sums.data() + count, count});
}

bool ReplicaCheck::repair_parameters() {
  const at::NoGradGuard no_grad;
  struct Copy {
    ProcessGroup* group;
    at::Tensor values;
    int64_t source;
  };
  std::vector<Copy> copies;
  bool is_possible = true;
  for (const GradBuffer* buffer : ddp_.buffers()) {
    for (const BucketPlan::Bucket& bucket : buffer->plan().buckets) {
      const at::Tensor values = GradBuffer::part(buffer->values(), {bucket.begin, bucket.end});
      const std::optional<int64_t> source = find_intact(buffer->group(), values);
      is_possible = is_possible && source;
      if (source) copies.push_back({&buffer->group(), values, *source});
    }
  }
  if (all_reduce_scalar(ddp_.job(), is_possible ? 0 : 1, ReduceOp::kMax) != 0) return false;
  for (const Copy& copy : copies) copy.group->broadcast(copy.values, copy.source).wait();
  return true;
}

}  // namespace concord
