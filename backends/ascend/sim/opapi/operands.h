// The operands of a simulated operator, opened from the vendor's objects.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backends/ascend/sim/opapi/objects.h"

namespace concord::ascend::sim {

using Ints = std::vector<int64_t>;
using Bools = std::vector<bool>;
using Tensors = std::vector<at::Tensor>;
using Scalars = std::vector<at::Scalar>;

// A tensor that an operator writes.
class Out {
 public:
  Out(at::Tensor tensor, std::shared_ptr<TensorView> view) : tensor_(std::move(tensor)), view_(std::move(view)) {}

  // Writes |value|, converted to the output's type. It must have the output's shape: silent broadcasting or reshaping
  // would hide a wrong call.
  void operator=(const at::Tensor& value) const;
  // Like operator=, for outputs to which the vendor gives a different shape of the same size ([1] for a scalar).
  void reshaped(const at::Tensor& value) const;
  // Writes the front of the output and sets the size that aclGetViewShape returns, for outputs whose size depends on
  // values.
  void resized(const at::Tensor& value) const;

  const at::Tensor& operator*() const { return tensor_; }
  const at::Tensor* operator->() const { return &tensor_; }

 private:
  at::Tensor tensor_;
  std::shared_ptr<TensorView> view_;
};
using Outs = std::vector<Out>;

// An output whose values the operator also reads.
class InOut : public Out {
 public:
  using Out::Out;
  using Out::operator=;
};

// Returns a tensor on the memory of |view|. Call on the stream's thread. Throws OperatorError.
at::Tensor open_tensor(const TensorView& view);
// Returns the bytes of the kept tensor or list; a dimension that is repeated by a stride of 0 counts once.
int64_t bytes_of(const std::shared_ptr<TensorView>& view);
int64_t bytes_of(const std::vector<std::shared_ptr<TensorView>>& views);
int64_t bytes_of(const std::optional<std::vector<std::shared_ptr<TensorView>>>& views);
at::ScalarType scalar_type(abi::aclDataType dtype);
at::Scalar to_scalar(const aclScalar& scalar);

// Checks that |object| is a live object of |kind|, or null if |optional|. Throws OperatorError.
void check_object(const void* object, Kind kind, bool optional);
// Checks a tensor's type and format, without access to its memory. Throws OperatorError.
std::shared_ptr<TensorView> keep_tensor(const aclTensor* tensor, bool optional);

}  // namespace concord::ascend::sim
