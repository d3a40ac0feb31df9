#include "core/models/token_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>

#include "core/models/micro_batch.h"

namespace concord {
namespace {

using at::Tensor;

constexpr int64_t kElementsAtOnce = 1 << 22;

// Returns for each row [rows, 5]: the largest logit m and its column (ties: the first), and the sums of e = exp(x - m),
// e (x - m) and x. Columns are exact in fp32 below 2^24.
Tensor parts_of(const Tensor& rows, int64_t first, int64_t used) {
  const Tensor x = rows.narrow(-1, 0, used).to(at::kFloat);
  const auto [largest, column] = x.max(-1);
  const Tensor below = x - largest.unsqueeze(-1), e = below.exp();
  return at::stack({largest, (column + first).to(at::kFloat), e.sum(-1), below.mul_(e).sum(-1), x.sum(-1)}, -1);
}

// A rank that has only padding: e^m = 0.
Tensor no_parts(const Tensor& rows) {
  const Tensor none = at::full({rows.size(0), 5}, 0, rows.options().dtype(at::kFloat));
  none.select(-1, 0).fill_(-std::numeric_limits<double>::infinity());
  return none;
}

Tensor own_parts(const Tensor& rows, int64_t first, int64_t used) {
  if (used == 0) return no_parts(rows);
  std::vector<Tensor> parts;
  for (const Tensor& some : rows.split(std::max<int64_t>(1, kElementsAtOnce / used))) {
    parts.push_back(parts_of(some, first, used));
  }
  return at::cat(parts);
}

}  // namespace

// With m the largest of all, Z = sum exp(x - m) and T = sum exp(x - m) (x - m), the entropy is log Z - T / Z:
// neither term is larger than the entropy itself.
TokenStatistics token_statistics(const Tensor& logits_sbv, const Tensor& labels_sb, int64_t vocabulary,
                                 const VocabShare& share) {
  const at::NoGradGuard no_grad;
  const int64_t width = logits_sbv.size(-1), first = share.index * width;
  const Tensor mine =
      own_parts(logits_sbv.reshape({-1, width}), first, std::clamp<int64_t>(vocabulary - first, 0, width));
  Tensor all = mine.unsqueeze(0);
  if (share.count > 1) {
    all = at::empty({share.count, mine.size(0), mine.size(1)}, mine.options());
    share.all_gather(all, mine.contiguous());
  }
  const Tensor largest = all.select(-1, 0), top = largest.amax(0), lower = (largest - top).clamp_min(-1e4);
  const Tensor scale = lower.exp(), sums = all.select(-1, 2) * scale;
  const Tensor z = sums.sum(0), t = (all.select(-1, 3) * scale + sums * lower).sum(0);
  const Tensor columns = at::where(largest == top, all.select(-1, 1), at::full_like(largest, 1e30)).amin(0);

  const Tensor labels = labels_sb.reshape({-1}), counts = labels.ne(kIgnoredLabel).to(at::kFloat);
  const auto shaped = [&](const Tensor& x) { return (x * counts).view(labels_sb.sizes()).t().contiguous(); };
  return {.counts = shaped(counts),
          .entropy = shaped(z.log() - t / z),
          .mean_logit = shaped(all.select(-1, 4).sum(0) / static_cast<double>(vocabulary)),
          .is_first = shaped(columns.eq(labels.to(at::kFloat)).to(at::kFloat))};
}

}  // namespace concord
