// concord::attention and its derivative on Ascend: torch_npu's fused attention (CANN's FlashAttentionScore), which
// never materialises a matrix of queries by keys, also with sinks; and the merging of parts of ring attention (CANN's
// RingAttentionUpdate). What is beyond their limits goes to the reference.
//
// B batch, S queries, T tokens of packed sequences, N query heads.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "backends/ascend/torch/ops/chip.h"
#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// --------------------------------------------------------------------------------------------------------- what fits

// torch_npu's documentation of npu_fusion_attention.
constexpr int64_t kMaxHeads = 256, kMaxHeadSize = 768, kMaxTokens = 1 << 20, kMaxSequences = 1024;
constexpr int64_t kMaxRows = 1 << 21;

bool fits(const Tensor& q, const Tensor& k, IntArrayRef cu_seqlens) {
  const auto type = q.scalar_type();
  const bool known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  return known && q.numel() > 0 && k.numel() > 0 && q.size(0) <= kMaxRows && q.size(1) <= kMaxTokens &&
         k.size(1) <= kMaxTokens && q.size(2) <= kMaxHeads && q.size(3) <= kMaxHeadSize &&
         static_cast<int64_t>(cu_seqlens.size()) <= kMaxSequences;
}

// Sinks, an argument since torch_npu 2.13: CANN's pages of the derivative list 16-bit types only, and those of the
// Ascend950 none.
bool fits_sinks(const Tensor& q, const Tensor& k, const Tensor& sinks, IntArrayRef cu_seqlens) {
  const bool is_short = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  return fits(q, k, cu_seqlens) && is_short && sinks.dim() == 1 && !chip_is("Ascend950");
}

// ------------------------------------------------------------------------------------------------------- vendor's call

// What hides later keys: true above the diagonal. One for every size, in the modes that only name a shape. Kept
// forever, because nothing may be freed once the vendor's library is gone; created on the host, so that every stream
// may read it.
Tensor triangle(c10::Device device) {
  constexpr int64_t kSize = 2048;
  static auto* const made = new std::map<c10::DeviceIndex, Tensor>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Tensor& mask = (*made)[device.index()];
  if (!mask.defined()) mask = at::ones({kSize, kSize}, at::kBool).triu(1).to(device);
  return mask;
}

constexpr int64_t kCausal = 3, kBand = 4;  // sparse_mode: both count from the last query and key

// [B, S, N, n], or [T, N, n] if sequences are packed.
Tensor laid(const Tensor& x, IntArrayRef cu_seqlens) { return (cu_seqlens.empty() ? x : x.squeeze(0)).contiguous(); }
Tensor as_batch(const Tensor& x, IntArrayRef cu_seqlens) { return cu_seqlens.empty() ? x : x.unsqueeze(0); }

// The arguments of both directions. Empty sequences are skipped.
Arguments shape_of(const Tensor& q, IntArrayRef cu_seqlens, bool causal, int64_t window) {
  Arguments arguments = {{"head_num", q.size(2)}, {"input_layout", cu_seqlens.empty() ? "BSND" : "TND"}};
  if (!cu_seqlens.empty()) {
    std::vector<int64_t> ends;
    for (size_t i = 1; i < cu_seqlens.size(); ++i) {
      if (cu_seqlens[i] > cu_seqlens[i - 1]) ends.push_back(cu_seqlens[i]);
    }
    arguments["actual_seq_qlen"] = arguments["actual_seq_kvlen"] = ends;
  }
  if (causal) arguments["atten_mask"] = triangle(q.device());
  if (causal) arguments["sparse_mode"] = window > 0 ? kBand : kCausal;
  if (window > 0) arguments["pre_tockens"] = window - 1;
  if (window > 0) arguments["next_tockens"] = int64_t{0};
  return arguments;
}

// Statistics of rows are [B, N, S, 8]. For packed sequences they are [T, N, 8], but contain the [N, length, 8] of the
// sequences, concatenated.
constexpr int64_t kCopies = 8;

