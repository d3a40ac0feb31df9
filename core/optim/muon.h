// Muon (Keller Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024): the update of a matrix
// is its momentum, made nearly orthogonal by Newton-Schulz iterations; weight decay is decoupled, as in AdamW:
//   m = mu m + (1 - mu) g;   u = mu m + (1 - mu) g, or m without Nesterov
//   X = u / |u|, then k times: A = X X^T, X = a X + (b A + c A^2) X, with a, b, c = 3.4445, -4.7750, 2.0315
//   w = (1 - lr weight_decay) w - lr scale X
// A matrix is a tensor as HF has it: q, k and v, or gate and up, are one each even where they are one parameter here.
// Embeddings, output layers, and all that is no matrix are not for Muon (AdamW in core/optim/optimizer.cpp).
//
// The momentum is where the optimizer's state is: a shard of it under tensor parallelism and ZeRO-1. Orthogonalising
// needs the whole matrix, so the ranks that have its parts put them together, one of them iterates, and each takes its
// own part of the result; the matrices are dealt out to these ranks. All layouts compute the same numbers. Whole
// matrices exist for OptimizerOptions::muon_batch_elements at a time. In fp32. Threads: the one that computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/optim/segment.h"
#include "core/optim/update_rule.h"

namespace concord {

// The Newton-Schulz iterations on |x| [rows, columns].
at::Tensor orthogonalised(const at::Tensor& x, int64_t steps);
// What an update of that shape is multiplied by. Throws ConfigError for an unknown mode.
double muon_scale(const std::string& mode, int64_t rows, int64_t columns);

class Muon {
 public:
  // Whether a parameter consists of matrices that are for Muon.
  static bool takes(const Parameter& parameter);

  // |segments| are those of this rank that it takes, with their tensors set; moments[0] is the momentum. They and
  // |ddp| outlive it. Throws ConfigError for an invalid setting.
  Muon(const DistributedDataParallel& ddp, const OptimizerOptions& options, std::span<Segment* const> segments);

  // Every rank of the job calls it. Waits: for the ranks that have parts of the same matrices.
  void step(const RuleStep& step);

 private:
  struct Matrix {
    std::string tensor;
    int64_t rows, columns;
    int64_t begin;  // in the memory of its parameter's matrices
    bool is_own;    // this rank iterates
  };
  struct Part {
    Segment* segment;
    std::vector<ShardRun> runs;
  };
  // The matrices of a parameter.
  struct Task {
    std::vector<ProcessGroup*> groups;  // whose ranks have parts of them, one axis each
    std::vector<Matrix> matrices;
    std::vector<Part> parts;  // of this rank; there may be none
    int64_t elements = 0;
    at::TensorOptions options;
  };

  Task task_of(const GradBuffer& buffer, const Parameter& parameter, std::span<Segment* const> segments);
  at::Tensor momentum_of(const Task& task, double grad_scale) const;
  void iterate(const Task& task, const at::Tensor& whole) const;
  void apply(const Task& task, const at::Tensor& whole, const RuleStep& step) const;

  ParallelContext& job_;
  const OptimizerOptions options_;
  int64_t dealt_ = 0;  // matrices
  std::vector<Task> tasks_;
};

}  // namespace concord
