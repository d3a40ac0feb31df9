#include "core/optim/grad_norm.h"

#include <algorithm>

#include "core/ops/cpu/parallel.h"

namespace concord {
namespace {

constexpr int64_t kBlock = 16384;
constexpr int64_t kLanes = 8;  // independent sums, which the compiler vectorizes

template <class G>
GradSums sum_block(const G* grads, int64_t count, bool count_zeros) {
  double lanes[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double g = static_cast<double>(static_cast<float>(grads[i + lane]));
      lanes[lane] += g * g;
    }
  }
  GradSums sums;
  for (const double lane : lanes) sums.squares += lane;
  for (int64_t i = whole; i < count; ++i) {
    const double g = static_cast<double>(static_cast<float>(grads[i]));
    sums.squares += g * g;
  }
  if (count_zeros) {
    for (int64_t i = 0; i < count; ++i) sums.zeros += static_cast<float>(grads[i]) == 0.0f;
  }
  return sums;
}

struct NormBlock {
  const GradPart* part;
  int64_t begin;
};

}  // namespace

GradSums sum_grads(const std::vector<GradPart>& parts, bool count_zeros) {
  std::vector<NormBlock> blocks;
  for (const GradPart& part : parts) {
    for (int64_t begin = 0; begin < part.count; begin += kBlock) blocks.push_back({&part, begin});
  }
  std::vector<GradSums> sums(blocks.size());
  ops::parallel(static_cast<int64_t>(blocks.size()), 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const NormBlock& block = blocks[static_cast<size_t>(i)];
      const int64_t count = std::min(kBlock, block.part->count - block.begin);
      visit(block.part->grads, [&](const auto* grads) {
        sums[static_cast<size_t>(i)] = sum_block(grads + block.begin, count, count_zeros);
      });
    }
  });
  GradSums all;
  for (const GradSums& sum : sums) {
    all.squares += sum.squares;
    all.zeros += sum.zeros;
  }
  return all;
}

double clip_factor(double norm, double limit) { return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0; }

}  // namespace concord
