#include "core/parallel/async_collectives.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/WrapDimMinimal.h>
#include <fmt/core.h>

#include <numeric>

#include "core/base/config_error.h"

namespace concord {
namespace {

at::Tensor as_it_is(const at::Tensor& received) { return received; }

// [n, ..., s, ...] -> [..., n * s, ...]: concatenates the received parts along |dim|.
at::Tensor joined(const at::Tensor& parts, int64_t dim) {
  return dim == 0 ? parts.flatten(0, 1) : parts.movedim(0, dim).flatten(dim, dim + 1);
}

// [..., n * s, ...] -> [n, ..., s, ...], contiguous: stacks the parts along |dim|.
at::Tensor parts_in_a_row(const at::Tensor& x, const ProcessGroup& group, int64_t dim) {
  const int64_t part = divide(x.size(dim), group, "the split dimension");
  return x.unflatten(dim, {group.size(), part}).movedim(dim, 0).contiguous();
}

}  // namespace

PendingTensor::PendingTensor(Work work, const at::Tensor& received,
                             std::function<at::Tensor(const at::Tensor&)> arrange)
    : work_(std::move(work)), received_(std::make_unique<at::Tensor>(received)), arrange_(std::move(arrange)) {}
PendingTensor::PendingTensor(PendingTensor&&) noexcept = default;
PendingTensor& PendingTensor::operator=(PendingTensor&&) noexcept = default;
PendingTensor::~PendingTensor() = default;

at::Tensor PendingTensor::take() {
  const at::NoGradGuard no_grad;
  work_.wait();
  return arrange_(*received_);
}

PendingTensor all_reduce_(const at::Tensor& x, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor sum = x.contiguous();
  return {group.all_reduce(sum), sum, as_it_is};
}

PendingTensor gather(const at::Tensor& x, ProcessGroup& group, int64_t dim) {
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return {Work(), x, as_it_is};
  dim = c10::maybe_wrap_dim(dim, x.dim());
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin(), group.size());
  const at::Tensor parts = at::empty(shape, x.options());
  return {group.all_gather(parts, x.contiguous()), parts, [dim](const at::Tensor& all) { return joined(all, dim); }};
}

PendingTensor reduce_scatter(const at::Tensor& x, ProcessGroup& group, int64_t dim) {
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return {Work(), x, as_it_is};
  dim = c10::maybe_wrap_dim(dim, x.dim());
  const at::Tensor parts = parts_in_a_row(x, group, dim);
  const at::Tensor mine = at::empty(parts.sizes().slice(1), x.options());
  return {group.reduce_scatter(mine, parts), mine, as_it_is};
}

PendingTensor exchange(const at::Tensor& x, ProcessGroup& group, int64_t split_dim, int64_t joined_dim) {
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return {Work(), x, as_it_is};
  split_dim = c10::maybe_wrap_dim(split_dim, x.dim());
  joined_dim = c10::maybe_wrap_dim(joined_dim, x.dim());
  const at::Tensor parts = parts_in_a_row(x, group, split_dim);
  const at::Tensor received = at::empty(parts.sizes(), x.options());
  return {group.all_to_all(received, parts), received,
          [joined_dim](const at::Tensor& all) { return joined(all, joined_dim); }};
}

PendingTensor all_to_all_v(const at::Tensor& x, ProcessGroup& group, std::span<const int64_t> sent,
                           std::span<const int64_t> received) {
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return {Work(), x, as_it_is};
  std::vector<int64_t> shape = x.sizes().vec();
  shape.front() = std::accumulate(received.begin(), received.end(), int64_t{0});
  const at::Tensor rows = at::empty(shape, x.options());
  return {group.all_to_all_v(rows, x.contiguous(), received, sent), rows, as_it_is};
}

at::Tensor own_part(const at::Tensor& x, const ProcessGroup& group, int64_t dim) {
  if (group.size() == 1) return x;
  const int64_t part = divide(x.size(dim), group, "the split dimension");
  return x.narrow(dim, group.rank() * part, part);
}

int64_t divide(int64_t size, const ProcessGroup& group, const char* what) {
  if (size % group.size() != 0) {
    throw ConfigError(
        fmt::format("{} has {} elements, which the {} ranks of group {} cannot split evenly; change the size to a "
                    "multiple of {}, or the layout",
                    what, size, group.size(), group.name(), group.size()));
  }
  return size / group.size();
}

}  // namespace concord
