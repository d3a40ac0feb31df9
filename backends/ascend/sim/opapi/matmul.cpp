// Products of matrices. The last argument, cubeMathType, lets the hardware choose a smaller type; it is ignored here.
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/outer.h>

#include <algorithm>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Scalar;
using at::Tensor;

namespace {

// Hardware adds products of bf16 in fp32. So does libtorch, but on hosts without instructions for bf16 it takes 50
// times as long as with operands that were widened first; the output is rounded once either way. Types that differ are
// left unchanged: libtorch rejects them.
void widen(std::initializer_list<Tensor*> operands) {
  const auto is_bf16 = [](const Tensor* each) { return each->scalar_type() == at::kBFloat16; };
  if (!std::all_of(operands.begin(), operands.end(), is_bf16)) return;
  for (Tensor* each : operands) *each = each->to(at::kFloat);
}

}  // namespace

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
OPERATOR(Matmul, (Tensor self, Tensor other, Out out, int8_t) {
  widen({&self, &other});
  out = at::matmul(self, other);
})
// An fp32 result of 16-bit operands is not rounded in between.
OPERATOR(Mm, (Tensor self, Tensor other, Out out, int8_t) {
  widen({&self, &other});
  if (out->scalar_type() == at::kFloat) self = self.to(at::kFloat), other = other.to(at::kFloat);
  out = at::mm(self, other);
})
OPERATOR(BatchMatMul, (Tensor self, Tensor other, Out out, int8_t) {
  widen({&self, &other});
  out = at::bmm(self, other);
})
OPERATOR(Mv, (Tensor self, Tensor vector, Out out, int8_t) { out = at::mv(self, vector); })
OPERATOR(Dot, (Tensor self, Tensor other, Out out) { out = at::dot(self, other); })
OPERATOR(Ger, (Tensor self, Tensor other, Out out) { out = at::outer(self, other); })
OPERATOR(Addmm, (Tensor self, Tensor a, Tensor b, Scalar beta, Scalar alpha, Out out, int8_t) {
  widen({&self, &a, &b});
  out = at::addmm(self, a, b, beta, alpha);
})
OPERATOR(InplaceAddmm, (InOut self, Tensor a, Tensor b, Scalar beta, Scalar alpha, int8_t) {
  Tensor added = *self;
  widen({&added, &a, &b});
  self = at::addmm(added, a, b, beta, alpha);
})
OPERATOR(Baddbmm, (Tensor self, Tensor a, Tensor b, Scalar beta, Scalar alpha, Out out, int8_t) {
  widen({&self, &a, &b});
  out = at::baddbmm(self, a, b, beta, alpha);
})
// Note the order: alpha comes first here.
OPERATOR(Addmv, (Tensor self, Tensor matrix, Tensor vector, Scalar alpha, Scalar beta, Out out, int8_t) {
  out = at::addmv(self, matrix, vector, beta, alpha);
})

// clang-format on
}  // namespace concord::ascend::sim