// -> [B, N, S]
Tensor rows_of(const Tensor& statistic, IntArrayRef cu_seqlens) {
  const Tensor one = statistic.select(-1, 0);
  if (cu_seqlens.empty()) return one;
  const int64_t heads = statistic.size(1);
  const Tensor flat = one.flatten();
  std::vector<Tensor> parts;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    const int64_t length = cu_seqlens[i] - cu_seqlens[i - 1];
    if (length == 0) continue;
    parts.push_back(flat.narrow(0, cu_seqlens[i - 1] * heads, length * heads).view({heads, length}));
  }
  return at::cat(parts, 1).unsqueeze(0);
}

// And back.
Tensor statistic_of(const Tensor& rows, IntArrayRef cu_seqlens) {
  const auto copies = [](const Tensor& x) {
    auto sizes = x.sizes().vec();
    sizes.push_back(kCopies);
    return x.unsqueeze(-1).expand(sizes).contiguous();
  };
  if (cu_seqlens.empty()) return copies(rows);
  std::vector<Tensor> parts;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    const int64_t length = cu_seqlens[i] - cu_seqlens[i - 1];
    if (length > 0) parts.push_back(rows.narrow(2, cu_seqlens[i - 1], length).flatten());
  }
  return copies(at::cat(parts).view({rows.size(2), rows.size(1)}));
}

// ----------------------------------------------------------------------------------------------------- both directions

// What the vendor saves for the other direction, in its layout.
struct Statistics {
  Tensor out, largest, sum;
};

const std::optional<c10::OperatorHandle>& fused_forward() {
  static const auto op = find("npu_fusion_attention");
  return op;
}
const std::optional<c10::OperatorHandle>& fused_backward() {
  static const auto op = find("npu_fusion_attention_grad");
  return op;
}

bool has_sinks() {
  static const bool has =
      fused_forward() && fused_backward() && takes(*fused_forward(), "sink") && takes(*fused_backward(), "sink");
  return has;
}

struct Shape {
  IntArrayRef cu_seqlens;
  bool causal;
  int64_t window;
  double scale;
  Tensor sinks = {};  // fp32 [N], or undefined
};

Statistics run_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Shape& shape) {
  Arguments arguments = shape_of(q, shape.cu_seqlens, shape.causal, shape.window);
  arguments["query"] = laid(q, shape.cu_seqlens);
  arguments["key"] = laid(k, shape.cu_seqlens);
  arguments["value"] = laid(v, shape.cu_seqlens);
  arguments["scale"] = shape.scale;
  if (shape.sinks.defined()) arguments["sink"] = shape.sinks;
  const Stack made = call(*fused_forward(), std::move(arguments));
  return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
}

struct Gradients {
  Tensor q, k, v;
  Tensor sinks;  // fp32; undefined without sinks
};

Gradients run_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Statistics& saved,
                       const Shape& shape) {
  Arguments arguments = shape_of(q, shape.cu_seqlens, shape.causal, shape.window);
  arguments["query"] = laid(q, shape.cu_seqlens);
  arguments["key"] = laid(k, shape.cu_seqlens);
  arguments["value"] = laid(v, shape.cu_seqlens);
  arguments["dy"] = laid(grad, shape.cu_seqlens);
  arguments["attention_in"] = saved.out;
  arguments["softmax_max"] = saved.largest;
  arguments["softmax_sum"] = saved.sum;
  arguments["scale_value"] = shape.scale;
  if (shape.sinks.defined()) arguments["sink"] = shape.sinks;
  const Stack made = call(*fused_backward(), std::move(arguments));
  const auto gradient = [&](size_t i) { return as_batch(made.at(i).toTensor(), shape.cu_seqlens); };
  return {gradient(0), gradient(1), gradient(2), shape.sinks.defined() ? made.at(4).toTensor() : Tensor()};
}

// ----------------------------------------------------------------------------------------------------------- kernels

Pair attention(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
               double scale) {
  if (!fused_forward() || !fits(q, k, cu_seqlens)) {
    const Stack made = reference("concord::attention", {q, k, v, cu_seqlens, causal, window, scale});
    return {made.at(0).toTensor(), made.at(1).toTensor()};
  }
  const Statistics made = run_forward(q, k, v, {cu_seqlens, causal, window, scale});
  return {as_batch(made.out, cu_seqlens), rows_of(made.largest, cu_seqlens) + rows_of(made.sum, cu_seqlens).log()};
}

