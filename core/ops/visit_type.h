// Maps a tensor's type to the C++ type of its elements.
#pragma once

#include <c10/core/ScalarType.h>

#include "core/ops/check.h"

namespace concord::ops {

// Returns whether the loops in cpu/ are compiled for |type|. Half uses the reference.
inline bool has_loops(c10::ScalarType type) {
  return type == c10::ScalarType::Float || type == c10::ScalarType::Double || type == c10::ScalarType::BFloat16;
}

// Calls visitor(T()) for these types.
template <class Visitor>
void visit_type(const char* op, c10::ScalarType type, Visitor&& visitor) {
  switch (type) {
    case c10::ScalarType::Float: return visitor(float{});
    case c10::ScalarType::Double: return visitor(double{});
    case c10::ScalarType::BFloat16: return visitor(c10::BFloat16{});
    default: refuse(op, std::string("has no kernel for ") + c10::toString(type));
  }
}

// Returns the accumulation type of a tensor of |type|.
inline c10::ScalarType sum_type(c10::ScalarType type) {
  return type == c10::ScalarType::Double ? type : c10::ScalarType::Float;
}

}  // namespace concord::ops
