// Converts libtorch's tensors to the arguments of the kernels. Only for the .cpp files in this folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <vector>

#include "backends/cuda/torch/ops/kernels.h"

namespace concord::cuda::torch_side {

inline Type type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return Type::f64;
    case at::kBFloat16: return Type::bf16;
    case at::kHalf: return Type::f16;
    default: return Type::f32;
  }
}

// Returns the type of sums and statistics for the type of |tensor|.
inline at::TensorOptions sums_of(const at::Tensor& tensor) {
  return tensor.options().dtype(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// Returns libtorch's current stream on the tensor's device, which must be the current device (OnDevice).
inline Where where(const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  return {static_cast<cudaStream_t>(guard.getStream(tensor.device()).native_handle()), type_of(tensor)};
}

// Makes a tensor's device the current device, on which kernels are launched.
using OnDevice = c10::DeviceGuard;

inline Rows rows_of(const at::Tensor& x) { return {x.size(-1) == 0 ? 0 : x.numel() / x.size(-1), x.size(-1)}; }

// Runs the reference of an operator, which works on any device, for arguments that the kernels do not support.
inline std::vector<c10::IValue> reference(const char* name, std::vector<c10::IValue> stack) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
  return stack;
}

}  // namespace concord::cuda::torch_side
