// Detects silent data corruption: compares checksums of tensors that should be bitwise identical on several ranks.
//
// Compared between two steps:
//   parameters                 over data x context parallel ranks, bucket by bucket; after ZeRO-1 has gathered them
//   reduced gradients          likewise; not with ZeRO-1, where each rank holds a different part of them
//   parameters replicated by   over tensor, data and context parallel ranks together (norms, biases): more replicas
//   tensor parallelism
//   tied embeddings            over the first and the last stage of the pipeline
//
// Costs one read of these tensors, one small all-gather for each kind and one all-reduce. Only if checksums differ are
// they computed again per parameter, to report its name.
//
// In the middle of a step, when gradients are not reduced yet, damaged_parameters() compares only the parameters, and
// repair_parameters() copies them from a replica.
//
// Example, given DistributedDataParallel& ddp:
//   #include "core/data_parallel/replica_check.h"
//   ReplicaCheck check(ddp);
//   if (const auto difference = check.run()) throw std::runtime_error(difference->text);
//
// Threads: the thread that computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/data_parallel/ddp.h"
#include "core/data_parallel/replica_verdict.h"

namespace concord {

struct ReplicaDifference {
  std::string text;  // "rank 2 differs from ranks 0, 1 and 3 in the parameter lm_head.weight and 3 more tensors"
  std::optional<int64_t> culprit;  // the first rank that differs from a majority; nullopt if there is no majority
  bool operator==(const ReplicaDifference&) const = default;
};

class ReplicaCheck {
 public:
  explicit ReplicaCheck(DistributedDataParallel& ddp);  // must outlive this object

  // Every rank of the job calls it, between two steps. Returns one of the differences, or nullopt, identical on all
  // ranks. Waits: for all ranks and the device. Throws the errors of collectives.
  std::optional<ReplicaDifference> run();

  // Like run(), but compares only the parameters. If they are equal, reports a parameter that is not finite on some
  // rank, which is then the culprit.
  std::optional<ReplicaDifference> damaged_parameters();
  // Replaces buckets that are not finite on some ranks by those of an intact replica (replica_verdict.h): on all ranks,
  // or on none unless there is one for each bucket. The optimizer's main weights and moments are unchanged. Returns
  // whether it was done, identical on all ranks. Waits: for all ranks.
  bool repair_parameters();

 private:
  struct Piece {
    std::string name;  // "the parameter lm_head"
    at::Tensor flat;
  };
  enum class Kind { parameters, gradients };
  struct Part {
    Kind kind;
    at::Tensor flat;  // contains |pieces|; undefined: the concatenated pieces
    std::vector<Piece> pieces;
  };
  struct Set {
    ProcessGroup* group;
    std::vector<Part> parts;
  };

  void add_buckets(const GradBuffer& buffer);
  template <class Chosen>
  void add_parameters(GroupKind kind, const Chosen& chosen);
  std::vector<ReplicaVerdict> compare(const Set& set, std::span<const at::Tensor> tensors) const;
  std::optional<ReplicaDifference> find_difference(const Set& set, bool with_gradients) const;
  std::optional<ReplicaDifference> first_difference(bool with_gradients) const;
  std::optional<ReplicaDifference> first_not_finite() const;
  std::optional<int64_t> find_intact(ProcessGroup& group, const at::Tensor& values) const;
  std::optional<ReplicaDifference> agree(const std::optional<ReplicaDifference>& own) const;

  DistributedDataParallel& ddp_;
  std::vector<Set> sets_;  // each of more than one rank
};

}  // namespace concord
