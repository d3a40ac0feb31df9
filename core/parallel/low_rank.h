// What an adapter (LoRA) adds to a linear layer: y[:, columns of a part] += scale * dropout(x) A_part^T B_part^T, with
// the A of all parts in one product. parallel_linear.h says how it is split; here are the products of one rank, without
// autograd.
//
// Shapes in names as in parallel_linear.cpp, and r the ranks of all parts behind each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/mesh/rng_tracker.h"
#include "core/ops/grad_sink.h"

namespace concord {

// A value for one call; the sinks and the tracker have to live until backward is done. Without parts there is nothing
// to add.
struct LowRank {
  struct Part {
    at::Tensor b;    // [columns, rank], what this rank has of it
    int64_t column;  // of y on this rank: where its columns begin
    double scale;
    const GradSink* sink = nullptr;
  };

  at::Tensor a_ri = {};
  const GradSink* sink = nullptr;
  std::vector<Part> parts = {};
  double dropout = 0;
  RngTracker* rng = nullptr;  // that dropout draws from,
  bool draws_apart = false;   // on each rank of the group other numbers

  bool empty() const { return parts.empty(); }
};

// What backward needs of it beside the tensors.
class LowRankProducts {
 public:
  explicit LowRankProducts(const LowRank& pair);

  // dropout(x) A^T; draws.
  at::Tensor inner(const at::Tensor& x_si, const at::Tensor& a_ri);
  // Multiplies |z_sr| by the scales, and adds it times B to |y_so|, both in place.
  void add_outer(const at::Tensor& y_so, const at::Tensor& z_sr, const at::Tensor* b) const;

  // The derivatives. |z_sr| is scaled.
  at::Tensor inner_grad(const at::Tensor& grad_so, const at::Tensor* b) const;
  at::Tensor outer_weight_grad(size_t part, const at::Tensor& grad_so, const at::Tensor& z_sr) const;
  at::Tensor inner_weight_grad(const at::Tensor& grad_sr, const at::Tensor& x_si) const;
  // Adds to |grad_si|, in place.
  void add_input_grad(const at::Tensor& grad_si, const at::Tensor& grad_sr, const at::Tensor& a_ri) const;

  size_t parts() const { return parts_.size(); }

 private:
  struct Part {
    int64_t column, columns;
    int64_t row, rank;  // of A
    double scale;
    std::optional<GradSink> sink;
  };

  at::Tensor dropped(const at::Tensor& x) const;

  std::vector<Part> parts_;
  std::optional<GradSink> sink_;
  double dropout_;
  RngTracker* rng_;
  bool draws_apart_;
  std::optional<Generator::State> drawn_;  // where dropout began to draw
};

}  // namespace concord
