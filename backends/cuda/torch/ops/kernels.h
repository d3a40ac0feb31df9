// CUDA kernels of Concord's operators, free of libtorch: dense arrays on the device of |stream|; nothing waits for the
// stream. Sums and statistics are kept in fp32, in fp64 where the elements are fp64 ("Sum" below). No atomic additions:
// the same arguments give the same bits. A launch that fails throws std::runtime_error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <span>

namespace concord::cuda::torch_side {

enum class Type { f32, f64, bf16, f16 };
enum class Narrow { none, e4m3, e5m2 };  // 8-bit floats

struct Where {
  cudaStream_t stream;
  Type type;  // of the elements
};

struct Rows {
  int64_t rows;
  int64_t width;
};

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps); |rstd| [rows] of Sum. With a branch x is first replaced
// by sum = x + multiplier * value.
struct Branch {
  const void* value = nullptr;  // null: there is none
  double multiplier = 1;
  void* sum = nullptr;
};
void rms_norm(Where where, Rows shape, const void* x, const Branch& branch, const void* weight, double eps, void* y,
              void* rstd);
// Whether a row fits into a block's registers and every array begins at a multiple of 16 bytes.
bool rms_norm_fits(Rows shape, Type type, std::initializer_list<const void*> pointers);
// Only for what fits. |more|, which may be null, is added to dx before that is rounded. |scratch| of Sum has
// rms_norm_blocks(...) lines of |width|.
int64_t rms_norm_blocks(Rows shape, Type type);
void rms_norm_backward(Where where, Rows shape, const void* grad, const void* x, const void* weight, const void* rstd,
                       const void* more, void* dx, void* scratch, void* dweight);

// Sums over the rows. |scratch| of Sum has column_sum_lines(...) lines of |width|; at most 65535 of them.
int64_t column_sum_lines(Rows shape);
void column_sum(Where where, Rows shape, const void* x, void* scratch, void* sums);

// Query, key and value heads, each [outer, inner, heads, dim] with strides and dense in its last dim, -> one packed
// array y [outer, inner, heads + 2 kv_heads, dim]. The first 2 * |half| elements of each query and key head are turned,
// the others copied; cos and sin are [outer, inner, half] of Sum with strides. kv_heads may be 0.
struct HeadsFrom {
  const void* x;
  int64_t stride[3];
};
struct PackedRope {
  int64_t outer, inner, heads, kv_heads, dim, half;
  HeadsFrom q, k, v;
  int64_t angle_stride[2];
};
void rope_packed(Where where, const PackedRope& shape, const void* cos, const void* sin, bool back, void* y);

// The same of queries and keys that are normed first: y = x * rstd * weight, where |rstd| [outer, inner, heads +
// kv_heads] of Sum is that of each of their heads. Only for what fits: heads of vectors, which 32 threads hold.
struct HeadNorms {
  const void *q, *k;  // weights [dim]
  double eps;
};
bool norm_rope_fits(const PackedRope& shape, Type type, const void* cos, const void* sin,
                    std::initializer_list<const void*> pointers);
void norm_rope(Where where, const PackedRope& shape, const HeadNorms& norms, const void* cos, const void* sin, void* y,
               void* rstd);
// The gradients are |shape|'s; |qkv| and |dqkv| are packed. |scratch| of Sum has norm_rope_lines(...) lines of |dim|.
int64_t norm_rope_lines(const PackedRope& shape, Type type);
void norm_rope_backward(Where where, const PackedRope& shape, const HeadNorms& norms, const void* cos, const void* sin,
                        const void* qkv, const void* rstd, void* dqkv, void* scratch, void* dq_weight, void* dk_weight);

// What the one query of each row sees of its first lengths[row] keys, or of the last |window| of those; see
// core/ops/attention/cached_attention.h. Strides are of rows, tokens and heads. |sinks| [heads] of Sum, may be null;
// |out| is dense. |scratch| of Sum has cached_attention_scratch(...) numbers. Only for what fits. The order of sums
// does not depend on |keys|, which is how many there is room for.
struct CachedHeads {
  int64_t rows, keys, heads, kv_heads, size, window;
  double scale, cap;
  HeadsFrom q, k, v;
};
bool cached_attention_fits(const CachedHeads& shape);
int64_t cached_attention_scratch(const CachedHeads& shape);
void cached_attention(Where where, const CachedHeads& shape, const int64_t* lengths, const void* sinks, void* scratch,
                      void* out);

// Rows of |gate_up| hold the gate and then up, |width| each.
void swiglu(Where where, Rows shape, const void* gate_up, void* y);
void swiglu_backward(Where where, Rows shape, const void* grad, const void* gate_up, void* result);

// A matrix of 8-bit floats of a scale, largest / amax, as it is and transposed; see core/ops/precision/fp8.h. Only for
// what fits: 16-bit types, sizes that are multiples of 16, arrays that begin at multiples of 16 bytes.
struct Fp8Arrays {
  const float* amax;
  float* seen;  // becomes the larger of itself and the matrix's own amax; may be null
  void *rows, *columns;
  float* inverse;  // gets 1 / scale
};
bool fp8_fits(Rows shape, Type type, std::initializer_list<const void*> pointers);
void fp8_amax(Where where, int64_t count, const void* x, float* amax);  // |count| is a multiple of 8
void fp8_quantise(Where where, Rows shape, const void* x, Narrow format, const Fp8Arrays& to);
// |shape|: of one half of |gate_up|, and of |grad|; the derivative's matrix is twice as wide.
void fp8_swiglu(Where where, Rows shape, const void* gate_up, Narrow format, const Fp8Arrays& to);
void fp8_swiglu_backward(Where where, Rows shape, const void* grad, const void* gate_up, Narrow format,
                         const Fp8Arrays& to);

