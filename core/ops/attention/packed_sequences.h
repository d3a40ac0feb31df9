// Iteration over packed sequences, for operators that process them one by one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/ops/check.h"

namespace concord::ops {

struct TokenRange {
  int64_t begin;
  int64_t tokens;
};

// Returns the sequences of |tokens| with boundaries |cu_seqlens|, without empty ones; a single one if |cu_seqlens| is
// empty.
inline std::vector<TokenRange> sequences(int64_t tokens, at::IntArrayRef cu_seqlens) {
  if (cu_seqlens.empty()) return {{0, tokens}};
  std::vector<TokenRange> found;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] > cu_seqlens[i - 1]) found.push_back({cu_seqlens[i - 1], cu_seqlens[i] - cu_seqlens[i - 1]});
  }
  return found;
}

// Throws ConfigError unless |cu_seqlens| are boundaries of the tokens of |x| [1, tokens, ...].
inline void check_packed(const char* op, const at::Tensor& x, at::IntArrayRef cu_seqlens) {
  if (cu_seqlens.empty()) return;
  const bool fits = x.size(0) == 1 && cu_seqlens.front() == 0 && cu_seqlens.back() == x.size(1) &&
                    std::is_sorted(cu_seqlens.begin(), cu_seqlens.end());
  if (fits) return;
  refuse(op, fmt::format("cu_seqlens is ({}) for {}; must rise from 0 to the tokens of its one row",
                         fmt::join(cu_seqlens, ", "), text_of(x)));
}

}  // namespace concord::ops
