// Converts an operator's C arguments to ATen's types. An operator is written as a C++ function; the type of each of its
// parameters determines the C type of the library's entry point, what is kept when the operator is called, and what the
// body gets when it runs:
//
//   at::Tensor                  const aclTensor*      an input; null is an error
//   std::optional<at::Tensor>   const aclTensor*      an input that may be null
//   Out                         aclTensor*            an output; null is an error
//   InOut                       aclTensor*            an input and output; null is an error
//   std::optional<Out>          aclTensor*            an output that may be null
//   at::Scalar (or optional)    const aclScalar*
//   Ints (or optional)          const aclIntArray*
//   Bools                       const aclBoolArray*
//   Tensors, Outs, Scalars      const aclTensorList*, const aclScalarList*; optional for lists of tensors
//   at::ScalarType              aclDataType
//   std::string                 const char*
//   numbers and bool            themselves
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "backends/ascend/sim/opapi/executor.h"
#include "backends/ascend/sim/opapi/operands.h"

namespace concord::ascend::sim {

// ---------------------------------------------------------------------------------------- one kind of argument each

// Numbers and bool.
template <class T>
struct Argument {
  static_assert(std::is_arithmetic_v<T>, "no such kind of argument; see the list at the top");
  using C = T;
  using Kept = T;
  static Kept keep(C value) { return value; }
  static T open(Kept value) { return value; }
};

template <>
struct Argument<at::ScalarType> {
  using C = abi::aclDataType;
  using Kept = at::ScalarType;
  static Kept keep(C value) { return scalar_type(value); }
  static at::ScalarType open(Kept value) { return value; }
};

template <>
struct Argument<std::string> {
  using C = const char*;
  using Kept = std::string;
  static Kept keep(C value) { return value != nullptr ? value : ""; }
  static const std::string& open(const Kept& value) { return value; }
};

template <>
struct Argument<at::Tensor> {
  using C = const aclTensor*;
  using Kept = std::shared_ptr<TensorView>;
  static Kept keep(C tensor) { return keep_tensor(tensor, false); }
  static at::Tensor open(const Kept& view) { return open_tensor(*view); }
};

template <>
struct Argument<Out> {
  using C = aclTensor*;
  using Kept = std::shared_ptr<TensorView>;
  static Kept keep(C tensor) { return keep_tensor(tensor, false); }
  static Out open(const Kept& view) { return {open_tensor(*view), view}; }
};

template <>
struct Argument<InOut> : Argument<Out> {
  static InOut open(const Kept& view) { return {open_tensor(*view), view}; }
};

template <class T>
struct OptionalTensorArgument : Argument<T> {
  using Kept = std::shared_ptr<TensorView>;
  static Kept keep(typename Argument<T>::C tensor) { return keep_tensor(tensor, true); }
  static std::optional<T> open(const Kept& view) {
    if (view == nullptr) return std::nullopt;
    return Argument<T>::open(view);
  }
};
template <>
struct Argument<std::optional<at::Tensor>> : OptionalTensorArgument<at::Tensor> {};
template <>
struct Argument<std::optional<Out>> : OptionalTensorArgument<Out> {};

template <>
struct Argument<at::Scalar> {
  using C = const aclScalar*;
  using Kept = at::Scalar;
  static Kept keep(C scalar) {
    check_object(scalar, Kind::kScalar, false);
    return to_scalar(*scalar);
  }
  static const at::Scalar& open(const Kept& value) { return value; }
};

template <>
struct Argument<std::optional<at::Scalar>> {
  using C = const aclScalar*;
  using Kept = std::optional<at::Scalar>;
  static Kept keep(C scalar) {
    check_object(scalar, Kind::kScalar, true);
    if (scalar == nullptr) return std::nullopt;
    return to_scalar(*scalar);
  }
  static const Kept& open(const Kept& value) { return value; }
};

template <class Values, class Array, Kind kKind>
struct ArrayArgument {
  using C = const Array*;
  using Kept = Values;
  static Kept keep(C array) {
    check_object(array, kKind, false);
    return array->values;
  }
  static const Values& open(const Kept& value) { return value; }
};
template <>
struct Argument<Ints> : ArrayArgument<Ints, aclIntArray, Kind::kIntArray> {};
template <>
struct Argument<Bools> : ArrayArgument<Bools, aclBoolArray, Kind::kBoolArray> {};

template <>
struct Argument<std::optional<Ints>> {
  using C = const aclIntArray*;
  using Kept = std::optional<Ints>;
  static Kept keep(C array) {
    check_object(array, Kind::kIntArray, true);
    if (array == nullptr) return std::nullopt;
    return array->values;
  }
  static const Kept& open(const Kept& value) { return value; }
};

template <class Element, class List>
struct TensorListArgument {
  using C = const aclTensorList*;
  using Kept = std::vector<std::shared_ptr<TensorView>>;
  static Kept keep(C list) {
    check_object(list, Kind::kTensorList, false);
    Kept kept;
    for (const aclTensor* element : list->elements) kept.push_back(keep_tensor(element, false));
    return kept;
  }
  static List open(const Kept& kept) {
    List list;
    for (const auto& view : kept) list.push_back(Argument<Element>::open(view));
    return list;
  }
};
template <class Element, class List>
struct OptionalListArgument {
  using C = const aclTensorList*;
  using Kept = std::optional<std::vector<std::shared_ptr<TensorView>>>;
  static Kept keep(C list) {
    if (list == nullptr) return std::nullopt;
    return TensorListArgument<Element, List>::keep(list);
  }
  static std::optional<List> open(const Kept& kept) {
    if (!kept) return std::nullopt;
    return TensorListArgument<Element, List>::open(*kept);
  }
};
template <>
struct Argument<Tensors> : TensorListArgument<at::Tensor, Tensors> {};
template <>
struct Argument<std::optional<Tensors>> : OptionalListArgument<at::Tensor, Tensors> {};
template <>
struct Argument<std::optional<Outs>> : OptionalListArgument<Out, Outs> {};
template <>
struct Argument<Outs> : TensorListArgument<Out, Outs> {};

template <>
struct Argument<Scalars> {
  using C = const aclScalarList*;
  using Kept = Scalars;
  static Kept keep(C list) {
    check_object(list, Kind::kScalarList, false);
    Kept kept;
    for (const aclScalar* element : list->elements) kept.push_back(Argument<at::Scalar>::keep(element));
    return kept;
  }
  static const Scalars& open(const Kept& value) { return value; }
};

}  // namespace concord::ascend::sim
