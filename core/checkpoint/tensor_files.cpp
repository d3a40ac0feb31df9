#include "core/checkpoint/tensor_files.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/safetensors/writer.h"

namespace concord {
namespace {

using FileType = safetensors::DType;  // concord::DType is that of the platform

constexpr std::array<std::pair<FileType, c10::ScalarType>, 10> kTypes{{{FileType::kBool, at::kBool},
                                                                       {FileType::kU8, at::kByte},
                                                                       {FileType::kI8, at::kChar},
                                                                       {FileType::kI16, at::kShort},
                                                                       {FileType::kI32, at::kInt},
                                                                       {FileType::kI64, at::kLong},
                                                                       {FileType::kF16, at::kHalf},
                                                                       {FileType::kBF16, at::kBFloat16},
                                                                       {FileType::kF32, at::kFloat},
                                                                       {FileType::kF64, at::kDouble}}};

c10::ScalarType torch_type(const safetensors::TensorInfo& info, const std::string& file) {
  for (const auto& [theirs, ours] : kTypes) {
    if (theirs == info.dtype) return ours;
  }
  throw ConfigError(
      fmt::format("{}: tensor {} has type {}, which is not supported", file, quoted(info.name), to_string(info.dtype)));
}

FileType tensor_file_type(const std::string& name, c10::ScalarType type) {
  for (const auto& [theirs, ours] : kTypes) {
    if (ours == type) return theirs;
  }
  throw ConfigError(fmt::format("tensor {} of type {} cannot be written", name, c10::toString(type)));
}

}  // namespace

at::Tensor read_tensor(const safetensors::Reader& file, const std::string& name) {
  const safetensors::TensorInfo& info = file.at(name);
  const at::Tensor tensor = at::empty(info.shape, torch_type(info, file.path()));
  file.read(info, 0, {static_cast<std::byte*>(tensor.data_ptr()), info.bytes()});
  return tensor;
}

void write_tensors(const std::string& path, const TensorMap& tensors) {
  std::vector<safetensors::TensorShape> shapes;
  for (const auto& [name, tensor] : tensors) {
    shapes.push_back({name, tensor_file_type(name, tensor.scalar_type()), tensor.sizes().vec()});
  }
  safetensors::Writer writer(path, std::move(shapes));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    writer.write(name, 0, {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  writer.finish();
}

}  // namespace concord
