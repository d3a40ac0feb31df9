#include "core/ops/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/cpu/dropout.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"
#include "core/torch/device.h"

namespace concord {
namespace ops::dropout_op {
namespace {

using at::Tensor;

// |key|, |subsequence| and |offset| are the state of a generator, as signed integers for the schema.
Tensor drop(const Tensor& x, double p, int64_t key, int64_t subsequence, int64_t offset) {
  static const auto op = find<Tensor(const Tensor&, double, int64_t, int64_t, int64_t)>("concord::dropout");
  return op.call(x, p, key, subsequence, offset);
}

Generator generator_at(int64_t key, int64_t subsequence, int64_t offset) {
  return Generator(static_cast<uint64_t>(key), static_cast<uint64_t>(subsequence), static_cast<uint64_t>(offset));
}

// Returns the stream on which the platform fills memory of |device|. Host tensors in a process with a device use the
// cpu platform, which is always available.
Stream stream_of(c10::Device device) {
  const int32_t index = device.has_index() ? device.index() : 0;
  const Platform platform = current_platform();
  const bool its_own = torch_device(platform, device.is_cpu() ? 0 : index).type() == device.type();
  return torch_stream(Device(its_own ? platform : open_platform("cpu"), device.is_cpu() ? 0 : index));
}

Tensor reference(const Tensor& x, double p, int64_t key, int64_t subsequence, int64_t offset) {
  const Tensor numbers = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  Generator generator = generator_at(key, subsequence, offset);
  if (x.numel() > 0) generator.uniform(stream_of(x.device()), numbers.data_ptr(), x.numel(), DType::kF32);
  const Tensor kept = (x.to(sum_type(x.scalar_type())) * (1 / (1 - p))).to(x.scalar_type());
  return at::where(numbers < static_cast<float>(p), at::zeros({}, x.options()), kept);
}

Tensor cpu(const Tensor& x, double p, int64_t key, int64_t subsequence, int64_t offset) {
  if (!has_loops(x.scalar_type())) return reference(x, p, key, subsequence, offset);
  const Tensor dense = x.contiguous();
  const Tensor y = at::empty_like(dense);
  const Stream stream = stream_of(x.device());
  const auto draw = [&](float* numbers, int64_t count, int64_t position) {
    generator_at(key, subsequence, offset + position).uniform(stream, numbers, count, DType::kF32);
  };
  visit_type("dropout", x.scalar_type(), [&]<class T>(T) {
    dropout_loop<T>(x.numel(), dense.const_data_ptr<T>(), p, draw, y.mutable_data_ptr<T>());
  });
  return y;
}

Tensor autograd(const Tensor& x, double p, int64_t key, int64_t subsequence, int64_t offset) {
  const auto run = [&] { return Forward{drop(x, p, key, subsequence, offset), {}}; };
  return differentiable("dropout", {x}, run,
                        [=](const Backward& b) { return Tensors{drop(b.grad, p, key, subsequence, offset)}; });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("dropout(Tensor x, float p, int key, int subsequence, int offset) -> Tensor");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) { m.impl("dropout", reference); }
TORCH_LIBRARY_IMPL(concord, CPU, m) { m.impl("dropout", cpu); }
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("dropout", autograd); }

}  // namespace
}  // namespace ops::dropout_op

at::Tensor dropout(const at::Tensor& x, double p, Generator& generator) {
  ops::check_floating("dropout", "x", x);
  if (!(p >= 0 && p < 1)) {
    ops::refuse("dropout", fmt::format("the dropout probability is {:g}; must be >= 0 and < 1", p));
  }
  if (p == 0) return x;
  Generator::State state = generator.state();
  at::Tensor y = ops::dropout_op::drop(x, p, static_cast<int64_t>(state.key), static_cast<int64_t>(state.subsequence),
                                       static_cast<int64_t>(state.offset));
  state.offset += static_cast<uint64_t>(x.numel());
  generator.restore(state);
  return y;
}

void draw_uniform(const at::Tensor& numbers, const Generator::State& from, Runs runs) {
  if (numbers.numel() == 0) return;
  fill_runs(CONCORD_RNG_UNIFORM, ops::dropout_op::stream_of(numbers.device()), numbers.data_ptr(), numbers.numel(),
            DType::kF32, from, runs, 0, 1);
}

void draw_bits(const at::Tensor& words, const Generator::State& from, Runs runs) {
  if (words.numel() == 0) return;
  fill_runs(CONCORD_RNG_BITS, ops::dropout_op::stream_of(words.device()), words.data_ptr(), words.numel(), DType::kI32,
            from, runs, 0, 0);
}

}  // namespace concord
