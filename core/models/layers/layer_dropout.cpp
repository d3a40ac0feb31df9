#include "core/models/layers/layer_dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "core/ops/dropout.h"

namespace concord {
namespace {

// Returns |x| after |apply| to the tokens of each run in each row, with a generator at their first element.
template <class Apply>
at::Tensor for_each_run(const at::Tensor& x_pbh, const LayerDropout& dropout, uint64_t site, Apply apply) {
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < x_pbh.size(1); ++row) {
    const uint64_t stream = (site << 32) + static_cast<uint64_t>(dropout.first_row + row);
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (const TokenRun& run : dropout.tokens) {
      Generator generator(dropout.key, stream, static_cast<uint64_t>(run.begin * x_pbh.size(2)));
      parts.push_back(apply(x_pbh.select(1, row).narrow(0, begin, run.count), generator));
      begin += run.count;
    }
    rows.push_back(parts.size() == 1 ? parts[0] : at::cat(parts, 0));
  }
  return rows.size() == 1 ? rows[0].unsqueeze(1) : at::stack(rows, 1);
}

}  // namespace

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
  return for_each_run(x_pbh, dropout, site, [&](const at::Tensor& x_ph, Generator& generator) {
    return concord::dropout(x_ph, dropout.hidden, generator);
  });
}

// Computed in fp32, so that all devices round products and sums identically.
at::Tensor with_noise(const at::Tensor& x_pbh, const LayerDropout& dropout) {
  if (dropout.noise == 0) return x_pbh;
  return for_each_run(x_pbh, dropout, kNoiseSite, [&](const at::Tensor& x_ph, Generator& generator) {
    const at::Tensor noise_ph = at::empty(x_ph.sizes(), x_ph.options().dtype(at::kFloat).requires_grad(false));
    draw_uniform(noise_ph, generator.state(), {.length = noise_ph.numel(), .stride = 0});
    return x_ph + noise_ph.mul_(2).sub_(1).mul_(dropout.noise).to(x_ph.scalar_type());
  });
}

}  // namespace concord
