// Random operators. The bits follow from seed and offset alone, so a run can be repeated; they are not the hardware's.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Scalar;
using at::Tensor;

static at::Generator generator_of(uint64_t seed, uint64_t offset) {
  uint64_t mixed = seed ^ (offset + 0x9E3779B97F4A7C15ULL + (seed << 6) + (seed >> 2));
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
  return at::make_generator<at::CPUGeneratorImpl>(mixed ^ (mixed >> 27));
}

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
OPERATOR(InplaceNormal, (Out self, float mean, float deviation, uint64_t seed, uint64_t offset) {
  self->normal_(mean, deviation, generator_of(seed, offset));
})
OPERATOR(InplaceUniform, (Out self, double from, double to, uint64_t seed, uint64_t offset) {
  self->uniform_(from, to, generator_of(seed, offset));
})
OPERATOR(InplaceRandom, (Out self, int64_t from, int64_t to, uint64_t seed, uint64_t offset) {
  self->random_(from, to, generator_of(seed, offset));
})
OPERATOR(InplaceBernoulli, (Out self, Scalar probability, uint64_t seed, uint64_t offset) {
  self->bernoulli_(probability.toDouble(), generator_of(seed, offset));
})
OPERATOR(InplaceBernoulliTensor, (Out self, Tensor probability, uint64_t seed, uint64_t offset) {
  self->bernoulli_(probability, generator_of(seed, offset));
})
OPERATOR(Randperm, (int64_t count, uint64_t seed, uint64_t offset, Out out) {
  out = at::randperm(count, generator_of(seed, offset), at::kLong);
})
OPERATOR(Multinomial, (Tensor self, int64_t count, bool replacement, uint64_t seed, uint64_t offset, Out out) {
  out = at::multinomial(self, count, replacement, generator_of(seed, offset));
})

// A mask of one bit per element, the lowest first, padded to a multiple of 128 bits; a set bit keeps.
OPERATOR(DropoutGenMaskV2, (Ints shape, double probability, uint64_t seed, uint64_t offset, at::ScalarType, Out mask) {
  const int64_t bits = mask->numel() * 8;
  if (bits < c10::multiply_integers(shape)) {
    throw OperatorError(kAclnnParamInvalid, "the mask is too short for the shape");
  }
  const Tensor keep = at::rand({bits / 8, 8}, generator_of(seed, offset), at::kFloat) >= probability;
  mask = at::bitwise_left_shift(keep.to(at::kLong), at::arange(8, at::kLong)).sum(-1).view(mask->sizes());
})
OPERATOR(DropoutDoMask, (Tensor self, Tensor mask, double probability, Out out) {
  const Tensor bits = at::bitwise_right_shift(mask.view({-1, 1}).to(at::kLong), at::arange(8, at::kLong));
  const Tensor keep = (bits & 1).view({-1}).slice(0, 0, self.numel()).view(self.sizes()).to(at::kBool);
  out = at::where(keep, self / (1 - probability), at::zeros_like(self));
})

// clang-format on
}  // namespace concord::ascend::sim
