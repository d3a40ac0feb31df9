#include "core/base/code_map.h"

#include <algorithm>
#include <vector>

namespace concord {
namespace {

constexpr std::array<double, 7> kDecades = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};

// Products of two floats are exact in double. Rounding them explicitly keeps a compiler from fusing them with a sum.
float product(float a, float b) { return static_cast<float>(static_cast<double>(a) * static_cast<double>(b)); }

// Bound |i| of |parts| equal parts of [0.1, 1], as libtorch's linspace computes it: from the nearer end.
float bound(int64_t i, int64_t parts) {
  constexpr float kFirst = 0.1f;
  const float step = (1.0f - kFirst) / static_cast<float>(parts);
  if (i < (parts + 1) / 2) return kFirst + product(step, static_cast<float>(i));
  return 1.0f - product(step, static_cast<float>(parts - i));
}

// Decade i has 2^i fractions and their negatives, or 2^(i + 1) that are not negative: the middles of equal parts of
// [0.1, 1], times the decade.
std::array<float, 256> make_fractions(bool is_signed) {
  std::vector<float> all = {0, 1};
  for (size_t i = 0; i < kDecades.size(); ++i) {
    const int64_t parts = int64_t{1} << (is_signed ? i : i + 1);
    for (int64_t k = 0; k < parts; ++k) {
      const float middle = (bound(k, parts) + bound(k + 1, parts)) / 2;
      all.push_back(product(middle, static_cast<float>(kDecades[i])));
      if (is_signed) all.push_back(-all.back());
    }
  }
  std::array<float, 256> sorted{};
  std::partial_sort_copy(all.begin(), all.end(), sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

const std::array<float, 256>& code_fractions(CodeMap map) {
  static const std::array<float, 256> both = make_fractions(true), none_below_zero = make_fractions(false);
  return map == CodeMap::dynamic_signed ? both : none_below_zero;
}

}  // namespace concord
