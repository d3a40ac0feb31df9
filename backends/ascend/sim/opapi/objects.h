// The argument objects of the simulated operator library, created by aclCreateTensor and similar functions. Callers see
// opaque pointers, so the layout is not the vendor's. Every object is recorded until it is destroyed; any other pointer
// is an error that names the argument, and is not dereferenced.
//
// Threads: any thread. An object may be destroyed while an operator that uses it still waits on its stream: the
// operator keeps the contents (see Tensor).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::sim {

// The contents of a tensor. Kept alive by the object and by every operator that uses it. Constant, except that an
// operator whose output size depends on values (nonzero) writes the size.
struct TensorView {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // in elements
  int64_t offset = 0;            // in elements, from |storage|
  abi::aclDataType dtype = abi::kAclDtUndefined;
  int32_t format = 0;
  void* storage = nullptr;  // a device address
};

struct aclTensor {
  std::shared_ptr<TensorView> view;
};
struct aclScalar {
  abi::aclDataType dtype;
  alignas(16) unsigned char value[16];
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};
struct aclTensorList {  // owns its elements
  std::vector<const aclTensor*> elements;
};
struct aclScalarList {  // owns its elements
  std::vector<const aclScalar*> elements;
};

enum class Kind { kTensor, kScalar, kIntArray, kFloatArray, kBoolArray, kTensorList, kScalarList, kExecutor };
const char* name_of(Kind kind);

// Returns the kind of |object| if it is a live object.
bool find_object(const void* object, Kind* out_kind);
void remember_object(const void* object, Kind kind);
// Returns whether the object existed.
bool forget_object(const void* object, Kind kind);

// Describes an object for messages: "tensor float32[2,3]", "scalar 0.5", "ints{1,2}"; other pointers as numbers.
std::string describe_object(const void* object);
std::string describe(const TensorView& view);

// A type's usual name ("bfloat16") and its size in bytes; "type 77" and 0 for an unknown type.
std::string dtype_name(abi::aclDataType dtype);
size_t dtype_size(abi::aclDataType dtype);

}  // namespace concord::ascend::sim