// The vendor computes exp(score - largest) / sum: with the log-sum-exp as the largest, the sum is 1.
Triple attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  if (!fused_backward() || !fits(q, k, cu_seqlens)) {
    const Stack made =
        reference("concord::attention_backward", {grad, q, k, v, out, lse, cu_seqlens, causal, window, scale});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
  }
  const Tensor largest = statistic_of(lse, cu_seqlens);
  const Gradients made = run_backward(grad, q, k, v, {laid(out, cu_seqlens), largest, at::ones_like(largest)},
                                      {cu_seqlens, causal, window, scale});
  return {made.q, made.k, made.v};
}

// ------------------------------------------------------------------------------------------------- parts of the keys
// Their statistics stay in the vendor's layout, [B, N, S, 8].

Triple attention_part(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale) {
  if (!fused_forward() || !fits(q, k, {})) {
    const Stack made = reference("concord_parts::attention_part", {q, k, v, causal, scale});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
  }
  const Statistics made = run_forward(q, k, v, {{}, causal, 0, scale});
  return {made.out, made.largest, made.sum};
}

// What the vendor's update computes, of libtorch's operators.
Triple composed_merge(const Tensor& out, const Tensor& largest, const Tensor& sum, const Tensor& more,
                      const Tensor& more_largest, const Tensor& more_sum) {
  const Tensor top = at::maximum(largest, more_largest);
  const Tensor own = sum * (largest - top).exp_(), others = more_sum * (more_largest - top).exp_();
  const Tensor both = own + others;
  const auto share = [&](const Tensor& part) { return (part / both).select(-1, 0).transpose(1, 2).unsqueeze(-1); };
  return {(out * share(own)).add_(more * share(others)), top, both};
}

// RingAttentionUpdate takes one row of the batch as [S, B, N n], or any as [T, N, n] in sequences of S tokens, where
// heads have to be multiples of 64.
bool fits_update(const Tensor& out) {
  const bool is_packed = out.size(2) <= kMaxHeads && out.size(3) <= kMaxHeadSize && out.size(3) % 64 == 0;
  return out.scalar_type() == at::kFloat && out.numel() > 0 && (out.size(0) == 1 || is_packed);
}

Triple attention_merge(const Tensor& out, const Tensor& largest, const Tensor& sum, const Tensor& more,
                       const Tensor& more_largest, const Tensor& more_sum) {
  static const auto update = find("npu_ring_attention_update");
  if (!sum.defined() || !more_sum.defined()) {
    const Stack made = reference("concord_parts::attention_merge", {out, largest, sum, more, more_largest, more_sum});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
  }
  if (!update || !fits_update(out)) return composed_merge(out, largest, sum, more, more_largest, more_sum);
  const int64_t rows = out.size(0), tokens = out.size(1), heads = out.size(2);
  const bool is_packed = rows > 1;
  const auto values = [&](const Tensor& x) {
    return is_packed ? x.reshape({rows * tokens, heads, -1}) : x.reshape({tokens, 1, -1});
  };
  const auto statistic = [&](const Tensor& x) {
    return is_packed ? x.contiguous().view({rows * tokens, heads, kCopies}) : x.contiguous();
  };
  Arguments arguments = {{"prev_attn_out", values(out)},
                         {"prev_softmax_max", statistic(largest)},
                         {"prev_softmax_sum", statistic(sum)},
                         {"cur_attn_out", values(more)},
                         {"cur_softmax_max", statistic(more_largest)},
                         {"cur_softmax_sum", statistic(more_sum)},
                         {"input_layout", is_packed ? "TND" : "SBH"}};
  if (is_packed) {
    arguments["actual_seq_qlen"] = at::arange(0, rows * tokens + 1, tokens, out.options().dtype(at::kLong));
  }
  const Stack made = call(*update, std::move(arguments));
  return {made.at(0).toTensor().view(out.sizes()), made.at(1).toTensor().view(largest.sizes()),
          made.at(2).toTensor().view(largest.sizes())};
}

