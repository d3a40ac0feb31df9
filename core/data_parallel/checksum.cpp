#include "core/data_parallel/checksum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "core/data_parallel/checksum_rows.h"

namespace concord {
namespace {

constexpr int64_t kWordBytes = 8;

// Like sum(0) of a table of words, whose loop over integers is several times slower on the host.
at::Tensor sum_rows_on_host(const at::Tensor& table, int64_t rows) {
  at::Tensor result = at::zeros({kChecksumColumns}, at::kLong);
  add_rows(table.const_data_ptr<int64_t>(), rows, result.data_ptr<int64_t>());
  return result;
}

at::Tensor sum_rows(const at::Tensor& table, int64_t rows) {
  if (table.is_cpu()) return sum_rows_on_host(table, rows);
  if (rows == 0) return at::zeros({kChecksumColumns}, table.options());
  return table.narrow(0, 0, rows * kChecksumColumns).view({rows, kChecksumColumns}).sum(0);
}

at::Tensor column_sums(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().view({-1});
  const int64_t per_word = kWordBytes / static_cast<int64_t>(flat.itemsize());
  const int64_t words = flat.numel() / per_word, tail = flat.numel() % per_word;
  const int64_t rows = words / kChecksumColumns, rest = words % kChecksumColumns;
  const at::Tensor table = flat.narrow(0, 0, words * per_word).view(at::kLong);
  const at::Tensor sums = sum_rows(table, rows);
  if (rest > 0) sums.narrow(0, 0, rest).add_(table.narrow(0, rows * kChecksumColumns, rest));
  if (tail > 0) {
    const at::Tensor last = at::zeros({per_word}, flat.options());
    last.narrow(0, 0, tail).copy_(flat.narrow(0, words * per_word, tail));
    sums.narrow(0, rest, 1).add_(last.view(at::kLong));
  }
  return sums;
}

// MurmurHash3's finalizer.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
  return x ^ (x >> 33);
}

}  // namespace

std::vector<int64_t> checksums(std::span<const at::Tensor> tensors) {
  if (tensors.empty()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> columns;
  for (const at::Tensor& tensor : tensors) columns.push_back(column_sums(tensor));
  const at::Tensor on_host = at::stack(columns).cpu();
  const int64_t* sum = on_host.const_data_ptr<int64_t>();
  std::vector<int64_t> results;
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t result = 0;
    for (uint64_t column = 1; column <= kChecksumColumns; ++column) {
      result += mixed(static_cast<uint64_t>(*sum++) + column * 0x9e3779b97f4a7c15);
    }
    results.push_back(static_cast<int64_t>(result));
  }
  return results;
}

}  // namespace concord
