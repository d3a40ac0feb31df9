#include "core/checkpoint/read/mxfp4.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <limits>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

using safetensors::Weights;

constexpr int64_t kBlock = 32;  // elements that share a scale
constexpr const char* kBlocks = "_blocks";
constexpr const char* kScales = "_scales";
// E2M1: a sign, two bits of exponent and one of mantissa.
constexpr std::array<float, 16> kElements{0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

const std::array<float, 256>& powers() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values;
    for (int i = 0; i < 255; ++i) values[static_cast<size_t>(i)] = std::ldexp(1.F, i - 127);
    values[255] = std::numeric_limits<float>::quiet_NaN();  // defined by the format
    return values;
  }();
  return table;
}

std::span<const std::byte> bytes_of(const Weights& weights, const std::string& name,
                                    const std::vector<int64_t>& shape) {
  const Weights::Tensor* found = weights.find(name);
  if (found == nullptr || found->info->shape != shape || found->info->dtype != safetensors::DType::kU8) {
    throw ConfigError(fmt::format("{}: a weight in MXFP4 needs {} of {} in U8, but {}", weights.path(), quoted(name),
                                  safetensors::shape_text(shape),
                                  found == nullptr
                                      ? "there is none"
                                      : fmt::format("it is {} in {}", safetensors::shape_text(found->info->shape),
                                                    to_string(found->info->dtype))));
  }
  return found->file->data(*found->info);
}

}  // namespace

const Weights::Tensor* Mxfp4Weight::blocks_of(const Weights& weights, const std::string& name) {
  return weights.find(name + kBlocks);
}

std::string_view Mxfp4Weight::weight_of(std::string_view name) {
  for (const std::string_view ending : {kBlocks, kScales}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return {};
}

Mxfp4Weight::Mxfp4Weight(const Weights& weights, const std::string& name, std::span<const int64_t> shape) {
  if (shape.size() != 3 || shape[1] % kBlock != 0) {
    throw ConfigError(fmt::format(
        "{}: {} is in MXFP4 ({}), but it is {}; must be [experts, in, out], in a multiple of {}", weights.path(),
        quoted(name), quoted(name + kBlocks), safetensors::shape_text({shape.begin(), shape.end()}), kBlock));
  }
  rows_ = shape[1];
  columns_ = shape[2];
  blocks_ = bytes_of(weights, name + kBlocks, {shape[0], columns_, rows_ / kBlock, kBlock / 2});
  scales_ = bytes_of(weights, name + kScales, {shape[0], columns_, rows_ / kBlock});
}

// A column of an expert is contiguous in the file, a row is not: adjacent elements of a row are rows_ / 2 bytes apart.
void Mxfp4Weight::decode(int64_t first, std::span<float> out) const {
  const std::array<float, 256>& power = powers();
  for (int64_t i = 0; i < static_cast<int64_t>(out.size());) {
    const int64_t row = (first + i) / columns_ % rows_, expert = (first + i) / columns_ / rows_;
    int64_t column = (first + i) % columns_;
    const int shift = row % 2 == 0 ? 0 : 4;
    for (; column < columns_ && i < static_cast<int64_t>(out.size()); ++column, ++i) {
      const int64_t element = (expert * columns_ + column) * rows_ + row;
      const auto both = static_cast<unsigned>(blocks_[static_cast<size_t>(element / 2)]);
      const auto scale = static_cast<size_t>(scales_[static_cast<size_t>(element / kBlock)]);
      out[static_cast<size_t>(i)] = kElements[(both >> shift) & 15U] * power[scale];
    }
  }
}

std::span<const std::byte> Mxfp4Weight::bytes(int64_t first, int64_t count) const {
  const int64_t expert = rows_ * columns_, begin = first / expert, end = (first + count - 1) / expert + 1;
  return blocks_.subspan(static_cast<size_t>(begin * expert / 2), static_cast<size_t>((end - begin) * expert / 2));
}

}  // namespace concord
