// Calls of operators of the library "concord" through libtorch's dispatcher, which picks the kernel by the tensors'
// device: a vendor's if one is registered, otherwise the reference. Only for the .cpp files of operators.
#pragma once

#include <torch/library.h>

namespace concord::ops {

// Returns the operator, e.g. find<Tensor(const Tensor&)>("concord::swiglu"). Store it in a static: the lookup takes a
// lock.
template <class Signature>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace concord::ops
