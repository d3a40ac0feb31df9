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

std::string attention(const CallArguments& call) {
  constexpr int64_t kMaxHeads = 256, kMaxWidth = 768, kMaxTokens = 1 << 20, kMaxBatch = 1 << 21;
  const std::string& layout = call.texts.at(0);
  const Sizes &q = sizes(call, 0), &k = sizes(call, 1);
  const double keep = call.numbers.at(1);
  const int64_t heads = call.integers.at(2), sparse_mode = call.integers.at(4);
  if (layout.size() != q.size() || layout.size() != k.size()) return "the layout does not match the dimensions";
  if (heads < 1 || heads > kMaxHeads) return text("%lld heads; 1 to 256", static_cast<long long>(heads));
  if (!(keep > 0 && keep <= 1)) return text("keepProb is %g; above 0, at most 1", keep);
  if (sparse_mode < 0 || sparse_mode > 6)
    return text("sparseMode is %lld; 0 to 6", static_cast<long long>(sparse_mode));
  const bool is_flat = layout.find('H') != std::string::npos;
  if (is_flat && size_in(q, layout, 'H') % heads != 0) return "H must be a multiple of the heads";
  const int64_t width = is_flat ? size_in(q, layout, 'H') / heads : size_in(q, layout, 'D');
  if (width < 1 || width > kMaxWidth) return text("a head has %lld elements; 1 to 768", static_cast<long long>(width));
  if (!is_flat) {
    const int64_t own = size_in(q, layout, 'N'), shared = size_in(k, layout, 'N');
    if (own != heads) return "headNum is not the N of the query";
    if (shared < 1 || own % shared != 0) return "the heads of the query must be a multiple of those of the key";
  }
  if (layout.find('S') != std::string::npos) {
    if (size_in(q, layout, 'S') > kMaxTokens || size_in(k, layout, 'S') > kMaxTokens) return "S must be at most 1 M";
    if (size_in(q, layout, 'B') != size_in(k, layout, 'B')) return "query and key must have one B";
    if (size_in(q, layout, 'B') > kMaxBatch) return "B must be at most 2 M";
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

// ------------------------------------------------------------------------------------------------------------ table

struct Documented {
  std::vector<std::string> types;  // allowed combinations, see matches()
  size_t least_dims, most_dims;    // for the tensors that have a letter; 0: none, a single element
  std::string (*check)(const CallArguments& call);
};

// From the pages of the operators (hiascend.com, aclnnNAME), CANN 8.5 to 9.
const std::map<std::string, Documented>& table() {
  static const auto& rules = *new std::map<std::string, Documented>{
      {"aclnnRmsNorm", {{"hfhf", "bfbf", "hhhf", "bbbf", "ffff"}, 1, 8, rms_norm}},
      {"aclnnAddRmsNorm", {{"ffffff", "hhhhfh", "bbbbfb"}, 1, 8, add_rms_norm}},
      {"aclnnRmsNormGrad", {{"hhffhf", "bbffbf", "hhfhhf", "ffffff", "bbfbbf"}, 1, 8, rms_norm_grad}},
      {"aclnnSwiGlu", {{"ff", "hh", "bb"}, 1, 8, swiglu}},
      {"aclnnSwiGluGrad", {{"fff", "hhh", "bbb"}, 1, 8, swiglu_grad}},
      {"aclnnRotaryPositionEmbedding", {{"ffff", "hhhh", "bbbb"}, 4, 4, rotary}},
      {"aclnnRotaryPositionEmbeddingV2", {{"fff.f", "hhh.h", "bbb.b"}, 4, 4, rotary}},
      {"aclnnFlashAttentionScore", {{"fff", "hhh", "bbb"}, 3, 4, attention}},
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