// The same in e4m3 with a scale per block, as cublasLt reads them: one for 128 columns of a row, [blocks, rows], or if
// |square| for 128 x 128 elements, [blocks of rows, row_line] and [blocks of columns, column_line].
constexpr int64_t kFp8BlockSize = 128;
struct Fp8BlockArrays {
  void *rows, *columns;
  float *row_scales, *column_scales;
  int64_t row_line, column_line;
};
void fp8_quantise_blocks(Where where, Rows shape, const void* x, bool square, const Fp8BlockArrays& to);

// Which |k| experts each token is sent to, by its logits [tokens, experts], and the weights [tokens, k] of Sum: softmax
// over all experts or over the chosen ones, times |scale|. Only for what fits.
struct RoutedTokens {
  int64_t tokens, experts, k;
  bool over_chosen;
  double scale;
};
bool moe_route_fits(const RoutedTokens& shape);
void moe_route(Where where, const RoutedTokens& shape, const void* logits, void* weights, int64_t* experts);
void moe_route_backward(Where where, const RoutedTokens& shape, const void* grad, const void* logits,
                        const int64_t* experts, void* result);

// Rows of experts: those of |k| choices of each token. See core/ops/moe/moe_permute.h for order, inverse and ends.
struct MoeRows {
  int64_t tokens, k, width;
};
// |chosen| [rows] below |experts|. |scratch| has moe_order_scratch(...) numbers. Only for what fits.
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

// main [groups, out, in] in fp32 (+)= grad^T x for the rows of each group, which are those until ends[group]. Only for
// 16-bit types, dense arrays that begin at multiples of 16 bytes, and sizes that are multiples of 8.
struct GroupedRows {
  int64_t groups, rows, out, in;
  bool adds;  // else main is overwritten
};
void grouped_weight_grad(Where where, const GroupedRows& shape, const void* grad, const void* x, const int64_t* ends,
                         float* main);
// The same with what only Hopper has (hopper.cuh), for fewer than 2^31 rows. Other devices cannot run it.
bool is_hopper();  // whether the current device has compute capability 9.0
void grouped_weight_grad_hopper(Where where, const GroupedRows& shape, const void* grad, const void* x,
                                const int64_t* ends, float* main);

// Rows of logits of which the first |used| columns count; column 0 is number |first| of the vocabulary.
struct VocabRows {
  int64_t rows, width, used, first;
};
// Of each row: largest logit, sum of exp(logit - largest), the label's logit, sum of logits; [rows, 4] of Sum.
void cross_entropy_parts(Where where, const VocabRows& shape, const void* logits, const int64_t* labels, bool with_sum,
                         void* parts);
// Writes softmax * soft - [label] * hard - level over the logits; the four are [rows] of Sum.
void cross_entropy_grad(Where where, const VocabRows& shape, void* logits, const int64_t* labels, const void* log_sum,
                        const void* soft, const void* hard, const void* level);

// Loss of each row, and over its logits the gradient if that of the loss is |grad|: in one pass, where the row (or most
// of it) stays in the block's memory. All columns of the vocabulary are here (first is 0). |loss| [rows] of Sum.
struct LossNumbers {
  int64_t ignore_index;
  double label_smoothing, z_loss, grad;
};
void cross_entropy_with_grad(Where where, const VocabRows& shape, void* logits, const int64_t* labels,
                             const LossNumbers& numbers, void* loss);
// Rows times grad / expected; |grad| [rows] of Sum. Those where the two are equal are not even read.
void cross_entropy_rescale(Where where, Rows shape, void* x, const void* grad, double expected);

// |table| holds rows |first| .. |first| + |table_rows| of the vocabulary; other ids give zeros, and no gradient.
struct Lookup {
  int64_t tokens, width, first, table_rows;
};
void embedding(Where where, const Lookup& shape, const void* table, const int64_t* ids, void* y);
// dtable[id - first] += grad[token], in the order of tokens. |sorted| are the ids in rising order, |token| where each
// was. |dtable| is of Sum.
void embedding_backward(Where where, const Lookup& shape, const void* grad, const int64_t* sorted, const int64_t* token,
                        void* dtable);

// One step of AdamW; see core/optim/adamw.h for the numbers. |values| may be null: the 16-bit parameter that follows.
struct AdamWNumbers {
  float grad_scale, decay, beta1_rest, beta2, beta2_rest, step_size, sqrt_bias_correction2, eps;
  const float* factor;  // on the device, in place of grad_scale; nothing is changed where it is not finite. Or null
};
struct AdamWArrays {
  const void* grads;
  Type grads_type;
  float *weights, *m, *v;
  void* values;
  Type values_type;
  int64_t count;  // elements
};
// All of |arrays|, in as few launches as possible: between two of them the memory would idle.
void adamw(cudaStream_t stream, const AdamWNumbers& numbers, std::span<const AdamWArrays> arrays);
// Such a factor, see core/ops/optimizer/adamw.h. |loss| may be null.
void update_factor(cudaStream_t stream, const double* squares, const double* loss, double max_norm, double divisor,
                   float* factor);

}  // namespace concord::cuda::torch_side
