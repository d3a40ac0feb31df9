#include "core/parallel/nf4_weight.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace concord {

using at::Tensor;

Nf4Weight::Nf4Weight(Tensor codes, Tensor absmax_codes, std::vector<Part> parts)
    : codes_(std::move(codes)),
      absmax_codes_(std::move(absmax_codes)),
      map_(absmax_map().to(codes_.device())),
      parts_(std::move(parts)) {}

Tensor Nf4Weight::absmax() const {
  const Tensor found = map_.index_select(0, absmax_codes_.reshape({-1}).to(at::kInt));
  for (const Part& part : parts_) {
    const ShardRun& run = part.blocks;
    const Tensor own = found.narrow(0, run.local, run.count);
    const Tensor i = at::arange(run.count, own.options().dtype(at::kLong));
    const Tensor number = run.count <= run.run_length ? i + run.offset
                                                      : i.div(run.run_length, "floor") * run.run_stride +
                                                            i.remainder(run.run_length) + run.offset;
    own.mul_(part.scales.index_select(0, number.div(kAbsmaxBlock, "floor"))).add_(part.mean);
  }
  return found.view(absmax_codes_.sizes());
}

Tensor Nf4Weight::dequantised(c10::ScalarType type) const {
  const at::NoGradGuard no_grad;
  return nf4_dequantise(codes_, absmax(), at::empty({0}, codes_.options().dtype(type)));
}

int64_t Nf4Weight::bytes() const {
  int64_t bytes = codes_.numel() + absmax_codes_.numel();
  for (const Part& part : parts_) bytes += static_cast<int64_t>(part.scales.nbytes());
  return bytes;
}

}  // namespace concord
