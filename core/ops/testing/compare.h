// Runs kernels of operators on samples and measures how much of the error bound they use: for ops_test and for
// compare_operators() (core/ops/comparison.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>
#include <vector>

#include "core/ops/testing/samples.h"

namespace concord::ops::testing {

using Stack = std::vector<c10::IValue>;

// Returns the operators of the library "concord".
std::vector<c10::OperatorHandle> operators();

// The same arguments with their tensors changed by |change|.
template <class Change>
Stack with_tensors(const Stack& arguments, const Change& change) {
  Stack result;
  for (const c10::IValue& each : arguments) {
    if (each.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : each.toTensorVector()) list.push_back(change(tensor));
      result.emplace_back(list);
    } else {
      result.push_back(each.isTensor() && each.toTensor().defined() ? c10::IValue(change(each.toTensor())) : each);
    }
  }
  return result;
}

bool is_floating(const at::Tensor& tensor);

// Returns copies in fp64, so that kernels that write into their arguments do not see each other's results.
Stack wide(const Stack& arguments);
Stack wide_on(c10::Device device, const Stack& arguments);

// Returns a copy on |device| with the same strides and misalignment, by which kernels are chosen.
at::Tensor placed(const at::Tensor& tensor, c10::Device device);

// Returns the results of the operator and the arguments that it wrote.
std::vector<at::Tensor> run(const c10::OperatorHandle& op, c10::DispatchKey key, const Stack& arguments);

// Returns the fraction of the rounding bound that |got| uses; NaN if it is NaN. |slack| and |has_nan|: see Sample.
double share_of_bound(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& slack, bool has_nan);

// Returns the slack of each output.
std::vector<at::Tensor> slack_of(const Sample& sample, const Stack& wide_arguments,
                                 const std::vector<at::Tensor>& exact, c10::ScalarType type);
// Returns |slack|, and what a kernel on |device| is allowed in addition if that is Ascend's: some references consist
// of other operators, which have kernels there.
std::vector<at::Tensor> slack_of_kernel(c10::Device device, std::vector<at::Tensor> slack, const Sample& sample,
                                        const Stack& arguments, const std::vector<at::Tensor>& exact);

// Returns types and sizes of the arguments.
std::string text_of(const Stack& arguments);

struct Kernel {
  c10::DispatchKey key;
  c10::Device device;

  bool is_reference() const { return key == c10::DispatchKey::CompositeExplicitAutograd; }
};
// Returns the kernels to test: the reference and those of the cpu and of the platform's device.
std::vector<Kernel> kernels_of(const c10::OperatorHandle& op, c10::Device device);

// How often the device's operator library chose each of its implementations for elements of |type|; empty if it does
// not report this (concord_choices::taken, see docs/operators.md).
using Choices = std::map<std::string, int64_t>;
Choices choices(c10::ScalarType type);
// Returns the choices that were taken since |before|.
std::string taken_since(const Choices& before, c10::ScalarType type);

}  // namespace concord::ops::testing
