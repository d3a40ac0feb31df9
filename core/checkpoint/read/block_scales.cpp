#include "core/checkpoint/read/block_scales.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/safetensors/decode.h"

namespace concord {
namespace {

using safetensors::Weights;

int64_t divided_up(int64_t size, int64_t part) { return (size + part - 1) / part; }

const std::array<float, 256>& values_of_bytes() {
  static const std::array<float, 256> table = [] {
    std::array<std::byte, 256> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    std::array<double, 256> numbers;
    safetensors::decode(bytes, safetensors::DType::kF8E4M3, numbers);
    std::array<float, 256> values;
    std::transform(numbers.begin(), numbers.end(), values.begin(), [](double x) { return static_cast<float>(x); });
    return values;
  }();
  return table;
}

bool is_scale_type(safetensors::DType dtype) {
  return dtype == safetensors::DType::kF32 || dtype == safetensors::DType::kBF16 ||
         dtype == safetensors::DType::kF8E8M0;
}

}  // namespace

std::string_view BlockScales::weight_of(std::string_view name) {
  const std::string_view ending = kEnding;
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : std::string_view();
}

BlockScales::BlockScales(const Weights& weights, const Weights::Tensor& tensor, std::span<const int64_t> block)
    : block_rows_(block[0]), block_columns_(block[1]) {
  const std::vector<int64_t>& shape = tensor.info->shape;
  const std::string where = fmt::format("{}: tensor {}", tensor.file->path(), quoted(tensor.info->name));
  if (shape.size() != 2) {
    throw ConfigError(
        fmt::format("{} of {} has type F8_E4M3, which only matrices can have", where, safetensors::shape_text(shape)));
  }
  columns_ = shape[1];
  blocks_ = divided_up(columns_, block_columns_);
  const std::vector<int64_t> wanted{divided_up(shape[0], block_rows_), blocks_};
  const Weights::Tensor* found = weights.find(name_of(tensor.info->name));
  if (found == nullptr || found->info->shape != wanted || !is_scale_type(found->info->dtype)) {
    throw ConfigError(fmt::format(
        "{} has type F8_E4M3, so it needs {} of {} (one scale for each block of {} x {}) in F32, BF16 or F8_E8M0, but "
        "{}",
        where, quoted(name_of(tensor.info->name)), safetensors::shape_text(wanted), block_rows_, block_columns_,
        found == nullptr ? "there is none"
                         : fmt::format("it is {} in {}", safetensors::shape_text(found->info->shape),
                                       to_string(found->info->dtype))));
  }
  std::vector<double> numbers(static_cast<size_t>(found->info->elements()));
  safetensors::decode(found->file->data(*found->info), found->info->dtype, numbers);
  scales_.assign(numbers.begin(), numbers.end());
}

void BlockScales::decode(std::span<const std::byte> elements, int64_t first, std::span<float> out) const {
  const std::array<float, 256>& values = values_of_bytes();
  const auto count = static_cast<int64_t>(elements.size());
  for (int64_t i = 0; i < count;) {
    const int64_t row = (first + i) / columns_, column = (first + i) % columns_;
    const int64_t block = column / block_columns_;
    const float scale = scales_[static_cast<size_t>(row / block_rows_ * blocks_ + block)];
    const int64_t end_column = std::min((block + 1) * block_columns_, columns_);
    const int64_t end = std::min(count, i + end_column - column);
    for (; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      out[at] = values[static_cast<size_t>(elements[at])] * scale;
    }
  }
}

}  // namespace concord
