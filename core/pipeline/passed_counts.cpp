#include "core/pipeline/passed_counts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "core/ops/derivative.h"

namespace concord {
namespace {

using at::Tensor;

constexpr int64_t kBase = 128, kDigits = 5;  // bf16 has all whole numbers up to 256

// [1, experts] -> [digits * experts]
Tensor digits_of(const Tensor& counts, int64_t experts, at::TensorOptions options) {
  if (!counts.defined()) return at::zeros({kDigits * experts}, options);
  Tensor rest = counts.flatten().to(at::kLong);
  std::vector<Tensor> digits;
  for (int64_t i = 0; i < kDigits; ++i) {
    digits.push_back(rest.remainder(kBase));
    rest = rest.div(kBase, "floor");
  }
  return at::stack(digits).flatten().to(options.dtype());
}

Tensor counts_of(const Tensor& digits, int64_t experts) {
  Tensor counts = at::zeros({1, experts}, digits.options().dtype(at::kFloat));
  for (int64_t i = kDigits; i-- > 0;) {
    counts = counts * kBase + digits.narrow(0, i * experts, experts).to(at::kFloat).unsqueeze(0);
  }
  return counts;
}

}  // namespace

PassedCounts::PassedCounts(int64_t experts) : experts_(experts), total_(std::make_shared<Tensor>()) {}

int64_t PassedCounts::size(int64_t hidden, int64_t experts) { return hidden + kDigits * experts; }

Tensor PassedCounts::received(const Tensor& message, const std::vector<int64_t>& shape) {
  const int64_t own = message.size(0) - kDigits * experts_;
  counts_ = counts_of(message.detach().narrow(0, own, kDigits * experts_), experts_);
  const auto run = [&] { return ops::Forward{message.narrow(0, 0, own).view(shape), {}}; };
  return ops::differentiable("counts received", {message}, run,
                             [total = total_, experts = experts_](const ops::Backward& b) {
                               const Tensor grad = b.grad.flatten();
                               return ops::Tensors{at::cat({grad, digits_of(*total, experts, grad.options())})};
                             });
}

void PassedCounts::add(const std::shared_ptr<RouterRecord>& record, bool is_last) {
  const at::NoGradGuard no_grad;
  record_ = record;
  const Tensor own = record ? chosen_in_own_layers(*record) : Tensor();
  if (own.defined()) counts_ = counts_.defined() ? counts_ + own : own;
  if (!is_last) return;
  *total_ = counts_;
  if (record) record->chosen_in_all_layers = counts_;
}

Tensor PassedCounts::sent(const Tensor& hidden) const {
  const auto run = [&] {
    const Tensor flat = hidden.flatten();
    return ops::Forward{at::cat({flat, digits_of(counts_, experts_, flat.options())}), {}};
  };
  return ops::differentiable(
      "counts sent", {hidden}, run,
      [total = total_, record = record_, experts = experts_, shape = hidden.sizes().vec()](const ops::Backward& b) {
        const int64_t own = b.grad.size(0) - kDigits * experts;
        *total = counts_of(b.grad.narrow(0, own, kDigits * experts), experts);
        if (record) record->chosen_in_all_layers = *total;
        return ops::Tensors{b.grad.narrow(0, 0, own).view(shape)};
      });
}

}  // namespace concord
