#include "core/models/layers/layer_dropout.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "core/ops/dropout.h"

namespace concord {

std::vector<TokenRun> part_of_runs(const std::vector<TokenRun>& runs, int64_t skipped, int64_t count) {
  std::vector<TokenRun> part;
  for (const TokenRun& run : runs) {
    const int64_t begin = std::min(skipped, run.count), taken = std::min(run.count - begin, count);
    if (taken > 0) part.push_back({run.begin + begin, taken});
    skipped -= begin;
    count -= taken;
  }
  return part;
}

at::Tensor hidden_dropout(const at::Tensor& x_pbh, const LayerDropout& dropout, uint64_t site) {
  if (dropout.hidden == 0) return x_pbh;
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < x_pbh.size(1); ++row) {
    const uint64_t stream = (site << 32) + static_cast<uint64_t>(dropout.first_row + row);
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (const TokenRun& run : dropout.tokens) {
      Generator generator(dropout.key, stream, static_cast<uint64_t>(run.begin * x_pbh.size(2)));
      parts.push_back(concord::dropout(x_pbh.select(1, row).narrow(0, begin, run.count), dropout.hidden, generator));
      begin += run.count;
    }
    rows.push_back(parts.size() == 1 ? parts[0] : at::cat(parts, 0));
  }
  return rows.size() == 1 ? rows[0].unsqueeze(1) : at::stack(rows, 1);
}

}  // namespace concord
