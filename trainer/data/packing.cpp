#include "trainer/data/packing.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/config_error.h"

namespace concord {
namespace {

// The free space of each row, and for each node of a tree over the rows the maximum below it. Unused rows are entirely
// free, so the leftmost leaf with enough space is the first fit.
class RoomTree {
 public:
  RoomTree(size_t rows, int64_t capacity)
      : leaves_(std::bit_ceil(std::max<size_t>(rows, 1))), room_(2 * leaves_, capacity) {}

  size_t take(int64_t length) {
    size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= length ? 2 * node : 2 * node + 1;
    const size_t row = node - leaves_;
    room_[node] -= length;
    for (node /= 2; node > 0; node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return row;
  }

 private:
  size_t leaves_;
  std::vector<int64_t> room_;
};

int64_t checked_length(std::span<const int64_t> lengths, size_t i, int64_t capacity, int64_t multiple) {
  const int64_t length = padded_length(lengths[i], multiple);
  if (length <= capacity) return length;
  throw ConfigError(
      fmt::format("sample {} has {} tokens ({} padded to a multiple of {}), which exceeds the packed row length {}", i,
                  lengths[i], length, multiple, capacity));
}

}  // namespace

PackedRows pack_first_fit(std::span<const int64_t> lengths, int64_t capacity, int64_t multiple) {
  RoomTree tree(lengths.size(), capacity);
  PackedRows rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t row = tree.take(checked_length(lengths, i, capacity, multiple));
    if (row >= rows.size()) rows.resize(row + 1);
    rows[row].push_back(static_cast<int64_t>(i));
  }
  return rows;
}

PackedRows pack_best_fit(std::span<const int64_t> lengths, int64_t capacity, int64_t multiple) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  PackedRows rows;
  std::set<std::pair<int64_t, size_t>> room;  // free space of each row, ascending; ties: the oldest row first
  for (const size_t i : order) {
    const int64_t length = checked_length(lengths, i, capacity, multiple);
    const auto best = room.lower_bound({length, 0});
    const auto [left, row] = best == room.end() ? std::pair{capacity, rows.size()} : *best;
    if (best == room.end()) {
      rows.emplace_back();
    } else {
      room.erase(best);
    }
    rows[row].push_back(static_cast<int64_t>(i));
    room.emplace(left - length, row);
  }
  for (auto& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

TokenBatch pack_samples(std::span<const Sample> samples, int64_t multiple, int64_t pad_id) {
  TokenBatch batch{.rows = 1, .columns = 0, .ids = {}, .labels = {}, .position_ids = {}, .cu_seqlens = {0}};
  for (const Sample& sample : samples) {
    const int64_t end = batch.columns + padded_length(static_cast<int64_t>(sample.ids.size()), multiple);
    batch.ids.insert(batch.ids.end(), sample.ids.begin(), sample.ids.end());
    batch.ids.resize(static_cast<size_t>(end), pad_id);
    batch.labels.insert(batch.labels.end(), sample.labels.begin(), sample.labels.end());
    batch.labels.resize(static_cast<size_t>(end), kIgnoredToken);
    batch.position_ids.resize(static_cast<size_t>(end));
    std::iota(batch.position_ids.begin() + batch.columns, batch.position_ids.end(), 0);
    batch.cu_seqlens.push_back(end);
    batch.columns = end;
    batch.media.append(sample.media);
  }
  if (!batch.media.empty()) batch.position_ids.clear();  // the model places image tokens on grids
  return batch;
}

}  // namespace concord