Tensor attention_log_sum(const Tensor& largest, const Tensor& sum) {
  return sum.defined() ? largest.select(-1, 0) + sum.select(-1, 0).log() : largest;
}

// -------------------------------------------------------------------------------------------------------- derivative

// Attention of a layer, with |sinks| or without. What the vendor saves stays in its layout, and there is no
// log-sum-exp: only the parts of ring attention need it, which call the kernels above.
struct LayerAttention : torch::autograd::Function<LayerAttention> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& sinks, const std::vector<int64_t>& cu_seqlens, bool causal,
                        int64_t window, double scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const Tensor wide_sinks = sinks ? sinks->to(at::kFloat) : Tensor();
    const Statistics made = run_forward(q, k, v, {cu_seqlens, causal, window, scale, wide_sinks});
    context->save_for_backward({q, k, v, made.out, made.largest, made.sum, wide_sinks});
    context->saved_data["sinks_type"] = sinks ? sinks->scalar_type() : at::kFloat;
    context->saved_data["cu_seqlens"] = cu_seqlens;
    context->saved_data["causal"] = causal;
    context->saved_data["window"] = window;
    context->saved_data["scale"] = scale;
    return as_batch(made.out, cu_seqlens);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    if (c10::GradMode::is_enabled()) {
      throw std::runtime_error("operator attention has only a first derivative, but a second one was requested");
    }
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const std::vector<int64_t> cu_seqlens = data["cu_seqlens"].toIntVector();
    const Gradients made = run_backward(
        grads.at(0), saved.at(0), saved.at(1), saved.at(2), {saved.at(3), saved.at(4), saved.at(5)},
        {cu_seqlens, data["causal"].toBool(), data["window"].toInt(), data["scale"].toDouble(), saved.at(6)});
    const Tensor dsinks = made.sinks.defined() ? made.sinks.to(data["sinks_type"].toScalarType()) : Tensor();
    return {made.q, made.k, made.v, dsinks, {}, {}, {}, {}};
  }
};

// Replaces the operator's derivative on this device. Inputs beyond the vendor's limits use that one, which is the same
// for all devices and is registered for the host too.
Pair attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal,
                        int64_t window, double scale) {
  const bool records = c10::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (!records || !fused_forward() || !fused_backward() || !fits(q, k, cu_seqlens)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("concord::attention", "");
    Stack stack{q, k, v, cu_seqlens, causal, window, scale};
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, stack);
    return {stack.at(0).toTensor(), stack.at(1).toTensor()};
  }
  return {LayerAttention::apply(q, k, v, std::optional<Tensor>(), cu_seqlens.vec(), causal, window, scale), Tensor()};
}

Tensor attention_with_sinks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                            IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  if (!has_sinks() || !fits_sinks(q, k, sinks, cu_seqlens)) {
    return reference("concord::attention_with_sinks", {q, k, v, sinks, cu_seqlens, causal, window, scale})
        .at(0)
        .toTensor();
  }
  return as_batch(run_forward(q, k, v, {cu_seqlens, causal, window, scale, sinks.to(at::kFloat)}).out, cu_seqlens);
}

Tensor attention_with_sinks_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                                     IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  if (!has_sinks() || !fits_sinks(q, k, sinks, cu_seqlens)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("concord::attention_with_sinks", "");
    Stack stack{q, k, v, sinks, cu_seqlens, causal, window, scale};
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, stack);
    return stack.at(0).toTensor();
  }
  return LayerAttention::apply(q, k, v, std::optional<Tensor>(sinks), cu_seqlens.vec(), causal, window, scale);
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("attention", attention);
  m.impl("attention_backward", attention_backward);
  m.impl("attention_with_sinks", attention_with_sinks);
}
TORCH_LIBRARY_IMPL(concord_parts, PrivateUse1, m) {
  m.impl("attention_log_sum", attention_log_sum);
  m.impl("attention_merge", attention_merge);
  m.impl("attention_part", attention_part);
}
TORCH_LIBRARY_IMPL(concord, AutogradPrivateUse1, m) {
  m.impl("attention", attention_autograd);
  m.impl("attention_with_sinks", attention_with_sinks_autograd);
}

}  // namespace
}  // namespace concord::ascend::torch_side
