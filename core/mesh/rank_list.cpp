#include "core/mesh/rank_list.h"

#include <fmt/core.h>

#include <algorithm>

namespace concord {
namespace {

constexpr size_t kMaxListed = 16;

}  // namespace

std::string rank_list(std::span<const int64_t> ranks) {
  const size_t listed = std::min(ranks.size(), kMaxListed);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < listed; ++i) {
    const bool is_last = i + 1 == ranks.size();
    if (i > 0) text += is_last ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (listed < ranks.size()) text += fmt::format(" and {} more", ranks.size() - listed);
  return text;
}

}  // namespace concord
