// CUDA kernels of mixture-of-experts layers. See kernels.h.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backends/cuda/torch/ops/kernels.h"

namespace concord::cuda::torch_side {

// Chooses |k| experts for each token by its logits [tokens, experts], and computes their weights [tokens, k] of Sum:
// softmax over all experts or over the chosen ones, times |scale|. Only for sizes that fit.
struct RoutedTokens {
  int64_t tokens, experts, k;
  bool over_chosen;
  double scale;
};
bool moe_route_fits(const RoutedTokens& shape);
void moe_route(Where where, const RoutedTokens& shape, const void* logits, void* weights, int64_t* experts);
void moe_route_backward(Where where, const RoutedTokens& shape, const void* grad, const void* logits,
                        const int64_t* experts, void* result);

// The rows of experts, one for each of a token's |k| choices. core/ops/moe/moe_permute.h defines order, inverse and
// ends.
struct MoeRows {
  int64_t tokens, k, width;
};
// |chosen| [rows]: expert of each row, below |experts|. |scratch| has moe_order_scratch(...) numbers. Only for sizes
// that fit.
bool moe_order_fits(int64_t rows, int64_t experts);
int64_t moe_order_scratch(int64_t rows, int64_t experts);
void moe_order(cudaStream_t stream, int64_t rows, int64_t experts, const int64_t* chosen, int* scratch, int64_t* order,
               int64_t* inverse, int64_t* ends);
void moe_permute(Where where, const MoeRows& shape, const void* x, const int64_t* inverse, void* y);
// |weights| of Sum; null: all are 1.
void moe_combine(Where where, const MoeRows& shape, const void* rows, const void* weights, const int64_t* inverse,
                 void* y);
void moe_combine_backward(Where where, const MoeRows& shape, const void* grad, const void* rows, const void* weights,
                          const int64_t* inverse, void* drows, void* dweights);

// main [groups, out, in] in fp32 (+)= grad^T x for the rows of each group; group g has the rows from ends[g - 1] to
// ends[g]. Only for 16-bit types, dense arrays that begin at multiples of 16 bytes, and sizes that are multiples of 8.
struct GroupedRows {
  int64_t groups, rows, out, in;
  bool adds;  // false: main is overwritten
};
void grouped_weight_grad(Where where, const GroupedRows& shape, const void* grad, const void* x, const int64_t* ends,
                         float* main);
// Like grouped_weight_grad, but uses features of Hopper (hopper.cuh), for fewer than 2^31 rows. Only Hopper can run it.
void grouped_weight_grad_hopper(Where where, const GroupedRows& shape, const void* grad, const void* x,
                                const int64_t* ends, float* main);

}  // namespace concord::cuda::torch_side
