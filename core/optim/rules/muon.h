// Muon (Keller Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024), one update of a matrix
// w:
//   m_t = mu m + (1 - mu) g
//   u   = mu m_t + (1 - mu) g                                                    Nesterov; else u = m_t
//   X   = u / |u|, then k times:  A = X X^T,  X = a X + (b A + c A^2) X          Newton-Schulz: X nearly orthogonal
//   w_t = (1 - lr weight_decay) w - lr scale X
// with a, b, c = 3.4445, -4.7750, 2.0315. A matrix is a tensor of the HF model: q, k and v, or gate and up, are
// separate matrices even if they are one parameter here. Embeddings, output layers and parameters that are not matrices
// use AdamW.
//
// The momentum is sharded like the optimizer state, under tensor parallelism and ZeRO-1. Orthogonalising needs the
// whole matrix, so the ranks that share it gather it, one of them iterates, and each takes its own part of the result;
// the matrices are distributed over these ranks. All layouts compute the same numbers. Whole matrices exist for
// OptimizerOptions::muon_batch_elements at a time, in fp32. Threads: training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/optim/rules/update_rule.h"
#include "core/optim/segment.h"

namespace concord {

// Returns |x| [rows, columns] after |steps| Newton-Schulz iterations.
at::Tensor orthogonalised(const at::Tensor& x, int64_t steps);
// Returns the factor of an update of this shape.
double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns);

class Muon {
 public:
  static constexpr const char* kMomentum = "momentum_buffer";  // key of the momentum

  // Whether a parameter consists of matrices that Muon updates.
  static bool takes(const Parameter& parameter);

  // |segments| are this rank's segments of such parameters, with their tensors set; moments[0] is the momentum. They
  // and |ddp| have to outlive it. Throws ConfigError for an invalid setting.
  Muon(const DistributedDataParallel& ddp, const OptimizerOptions& options, std::span<Segment* const> segments);

  // Updates the segments. Every rank of the job calls it. Waits: for the ranks that share matrices.
  void step(const RuleStep& step);

 private:
  struct Matrix {
    std::string tensor;
    int64_t rows, columns;
    int64_t begin;  // offset in the memory of the parameter's matrices
    bool is_own;    // this rank orthogonalises it
  };
  struct Part {
    Segment* segment;
    std::vector<ShardRun> runs;
  };
  // The matrices of a parameter.
  struct Task {
    std::vector<ProcessGroup*> groups;  // groups whose ranks share the matrices, one axis each
    std::vector<Matrix> matrices;
    std::vector<Part> parts;  // this rank's parts; may be empty
    int64_t elements = 0;
    at::TensorOptions options;
  };

  Task task_of(const GradBuffer& buffer, const Parameter& parameter, std::span<Segment* const> segments);
  at::Tensor momentum_of(const Task& task, double grad_scale) const;
  void iterate(const Task& task, const at::Tensor& whole) const;
  void apply(const Task& task, const at::Tensor& whole, const RuleStep& step) const;

  ParallelContext& job_;
  const OptimizerOptions options_;
  int64_t assigned_ = 0;  // matrices assigned to ranks so far
  std::vector<Task> tasks_;
};

}  // namespace concord
