#include "backends/ascend/sim/opapi/arguments.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>

#include "backends/ascend/sim/runtime/sim.h"

extern "C" const char* aclGetRecentErrMsg();

namespace concord::ascend::sim {
namespace {

// The formats whose storage is described by sizes and strides. All others (FRACTAL_NZ and similar) are tiled.
constexpr int32_t kPlainFormats[] = {abi::kAclFormatNd, 0 /*NCHW*/, 1 /*NHWC*/, 30 /*NCDHW*/, 47 /*NCL*/};

void check_format(const TensorView& view) {
  for (const int32_t format : kPlainFormats) {
    if (view.format == format) return;
  }
  throw OperatorError(kAclnnParamInvalid, "a " + describe(view) + " has format " + std::to_string(view.format) +
                                              "; this simulator knows ND, NCHW, NHWC, NCDHW and NCL");
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text;
  for (const int64_t size : tensor.sizes()) text += (text.empty() ? "" : ",") + std::to_string(size);
  return "[" + text + "]";
}

template <class Value>
Value read(const aclScalar& scalar) {
  Value value;
  std::memcpy(&value, scalar.value, sizeof value);
  return value;
}

// How many elements from its first to its last a tensor spans; 0 for an empty one.
int64_t span_of(const TensorView& view) {
  int64_t last = 0;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] == 0) return 0;
    last += (view.sizes[i] - 1) * view.strides[i];
  }
  return last + 1;
}

}  // namespace

void Out::operator=(const at::Tensor& value) const {
  if (value.sizes() != tensor_.sizes()) {
    throw OperatorError(kAclnnParamInvalid,
                        "the result is " + shape_of(value) + ", but the output is " + shape_of(tensor_));
  }
  tensor_.copy_(value);
}

void Out::reshaped(const at::Tensor& value) const {
  if (value.numel() != tensor_.numel()) *this = value;  // throws with both shapes
  tensor_.copy_(value.reshape(tensor_.sizes()));
}

void Out::resized(const at::Tensor& value) const {
  if (value.numel() > tensor_.numel()) *this = value;  // throws with both shapes
  tensor_.view({-1}).narrow(0, 0, value.numel()).copy_(value.reshape({-1}));
  view_->sizes = value.sizes().vec();
}

at::ScalarType scalar_type(abi::aclDataType dtype) {
  switch (dtype) {
    case abi::kAclFloat: return at::kFloat;
    case abi::kAclFloat16: return at::kHalf;
    case abi::kAclBf16: return at::kBFloat16;
    case abi::kAclDouble: return at::kDouble;
    case abi::kAclInt8: return at::kChar;
    case abi::kAclInt16: return at::kShort;
    case abi::kAclInt32: return at::kInt;
    case abi::kAclInt64: return at::kLong;
    case abi::kAclUint8: return at::kByte;
    case abi::kAclUint16: return at::kUInt16;
    case abi::kAclUint32: return at::kUInt32;
    case abi::kAclUint64: return at::kUInt64;
    case abi::kAclBool: return at::kBool;
    case abi::kAclComplex64: return at::kComplexFloat;
    case abi::kAclComplex128: return at::kComplexDouble;
    default: break;
  }
  throw OperatorError(kAclnnParamInvalid, "data " + dtype_name(dtype) + " is not known to this simulator");
}

at::Scalar to_scalar(const aclScalar& scalar) {
  switch (scalar.dtype) {
    case abi::kAclFloat: return read<float>(scalar);
    case abi::kAclDouble: return read<double>(scalar);
    case abi::kAclFloat16: return static_cast<float>(read<c10::Half>(scalar));
    case abi::kAclBf16: return static_cast<float>(read<c10::BFloat16>(scalar));
    case abi::kAclInt8: return read<int8_t>(scalar);
    case abi::kAclInt16: return read<int16_t>(scalar);
    case abi::kAclInt32: return read<int32_t>(scalar);
    case abi::kAclInt64: return read<int64_t>(scalar);
    case abi::kAclUint8: return read<uint8_t>(scalar);
    case abi::kAclBool: return read<bool>(scalar);
    default: break;
  }
  throw OperatorError(kAclnnParamInvalid,
                      "a scalar of " + dtype_name(scalar.dtype) + " is not known to this simulator");
}

void check_object(const void* object, Kind kind, bool optional) {
  if (object == nullptr && optional) return;
  if (object == nullptr) throw OperatorError(kAclnnParamNull, std::string("a required ") + name_of(kind) + " is null");
  Kind found;
  if (!find_object(object, &found) || found != kind) {
    throw OperatorError(kAclnnParamInvalid,
                        "given " + describe_object(object) + " where a live " + name_of(kind) + " is expected");
  }
}

std::shared_ptr<TensorView> keep_tensor(const aclTensor* tensor, bool optional) {
  check_object(tensor, Kind::kTensor, optional);
  if (tensor == nullptr) return nullptr;
  scalar_type(tensor->view->dtype);
  check_format(*tensor->view);
  return tensor->view;
}

int64_t bytes_of(const std::shared_ptr<TensorView>& view) {
  if (view == nullptr) return 0;
  auto bytes = static_cast<int64_t>(dtype_size(view->dtype));
  for (size_t i = 0; i < view->sizes.size(); ++i) {
    if (view->sizes[i] == 0 || view->strides[i] != 0) bytes *= view->sizes[i];
  }
  return bytes;
}

int64_t bytes_of(const std::vector<std::shared_ptr<TensorView>>& views) {
  int64_t bytes = 0;
  for (const auto& view : views) bytes += bytes_of(view);
  return bytes;
}

int64_t bytes_of(const std::optional<std::vector<std::shared_ptr<TensorView>>>& views) {
  return views ? bytes_of(*views) : 0;
}

at::Tensor open_tensor(const TensorView& view) {
  const at::ScalarType type = scalar_type(view.dtype);
  const int64_t size = static_cast<int64_t>(c10::elementSize(type));
  const int64_t span = span_of(view);
  void* memory = nullptr;
  if (span > 0) {
    const char* address = static_cast<const char*>(view.storage) + view.offset * size;
    if (concord_sim_check_device_memory(address, static_cast<size_t>(span * size), "a tensor") != 0) {
      throw OperatorError(kAclnnParamInvalid, describe(view) + ": " + aclGetRecentErrMsg());
    }
    memory = concord_sim_translate(address);
  }
  return at::from_blob(memory, view.sizes, view.strides, at::TensorOptions().dtype(type));
}

}  // namespace concord::ascend::sim
