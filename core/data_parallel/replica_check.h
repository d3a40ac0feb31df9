// Whether ranks that should hold the same bits do: silent corruption, by a checksum of each copy.
//
// What is compared, as it is between two steps:
//   parameters                 over data x context parallel ranks, bucket by bucket; after ZeRO-1 has gathered them
//   reduced gradients          the same; not with ZeRO-1, which leaves each rank a different part of them
//   parameters that tp repeats over tensor, data and context parallel ranks together (norms, biases): more replicas
//   tied embeddings            over the first and the last stage of the pipeline
//
// Costs one read of these tensors, one small all-gather for each kind and one all-reduce. Only where checksums differ
// are they computed again for each parameter, to name it.
//
// In the middle of a step, where gradients are not reduced, damaged_parameters() compares the parameters alone, and
// repair_parameters() copies them from a replica.
//
// Example, given DistributedDataParallel& ddp:
//   #include "core/data_parallel/replica_check.h"
//   ReplicaCheck check(ddp);
//   if (const auto difference = check.run()) throw std::runtime_error(difference->text);
//
// Threads: the one that computes.
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
  std::optional<int64_t> culprit;  // the first rank that differs from a majority; nothing where there is none
  bool operator==(const ReplicaDifference&) const = default;
};

class ReplicaCheck {
 public:
  explicit ReplicaCheck(DistributedDataParallel& ddp);  // which outlives it

  // Every rank of the job calls it, between two steps; all get the same result: nothing, or one of the differences.
  // Waits: for all ranks and the device. Errors: those of collectives.
  std::optional<ReplicaDifference> run();

  // Of the parameters only: one of the differences, or else a parameter that is not finite on some rank, which is then
  // the culprit. Everything else as in run().
  std::optional<ReplicaDifference> damaged_parameters();
  // Buckets that are not finite on some ranks become those of an intact replica (replica_verdict.h); on all ranks, or
  // on none where there is not one for each. Main weights and moments of the optimizer stay as they are. Returns
  // whether it was done, on all ranks the same. Waits: for all ranks.
  bool repair_parameters();

 private:
  struct Piece {
    std::string name;  // "the parameter lm_head"
    at::Tensor flat;
  };
  enum class Kind { parameters, gradients };
  struct Part {
    Kind kind;
    at::Tensor flat;  // of which |pieces| are parts; undefined: it is the pieces, one after another
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
  std::vector<Set> sets_;  // of more than one rank each
};

}  // namespace concord
