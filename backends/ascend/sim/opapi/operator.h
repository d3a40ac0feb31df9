// OPERATOR(Name, (parameters) { body }) defines an operator of the simulated library: the exported functions
// aclnnNameGetWorkspaceSize and aclnnName. The C signature follows from the parameters (arguments.h). The body runs on
// the stream's thread, with ATen on the device's memory, below autograd:
//
//   OPERATOR(Mul, (at::Tensor self, at::Tensor other, Out out) { out = at::mul(self, other); })
//
// missing.cpp defines the operators of names.txt that are not defined this way. For use within namespace
// concord::ascend::sim.
#pragma once

#include <memory>
#include <utility>

#include "backends/ascend/sim/opapi/arguments.h"
#include "backends/ascend/sim/opapi/documented.h"
#include "backends/ascend/sim/runtime/sim.h"

namespace concord::ascend::sim {

// Which parameters an operator reads and which it writes.
template <class T, class... Kinds>
inline constexpr bool kIsOneOf = (std::is_same_v<T, Kinds> || ...);
template <class T>
inline constexpr bool kIsRead =
    kIsOneOf<T, at::Tensor, std::optional<at::Tensor>, Tensors, std::optional<Tensors>, InOut>;
template <class T>
inline constexpr bool kIsWritten = kIsOneOf<T, Out, std::optional<Out>, Outs, std::optional<Outs>, InOut>;

template <auto body, const char* operator_name>
struct Operator;

template <class... A, void (*body)(A...), const char* operator_name>
struct Operator<body, operator_name> {
  using Prepare = int(typename Argument<A>::C..., uint64_t*, aclOpExecutor**);

  struct Call final : aclOpExecutor {
    explicit Call(typename Argument<A>::C... arguments)
        : aclOpExecutor(operator_name), kept(Argument<A>::keep(arguments)...) {
      std::apply([this](const auto&... each) { (count<A>(each), ...); }, kept);
      CallArguments call;
      std::apply([&call](const auto&... each) { (list(each, &call), ...); }, kept);
      const std::string complaint = documented_complaint(operator_name, call);
      if (!complaint.empty()) throw OperatorError(kAclnnParamInvalid, complaint);
    }
    template <class Kept>
    static void list(const Kept& value, CallArguments* call) {
      if constexpr (std::is_same_v<Kept, std::shared_ptr<TensorView>>) {
        call->tensors.push_back(value.get());
      } else if constexpr (std::is_same_v<Kept, std::vector<std::shared_ptr<TensorView>>>) {
        auto& list = call->lists.emplace_back();
        for (const auto& each : value) list.push_back(each.get());
      } else if constexpr (std::is_floating_point_v<Kept>) {
        call->numbers.push_back(value);
      } else if constexpr (std::is_integral_v<Kept> && !std::is_same_v<Kept, bool>) {
        call->integers.push_back(value);
      } else if constexpr (std::is_same_v<Kept, std::string>) {
        call->texts.push_back(value);
      }
    }
    template <class Parameter, class Kept>
    void count(const Kept& tensors) {
      if constexpr (kIsRead<Parameter>) bytes_read += bytes_of(tensors);
      if constexpr (kIsWritten<Parameter>) bytes_written += bytes_of(tensors);
    }
    void run() const override {
      std::apply([](const auto&... each) { body(Argument<A>::open(each)...); }, kept);
    }
    std::tuple<typename Argument<A>::Kept...> kept;
  };

  static int prepare(typename Argument<A>::C... arguments, uint64_t* out_workspace_size, aclOpExecutor** out_executor) {
    try {
      return hand_out(std::make_unique<Call>(arguments...), out_workspace_size, out_executor);
    } catch (const OperatorError& error) {
      return refuse(operator_name, error.code(), error.what());
    } catch (const std::exception& error) {
      return refuse(operator_name, kAclnnInner, error.what());
    }
  }
};

}  // namespace concord::ascend::sim

// The exported name refers to an instance of a template, whose parameters only the compiler knows: with ifunc dlsym
// returns that instance, without a wrapper that repeats the parameters.
#define OPERATOR(Name, ...)                                                                                        \
  static void body_##Name __VA_ARGS__ static constexpr char name_##Name[] = "aclnn" #Name;                         \
  static const Registered registered_##Name{name_##Name};                                                          \
  using Operator##Name = Operator<&body_##Name, name_##Name>;                                                      \
  extern "C" {                                                                                                     \
  __attribute__((used)) static Operator##Name::Prepare* concord_bind_##Name() { return &Operator##Name::prepare; } \
  extern CONCORD_SIM_EXPORT                                                                                        \
      __attribute__((ifunc("concord_bind_" #Name))) Operator##Name::Prepare aclnn##Name##GetWorkspaceSize;         \
  CONCORD_SIM_EXPORT int aclnn##Name(void*, uint64_t, aclOpExecutor* executor, abi::aclrtStream stream) {          \
    return launch_executor(name_##Name, executor, stream);                                                         \
  }                                                                                                                \
  }
