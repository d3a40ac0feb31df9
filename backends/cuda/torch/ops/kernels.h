// CUDA kernels of Concord's operators, without libtorch. Arguments are dense arrays on the device of |stream|; no
// function waits for the stream. Sums and statistics are in fp32, or fp64 if the elements are fp64 ("Sum" below). There
// are no atomic additions: the same arguments give the same bits. A failed launch throws std::runtime_error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <span>

namespace concord::cuda::torch_side {

enum class Type { f32, f64, bf16, f16 };

struct Where {
  cudaStream_t stream;
  Type type;  // of the elements
};

bool is_hopper();  // whether the current device has compute capability 9.0

struct Rows {
  int64_t rows;
  int64_t width;
};

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps); |rstd| [rows] of Sum. With a branch x is first replaced
// by sum = x + multiplier * value.
struct Branch {
  const void* value = nullptr;  // null: no branch
  double multiplier = 1;
  void* sum = nullptr;
};
void rms_norm(Where where, Rows shape, const void* x, const Branch& branch, const void* weight, double eps, void* y,
              void* rstd);
// Whether the kernels below support the arguments: a row fits into a block's registers, and every array begins at a
// multiple of 16 bytes.
bool rms_norm_fits(Rows shape, Type type, std::initializer_list<const void*> pointers);
// Only for arguments that fit. |more|, which may be null, is added to dx before rounding. |scratch| of Sum has
// rms_norm_blocks(...) lines of |width|.
int64_t rms_norm_blocks(Rows shape, Type type);
void rms_norm_backward(Where where, Rows shape, const void* grad, const void* x, const void* weight, const void* rstd,
                       const void* more, void* dx, void* scratch, void* dweight);

// Sums over the rows. |scratch| of Sum has column_sum_lines(...) lines of |width|; at most 65535 of them.
int64_t column_sum_lines(Rows shape);
void column_sum(Where where, Rows shape, const void* x, void* scratch, void* sums);

// Each row of |gate_up| holds gate, then up, |width| elements each.
void swiglu(Where where, Rows shape, const void* gate_up, void* y);
void swiglu_backward(Where where, Rows shape, const void* grad, const void* gate_up, void* result);

// Rows of logits. Only the first |used| columns are tokens; column 0 is token |first| of the vocabulary.
struct VocabRows {
  int64_t rows, width, used, first;
};
// Computes per row: largest logit, sum of exp(logit - largest), the label's logit, sum of logits; [rows, 4] of Sum.
void cross_entropy_parts(Where where, const VocabRows& shape, const void* logits, const int64_t* labels, bool with_sum,
                         void* parts);
// Overwrites the logits with softmax * soft - [label] * hard - level; log-sum, soft, hard and level are [rows] of Sum.
void cross_entropy_grad(Where where, const VocabRows& shape, void* logits, const int64_t* labels, const void* log_sum,
                        const void* soft, const void* hard, const void* level);

// Computes the loss of each row and overwrites its logits with their gradient, assuming that of the loss is |grad|. One
// pass: the row, or most of it, stays in the block's memory. Needs the whole vocabulary (first is 0). |loss| [rows] of
// Sum.
struct LossNumbers {
  int64_t ignore_index;
  double label_smoothing, z_loss, grad;
};
void cross_entropy_with_grad(Where where, const VocabRows& shape, void* logits, const int64_t* labels,
                             const LossNumbers& numbers, void* loss);
// Multiplies rows by grad / expected; |grad| [rows] of Sum. Rows for which the two are equal are not read.
void cross_entropy_rescale(Where where, Rows shape, void* x, const void* grad, double expected);

// |table| holds rows |first| .. |first| + |table_rows| of the vocabulary. Other ids give zeros and have no gradient.
struct Lookup {
  int64_t tokens, width, first, table_rows;
};
void embedding(Where where, const Lookup& shape, const void* table, const int64_t* ids, void* y);
// dtable[id - first] += grad[token], in the order of tokens. |sorted|: the ids in ascending order; |token|: the index
// of each before sorting. |dtable| is of Sum.
void embedding_backward(Where where, const Lookup& shape, const void* grad, const int64_t* sorted, const int64_t* token,
                        void* dtable);

// The scalars of one AdamW step; see core/ops/optimizer/adamw_step.h.
struct AdamWNumbers {
  float grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps;
  const float* factor;  // on the device, replaces grad_scale unless null; if it is not finite, nothing changes
};
struct AdamWArrays {
  const void* grads;
  Type grads_type;
  float *weights, *m, *v;
  void* values;  // the 16-bit parameter, which is set to the rounded weights; may be null
  Type values_type;
  int64_t count;  // elements
};
// Updates all |arrays| in as few launches as possible: memory is idle between launches.
void adamw(cudaStream_t stream, const AdamWNumbers& numbers, std::span<const AdamWArrays> arrays);

// AdamW with narrow state: moments in bf16 or in 8-bit codes, main weights with a remainder (core/torch/remainder.h).
// Blocks of 256 codes share a scale.
enum class MomentType { f32, bf16, codes };
struct NarrowMoment {
  void* values;
  float* scales;  // one per block; null unless the moment is in codes
};
struct NarrowAdamWArrays {
  const void* grads;
  Type grads_type;
  bool has_remainder;  // whether weights are int16 remainders of |values|, which then are in bf16
  void* weights;       // otherwise fp32
  NarrowMoment m, v;
  void* values;  // as in AdamWArrays
  Type values_type;
  int64_t count;  // whole blocks, if a moment is in codes
};
struct NarrowMoments {
  MomentType m, v;
  const float *m_table, *v_table;  // 256 fractions and 255 thresholds each, on the device (core's block_codes.h)
};
void adamw_narrow(cudaStream_t stream, const AdamWNumbers& numbers, const NarrowMoments& moments,
                  std::span<const NarrowAdamWArrays> arrays);
// Computes update_factor of core/ops/optimizer/adamw.h. |loss| may be null.
void update_factor(cudaStream_t stream, const double* squares, const double* loss, double max_norm, double divisor,
                   float* factor);

}  // namespace concord::cuda::torch_side
