#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/safetensors/reader.h"
#include "trainer/data/sources/row_source.h"
#include "trainer/data/sources/split.h"

namespace concord {
namespace {

using safetensors::DType;
using safetensors::Reader;
using safetensors::TensorInfo;

template <typename Value>
void copy_as(const std::byte* from, size_t count, std::vector<int64_t>* to) {
  to->resize(count);
  for (size_t i = 0; i < count; ++i) {
    Value value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    (*to)[i] = static_cast<int64_t>(value);
  }
}

void copy_row(const Reader& file, const TensorInfo& tensor, size_t row, size_t columns, std::vector<int64_t>* to) {
  const std::byte* const from =
      file.data(tensor).data() + row * columns * static_cast<size_t>(safetensors::size_of(tensor.dtype));
  switch (tensor.dtype) {
    case DType::kI64: return copy_as<int64_t>(from, columns, to);
    case DType::kI32: return copy_as<int32_t>(from, columns, to);
    case DType::kU32: return copy_as<uint32_t>(from, columns, to);
    case DType::kI16: return copy_as<int16_t>(from, columns, to);
    case DType::kU16: return copy_as<uint16_t>(from, columns, to);
    case DType::kU8: return copy_as<uint8_t>(from, columns, to);
    default:
      throw ConfigError(fmt::format("{}: {} has dtype {}; token ids must be I64, I32, U32, I16, U16 or U8", file.path(),
                                    quoted(tensor.name), safetensors::to_string(tensor.dtype)));
  }
}

}  // namespace

std::unique_ptr<SampleSource> open_safetensors(const DataArguments& arguments) {
  const Reader file(arguments.path);
  const TensorInfo& ids = file.at("input_ids");
  const TensorInfo* const given_labels = file.find("labels");
  const TensorInfo& labels = given_labels != nullptr ? *given_labels : ids;
  if (labels.shape != ids.shape) {
    throw ConfigError(
        fmt::format("{}: labels have shape {}, but input_ids have {}; give one label per id, -100 to ignore it",
                    arguments.path, safetensors::shape_text(labels.shape), safetensors::shape_text(ids.shape)));
  }
  if (ids.shape.empty() || ids.elements() == 0) {
    throw ConfigError(fmt::format("{}: input_ids have shape {}; contains no samples", arguments.path,
                                  safetensors::shape_text(ids.shape)));
  }
  const size_t columns = static_cast<size_t>(ids.shape.back()), all = static_cast<size_t>(ids.elements()) / columns;
  const size_t rows = arguments.max_samples == 0 ? all : std::min(all, static_cast<size_t>(arguments.max_samples));
  auto source = std::make_unique<RowSource>(arguments.path, arguments);
  TokensAndLabels tokens;
  for (size_t row = 0; row < rows; ++row) {
    copy_row(file, ids, row, columns, &tokens.ids);
    copy_row(file, labels, row, columns, &tokens.labels);
    source->add(tokens, fmt::format("row {}", row));
  }
  return part_of(std::move(source), arguments);
}

}  // namespace concord
