// Flat arrays whose type is known at run time, for loops over memory that are compiled for each.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace concord {

enum class FlatType { none, f32, bf16, f16 };

struct FlatGrads {
  const void* data = nullptr;
  FlatType type = FlatType::f32;
};

struct FlatValues {
  void* data = nullptr;
  FlatType type = FlatType::none;
};

// Flat arrays of a part of a parameter, for rules with one moment. |weights| and |momentum| are fp32.
struct MomentumArrays {
  FlatGrads grads;
  float* weights;
  float* momentum;
  FlatValues values;  // the 16-bit parameter, set to the rounded |weights|; or none
};

// Rounds to nearest. (Half's constructor takes a different type on ARM.)
template <class T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, c10::Half>) {
    return {c10::detail::fp16_ieee_from_fp32_value(x), c10::Half::from_bits()};
  } else {
    return static_cast<T>(x);
  }
}

// Calls visitor(pointer to the elements).
template <class Visitor>
void visit(const FlatGrads& grads, Visitor&& visitor) {
  switch (grads.type) {
    case FlatType::bf16: return visitor(static_cast<const c10::BFloat16*>(grads.data));
    case FlatType::f16: return visitor(static_cast<const c10::Half*>(grads.data));
    default: return visitor(static_cast<const float*>(grads.data));
  }
}

// Calls visitor(pointer to the elements), or visitor(null float*) if there are none.
template <class Visitor>
void visit(const FlatValues& values, Visitor&& visitor) {
  switch (values.type) {
    case FlatType::bf16: return visitor(static_cast<c10::BFloat16*>(values.data));
    case FlatType::f16: return visitor(static_cast<c10::Half*>(values.data));
    default: return visitor(static_cast<float*>(nullptr));
  }
}

}  // namespace concord
