#include "core/optim/optimizer_state.h"

#include <algorithm>

namespace concord {
namespace {

// |count| elements of |run| starting at its element |first|, as a regular part: within one row, or whole rows.
ShardRun piece_of(const ShardRun& run, int64_t first, int64_t count) {
  ShardRun piece = run;
  piece.local = run.local + first;
  piece.count = count;
  piece.offset = run.offset + first / run.run_length * run.run_stride + first % run.run_length;
  if (count <= run.run_length) piece.run_length = piece.run_stride = count;
  return piece;
}

}  // namespace

std::vector<ShardRun> cut_runs(const std::vector<ShardRun>& runs, int64_t begin, int64_t end) {
  std::vector<ShardRun> cut;
  for (const ShardRun& run : runs) {
    int64_t at = std::max(begin, run.local) - run.local;
    const int64_t last = std::min(end, run.local + run.count) - run.local;
    while (at < last) {
      // The rest of a partial row, then whole rows, then the beginning of one.
      const int64_t in_row = at % run.run_length, left = last - at;
      int64_t count = std::min(run.run_length - in_row, left);
      if (in_row == 0 && left > run.run_length) count = left / run.run_length * run.run_length;
      ShardRun piece = piece_of(run, at, count);
      piece.local -= begin;
      cut.push_back(piece);
      at += count;
    }
  }
  return cut;
}

}  // namespace concord
