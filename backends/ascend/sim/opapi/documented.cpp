#include "backends/ascend/sim/opapi/documented.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "platform/sdk/failure.hpp"

namespace concord::ascend::sim {
namespace {

using sdk::text;
using Sizes = std::vector<int64_t>;

char letter_of(abi::aclDataType dtype) {
  switch (dtype) {
    case abi::kAclFloat: return 'f';
    case abi::kAclFloat16: return 'h';
    case abi::kAclBf16: return 'b';
    case abi::kAclInt32: return 'i';
    case abi::kAclInt64: return 'l';
    case abi::kAclUint8: return 'u';
    case abi::kAclBool: return 'o';
    default: return '?';
  }
}

// |types| has a letter per tensor; '.' stands for any type and for a missing tensor.
bool matches(const std::string& types, const std::vector<const TensorView*>& tensors) {
  for (size_t i = 0; i < types.size() && i < tensors.size(); ++i) {
    if (types[i] == '.') continue;
    if (tensors[i] == nullptr || letter_of(tensors[i]->dtype) != types[i]) return false;
  }
  return true;
}

std::string words(const std::vector<const TensorView*>& tensors) {
  std::string result;
  for (const TensorView* each : tensors) {
    result += (result.empty() ? "" : ", ") + (each == nullptr ? "none" : describe(*each));
  }
  return result;
}

bool is_tail(const Sizes& tail, const Sizes& whole) {
  return tail.size() <= whole.size() && std::equal(tail.rbegin(), tail.rend(), whole.rbegin());
}

// The sizes of |x| with 1 in the last |count| dimensions.
Sizes with_ones(Sizes x, size_t count) {
  for (size_t i = 0; i < count && i < x.size(); ++i) x[x.size() - 1 - i] = 1;
  return x;
}

const Sizes& sizes(const CallArguments& call, size_t i) { return call.tensors.at(i)->sizes; }

// ------------------------------------------------------------------------------------------------- single operators

std::string norm(const Sizes& x, const Sizes& gamma, const Sizes& y, const Sizes& rstd) {
  if (!is_tail(gamma, x)) return "gamma must have the last sizes of x";
  if (y != x) return "the output must have the shape of x";
  if (rstd != with_ones(x, gamma.size())) return "rstd must have the shape of x, with 1 for each normed dimension";
  return "";
}

std::string rms_norm(const CallArguments& call) {
  return norm(sizes(call, 0), sizes(call, 1), sizes(call, 2), sizes(call, 3));
}

std::string add_rms_norm(const CallArguments& call) {
  if (sizes(call, 0) != sizes(call, 1)) return "x1 and x2 must have one shape";
  if (call.numbers.at(0) < 0) return "epsilon must be >= 0";
  return norm(sizes(call, 0), sizes(call, 2), sizes(call, 3), sizes(call, 4));
}

std::string rms_norm_grad(const CallArguments& call) {
  if (sizes(call, 0) != sizes(call, 1) || sizes(call, 4) != sizes(call, 1)) return "dy, x and dx must have one shape";
  if (!is_tail(sizes(call, 3), sizes(call, 1))) return "gamma must have the last sizes of x";
  if (sizes(call, 5) != sizes(call, 3)) return "dgamma must have the shape of gamma";
  return "";
}

// |half| has half of the size of |whole| in dimension |dim|, and is otherwise equal.
std::string halves(const Sizes& whole, Sizes half, int64_t dim) {
  const auto rank = static_cast<int64_t>(whole.size());
  if (dim < -rank || dim >= rank) return text("dim is %lld", static_cast<long long>(dim));
  const auto place = static_cast<size_t>(dim < 0 ? dim + rank : dim);
  if (whole[place] % 2 != 0) return "the size in dim must be even";
  if (half.size() != whole.size()) return "the shapes must differ in dim only";
  half[place] *= 2;
  return half == whole ? "" : "the shapes must differ in dim only, by a factor of 2";
}

std::string swiglu(const CallArguments& call) { return halves(sizes(call, 0), sizes(call, 1), call.integers.at(0)); }

std::string swiglu_grad(const CallArguments& call) {
  if (sizes(call, 2) != sizes(call, 1)) return "the output must have the shape of x";
  return halves(sizes(call, 1), sizes(call, 0), call.integers.at(0));
}

// [B, S, N, D] in some order: the factors show which dimension is S, if exactly one is not 1.
std::string rotary(const CallArguments& call) {
  const Sizes &x = sizes(call, 0), &cosine = sizes(call, 1);
  const int64_t mode = call.integers.at(0), width = x[3];
  if (mode != 0 && mode != 1) return text("mode is %lld; 0 (half) and 1 (interleave)", static_cast<long long>(mode));
  if (cosine != sizes(call, 2)) return "cos and sin must have one shape";
  if (cosine[3] != width) return "x, cos and sin must have one last size";
  if (width >= 896 || width % 2 != 0)
    return text("the last size is %lld; even, below 896", static_cast<long long>(width));
  Sizes others;
  for (size_t i = 0; i < 3; ++i) {
    if (cosine[i] != 1 && cosine[i] != x[i]) return "a size of cos must be 1 or that of x";
    if (cosine[i] == 1) others.push_back(x[i]);
  }
  if (others.size() != 2) return "";  // which of them B and N are is not visible
  if (mode == 0 && (others[0] >= 1000 || others[1] >= 1000)) return "B and N must be below 1000";
  if (mode == 1 && others[0] * others[1] >= 1000) return "B * N must be below 1000";
  return "";
}

// A layout's dimensions, as letters; null for an unknown one.
int64_t size_in(const Sizes& sizes, const std::string& layout, char dim) {
  const size_t place = layout.find(dim);
  return place == std::string::npos || place >= sizes.size() ? -1 : sizes[place];
}

// Modes 2 to 4 name a shape; the mask is one triangle of 2048 x 2048 for all of them. Without a mask the hardware
// attends to all keys, whatever the mode.
std::string attention_mask(const TensorView* mask, int64_t sparse_mode) {
  constexpr int64_t kCompressed = 2048;
  if (sparse_mode < 0 || sparse_mode > 6)
    return text("sparseMode is %lld; 0 to 6", static_cast<long long>(sparse_mode));
  if (mask == nullptr) return sparse_mode == 0 ? "" : "sparseMode has no effect without a mask";
  if (mask->dtype != abi::kAclBool && mask->dtype != abi::kAclUint8) return "the mask must be bool or uint8";
  const bool is_compressed = sparse_mode >= 2 && sparse_mode <= 4;
  if (is_compressed && mask->sizes != Sizes{kCompressed, kCompressed}) return "the mask must be of 2048 x 2048";
  return "";
}

std::string attention_sizes(const std::string& layout, const Sizes& q, const Sizes& k, int64_t heads) {
  constexpr int64_t kMaxHeads = 256, kMaxWidth = 768, kMaxTokens = 1 << 20, kMaxBatch = 1 << 21;
  if (layout.size() != q.size() || layout.size() != k.size()) return "the layout does not match the dimensions";
  if (heads < 1 || heads > kMaxHeads) return text("%lld heads; 1 to 256", static_cast<long long>(heads));
  const bool is_flat = layout.find('H') != std::string::npos;
  if (is_flat && size_in(q, layout, 'H') % heads != 0) return "H must be a multiple of the heads";
  const int64_t width = is_flat ? size_in(q, layout, 'H') / heads : size_in(q, layout, 'D');
  if (width < 1 || width > kMaxWidth) return text("a head has %lld elements; 1 to 768", static_cast<long long>(width));
  if (!is_flat) {
    const int64_t own = size_in(q, layout, 'N'), shared = size_in(k, layout, 'N');
    if (own != heads) return "headNum is not the N of the query";
    if (shared < 1 || own % shared != 0) return "the heads of the query must be a multiple of those of the key";
  }
  const char tokens = layout == "TND" ? 'T' : 'S';
  if (size_in(q, layout, tokens) > kMaxTokens || size_in(k, layout, tokens) > kMaxTokens) {
    return text("%c must be at most 1 M", tokens);
  }
  if (tokens == 'T') return "";
  if (size_in(q, layout, 'B') != size_in(k, layout, 'B')) return "query and key must have one B";
  return size_in(q, layout, 'B') > kMaxBatch ? "B must be at most 2 M" : "";
}

// The tensors of an interface of attention by their positions.
struct AttentionPlaces {
  size_t key, mask;
  size_t gradient = 0, row_max = 0;  // of the derivative
};

template <AttentionPlaces places>
std::string attention(const CallArguments& call) {
  const double keep = call.numbers.at(1);
  if (!(keep > 0 && keep <= 1)) return text("keepProb is %g; above 0, at most 1", keep);
  const std::string& layout = call.texts.at(0);
  const Sizes &q = sizes(call, 0), &k = sizes(call, places.key);
  if (std::string wrong = attention_sizes(layout, q, k, call.integers.at(2)); !wrong.empty()) return wrong;
  if (places.gradient != 0) {
    const TensorView& row_max = *call.tensors.at(places.row_max);
    if (sizes(call, places.gradient) != q) return "query and dy must have one shape";
    if (row_max.sizes.size() != (layout == "TND" ? 3 : 4) || row_max.sizes.back() != 8 ||
        row_max.dtype != abi::kAclFloat) {
      return "softmaxMax must be float32 [B, N, S, 8], or [T, N, 8]";
    }
  }
  return attention_mask(call.tensors.at(places.mask), call.integers.at(4));
}

std::string ring_update(const CallArguments& call) {
  const Sizes &values = sizes(call, 0), &row_max = sizes(call, 1);
  const std::string& layout = call.texts.at(0);
  if (layout != "SBH" && layout != "TND") return "the layout is " + layout + "; SBH and TND";
  if (values.size() != 3 || sizes(call, 3) != values) return "both results must have one shape of 3 dimensions";
  for (const size_t i : {2, 4, 5}) {
    if (sizes(call, i) != row_max) return "the statistics must have one shape";
  }
  if (row_max.size() != (layout == "TND" ? 3 : 4) || row_max.back() != 8) {
    return "the statistics must be [B, N, S, 8], or [T, N, 8]";
  }
  if (layout == "SBH") return "";
  if (call.tensors.at(6) == nullptr) return "TND needs actualSeqQlen";
  if (values[1] > 256 || values[2] > 768 || values[2] % 64 != 0) {
    return "N must be at most 256, and D a multiple of 64 up to 768";
  }
  return "";
}

std::string adamw(const CallArguments& call) {
  for (const size_t i : {size_t{1}, size_t{2}, size_t{4}}) {
    if (sizes(call, i) != sizes(call, 0)) return "var, m, v and grad must have one shape";
  }
  const TensorView& step = *call.tensors.at(5);
  for (const int64_t size : step.sizes) {
    if (size != 1) return "step must have one element";
  }
  return "";
}

std::string geglu_form(int64_t approximate) {
  return approximate == 0 || approximate == 1
             ? ""
             : text("approximate is %lld; 0 and 1", static_cast<long long>(approximate));
}

std::string geglu(const CallArguments& call) {
  if (sizes(call, 2) != sizes(call, 1)) return "out and outGelu must have one shape";
  const std::string wrong = halves(sizes(call, 0), sizes(call, 1), call.integers.at(0));
  return wrong.empty() ? geglu_form(call.integers.at(1)) : wrong;
}

std::string geglu_grad(const CallArguments& call) {
  if (sizes(call, 2) != sizes(call, 0)) return "dy and gelu must have one shape";
  if (sizes(call, 3) != sizes(call, 1)) return "the output must have the shape of x";
  const std::string wrong = halves(sizes(call, 1), sizes(call, 0), call.integers.at(0));
  return wrong.empty() ? geglu_form(call.integers.at(1)) : wrong;
}

// ---------------------------------------------------------------------------------------------------------- experts

int64_t elements(const Sizes& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

// The size of the dimension whose elements are neighbours.
int64_t dense_size(const TensorView& matrix) {
  const size_t last = matrix.sizes.size() - 1;
  return matrix.strides[last] == 1 || last == 0 ? matrix.sizes[last] : matrix.sizes[last - 1];
}

std::string grouped_products(const CallArguments& call) {
  constexpr int64_t kMaxSize = 65535, kMaxGroups = 1024;
  const int64_t group_type = call.integers.at(1);
  const TensorView* const groups = call.tensors.at(0);
  for (const auto& list : call.lists) {
    if (list.size() != 1) return "";  // the pages describe other cases, too
    const char letter = letter_of(list[0]->dtype);
    if (letter != letter_of(call.lists[0][0]->dtype) || (letter != 'f' && letter != 'h' && letter != 'b')) {
      return "x, weight and out must be of one of the types float32, float16, bfloat16";
    }
  }
  if (call.lists.size() < 3) return "";
  const TensorView &x = *call.lists[0][0], &weight = *call.lists[1][0];
  if (group_type != 0 && group_type != 2) return text("groupType is %lld; 0 and 2", static_cast<long long>(group_type));
  if (x.sizes.size() != 2 || weight.sizes.size() != (group_type == 0 ? 3 : 2)) {
    return "x must be [m, k], and weight [g, k, n], or [k, n] if k is grouped";
  }
  if (dense_size(x) > kMaxSize || dense_size(weight) > kMaxSize) return "the last size must be below 65536";
  if (groups == nullptr || letter_of(groups->dtype) != 'l') return "groupList must be int64";
  if (groups->sizes.size() != 1 || groups->sizes[0] > kMaxGroups) return "groupList must be 1 to 1024 numbers";
  return "";
}

std::string added_products(const CallArguments& call) {
  const Sizes &x = sizes(call, 0), &weight = sizes(call, 1), &groups = sizes(call, 2), &y = sizes(call, 3);
  if (call.integers.at(0) != 2) return "groupType must be 2";
  if (x.size() != 2 || weight.size() != 2 || groups.size() != 1 || y.size() != 2) {
    return "x, weight and y must have 2 dimensions, and groupList 1";
  }
  if (x[0] != weight[0] || y[0] != groups[0] * x[1] || y[1] != weight[1]) {
    return "x must be [k, m], weight [k, n] and y [g m, n]";
  }
  return "";
}

constexpr int64_t kMaxChoices = 512;

std::string permute(const CallArguments& call) {
  const Sizes &tokens = sizes(call, 0), &indices = sizes(call, 1), &permuted = sizes(call, 2), &sorted = sizes(call, 3);
  const int64_t rows = elements(indices), wanted = call.integers.at(0);
  if (tokens.size() < 2 || permuted.size() < 2) return "tokens must have at least 2 dimensions";
  if (indices.size() > 2 || indices.empty() || indices[0] != tokens[0])
    return "indices must be [tokens, k] or [tokens]";
  if (indices.size() == 2 && indices[1] > kMaxChoices) return "topK must be at most 512";
  if (rows >= 16777215) return "indices must be fewer than 16777215";
  if (sorted != Sizes{rows}) return "sortedIndices must be [tokens k]";
  if (wanted >= 0 && permuted[0] != (wanted == 0 ? rows : std::min(wanted, rows))) return "wrong number of rows";
  return "";
}

std::string permute_grad(const CallArguments& call) {
  const Sizes &grad = sizes(call, 0), &sorted = sizes(call, 1), &out = sizes(call, 2);
  const int64_t k = call.integers.at(0);
  if (k < 1 || k > kMaxChoices) return text("numTopk is %lld; 1 to 512", static_cast<long long>(k));
  if (grad.size() != 2 || sorted != Sizes{grad[0]} || out != Sizes{grad[0] / k, grad[1]}) {
    return "the gradient must be [tokens k, hidden], sortedIndices [tokens k] and the output [tokens, hidden]";
  }
  return "";
}

// [tokens k, hidden], [tokens, hidden], [tokens k] and, or without k, [tokens, k].
std::string unpermuted(const Sizes& rows, const Sizes& tokens, const Sizes& sorted, const TensorView* probs) {
  if (rows.size() != 2 || tokens.size() != 2 || sorted != Sizes{rows[0]}) return "wrong numbers of dimensions";
  const int64_t k = probs == nullptr ? 1 : probs->sizes.back();
  if (k > kMaxChoices) return "topK must be at most 512";
  if (rows[0] != tokens[0] * k || rows[1] != tokens[1]) return "permutedTokens must be [tokens k, hidden]";
  if (probs != nullptr && probs->sizes != Sizes{tokens[0], k}) return "probs must be [tokens, k]";
  return "";
}
std::string unpermute(const CallArguments& call) {
  return unpermuted(sizes(call, 0), sizes(call, 3), sizes(call, 1), call.tensors.at(2));
}
std::string unpermute_grad(const CallArguments& call) {
  if (sizes(call, 4) != sizes(call, 0)) return "permutedTokens and its gradient must have one shape";
  return unpermuted(sizes(call, 0), sizes(call, 1), sizes(call, 2), call.tensors.at(3));
}

// ------------------------------------------------------------------------------------------------------------ table

struct Documented {
  std::vector<std::string> types;  // allowed combinations, see matches()
  size_t least_dims, most_dims;    // for the tensors that have a letter; 0: none, a single element
  std::string (*check)(const CallArguments& call);
};

// From the pages of the operators (hiascend.com, and the repositories ops-nn and ops-transformer of gitcode.com/cann:
// aclnnNAME), CANN 8.5 to 9.
const std::map<std::string, Documented>& table() {
  static const auto& rules = *new std::map<std::string, Documented>{
      {"aclnnRmsNorm", {{"hfhf", "bfbf", "hhhf", "bbbf", "ffff"}, 1, 8, rms_norm}},
      {"aclnnAddRmsNorm", {{"ffffff", "hhhhfh", "bbbbfb"}, 1, 8, add_rms_norm}},
      {"aclnnRmsNormGrad", {{"hhffhf", "bbffbf", "hhfhhf", "ffffff", "bbfbbf"}, 1, 8, rms_norm_grad}},
      {"aclnnSwiGlu", {{"ff", "hh", "bb"}, 1, 8, swiglu}},
      {"aclnnSwiGluGrad", {{"fff", "hhh", "bbb"}, 1, 8, swiglu_grad}},
      {"aclnnRotaryPositionEmbedding", {{"ffff", "hhhh", "bbbb"}, 4, 4, rotary}},
      {"aclnnRotaryPositionEmbeddingV2", {{"fff.f", "hhh.h", "bbb.b"}, 4, 4, rotary}},
      {"aclnnRotaryPositionEmbeddingGrad", {{"fff.f", "hhh.h", "bbb.b"}, 4, 4, rotary}},
      {"aclnnGeGluV3", {{"fff", "hhh", "bbb"}, 1, 8, geglu}},
      {"aclnnGeGluV3Backward", {{"ffff", "hhhh", "bbbb"}, 1, 8, geglu_grad}},
      {"aclnnFlashAttentionScore", {{"fff", "hhh", "bbb"}, 3, 4, attention<AttentionPlaces{1, 6}>}},
      {"aclnnFlashAttentionScoreV3", {{"fff", "hhh", "bbb"}, 3, 4, attention<AttentionPlaces{1, 6}>}},
      {"aclnnFlashAttentionVarLenScore", {{"fff", "hhh", "bbb"}, 3, 3, attention<AttentionPlaces{1, 6}>}},
      {"aclnnFlashAttentionVarLenScoreV5", {{"f.f.f", "h.h.h", "b.b.b"}, 3, 3, attention<AttentionPlaces{2, 8}>}},
      {"aclnnFlashAttentionScoreGrad", {{"ffff", "hhhh", "bbbb"}, 3, 4, attention<AttentionPlaces{1, 7, 3, 8}>}},
      {"aclnnFlashAttentionScoreGradV3", {{"ffff", "hhhh", "bbbb"}, 3, 4, attention<AttentionPlaces{1, 7, 3, 8}>}},
      {"aclnnFlashAttentionUnpaddingScoreGrad",
       {{"ffff", "hhhh", "bbbb"}, 3, 3, attention<AttentionPlaces{1, 7, 3, 8}>}},
      {"aclnnFlashAttentionUnpaddingScoreGradV5",
       {{"f.f.ff", "h.h.hh", "b.b.bb"}, 3, 3, attention<AttentionPlaces{2, 9, 5, 10}>}},
      {"aclnnRingAttentionUpdateV2", {{"ffffff", "hffhff", "bffbff"}, 3, 4, ring_update}},
      {"aclnnGroupedMatmulV5", {{""}, 0, 0, grouped_products}},
      {"aclnnGroupedMatmulAdd", {{"hhlf", "bblf"}, 1, 2, added_products}},
      {"aclnnMoeTokenPermute", {{"fifi", "hihi", "bibi", "flfi", "hlhi", "blbi"}, 1, 8, permute}},
      {"aclnnMoeTokenPermuteGrad", {{"fif", "hih", "bib"}, 1, 2, permute_grad}},
      {"aclnnMoeTokenUnpermute", {{"fi.f", "hi.h", "bi.b"}, 1, 2, unpermute}},
      {"aclnnMoeTokenUnpermuteGrad", {{"ffi.f", "hhi.h", "bbi.b"}, 1, 2, unpermute_grad}},
      {"aclnnApplyAdamWV2", {{"fff.f.", "hhh.h.", "bbb.b."}, 0, 8, adamw}},
  };
  return rules;
}

}  // namespace

std::string documented_complaint(const std::string& name, const CallArguments& call) {
  const auto found = table().find(name);
  if (found == table().end()) return "";
  const Documented& rule = found->second;
  const std::string given = " (given " + words(call.tensors) + ")";
  const bool has_types = std::any_of(rule.types.begin(), rule.types.end(),
                                     [&](const std::string& types) { return matches(types, call.tensors); });
  if (!has_types) return "CANN's documentation has no such combination of types" + given;
  for (size_t i = 0; i < rule.types.front().size() && i < call.tensors.size(); ++i) {
    if (call.tensors[i] == nullptr || rule.types.front()[i] == '.') continue;
    const size_t dims = call.tensors[i]->sizes.size();
    if (dims >= rule.least_dims && dims <= rule.most_dims) continue;
    return text("CANN's documentation allows %zu to %zu dimensions", rule.least_dims, rule.most_dims) + given;
  }
  const std::string wrong = rule.check(call);
  return wrong.empty() ? "" : "against CANN's documentation: " + wrong + given;
}

std::vector<std::string> documented_operators() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : table()) names.push_back(name);
  return names;
}

}  // namespace concord::ascend::sim
