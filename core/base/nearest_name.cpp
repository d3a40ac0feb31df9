#include "core/base/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace concord {
namespace {

// Returns the Levenshtein distance, computed one row at a time.
size_t letters_changed(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string_view> known) {
  constexpr size_t kMaxName = 100;  // a longer word is not a typo
  if (name.size() > kMaxName) return {};
  size_t fewest = std::max<size_t>(2, name.size() / 3) + 1;
  std::string nearest;
  for (const std::string_view one : known) {
    const size_t changed = letters_changed(name, one);
    if (changed >= fewest) continue;
    fewest = changed;
    nearest = one;
  }
  return nearest;
}

}  // namespace concord
