// The LoRA branch of a linear layer: y[:, columns of a part] += scale * dropout(x) A_part^T B_part^T, with the A of all
// parts in one GEMM. parallel_linear.h says how it is sharded; these are the GEMMs of one rank, without autograd.
//
// Shapes in names as in parallel_linear.cpp; r is the sum of the ranks of all parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/mesh/rng_tracker.h"
#include "core/ops/grad_sink.h"

namespace concord {

// The operands of one call; the sinks and the tracker must live until backward is done. No parts: no adapter.
struct LowRank {
  struct Part {
    at::Tensor b;    // [columns, rank], the shard of this rank
    int64_t column;  // first column in y on this rank
    double scale;
    const GradSink* sink = nullptr;
  };

  at::Tensor a_ri = {};
  const GradSink* sink = nullptr;
  std::vector<Part> parts = {};
  double dropout = 0;
  RngTracker* rng = nullptr;  // source of dropout
  bool draws_apart = false;   // draw different numbers on each rank of the group

  bool empty() const { return parts.empty(); }
};

// The GEMMs, and the state that backward needs in addition to the tensors.
class LowRankProducts {
 public:
  explicit LowRankProducts(const LowRank& pair);

  // Returns dropout(x) A^T; draws random numbers.
  at::Tensor inner(const at::Tensor& x_si, const at::Tensor& a_ri);
  // Multiplies |z_sr| by the scales, and adds z B^T to |y_so|, both in place.
  void add_outer(const at::Tensor& y_so, const at::Tensor& z_sr, const at::Tensor* b) const;

  // Return the derivatives. |z_sr| is scaled.
  at::Tensor inner_grad(const at::Tensor& grad_so, const at::Tensor* b) const;
  at::Tensor outer_weight_grad(size_t part, const at::Tensor& grad_so, const at::Tensor& z_sr) const;
  at::Tensor inner_weight_grad(const at::Tensor& grad_sr, const at::Tensor& x_si) const;
  // Adds to |grad_si| in place.
  void add_input_grad(const at::Tensor& grad_si, const at::Tensor& grad_sr, const at::Tensor& a_ri) const;

  size_t parts() const { return parts_.size(); }

 private:
  struct Part {
    int64_t column, columns;
    int64_t row, rank;  // first row in A, LoRA rank
    double scale;
    std::optional<GradSink> sink;
  };

  at::Tensor dropped(const at::Tensor& x) const;

  std::vector<Part> parts_;
  std::optional<GradSink> sink_;
  double dropout_;
  RngTracker* rng_;
  bool draws_apart_;
  std::optional<Generator::State> drawn_;  // state of the generator before dropout
};

}  // namespace concord
