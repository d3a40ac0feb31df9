// Counts how often each kernel is chosen, by element type. The operator concord_choices::taken returns the counts, so
// that a run can be asked whether its sizes took the fast kernels. Free of libtorch.
#pragma once

#include <array>
#include <atomic>
#include <initializer_list>
#include <string>

#include "backends/cuda/torch/ops/kernels.h"

namespace concord::cuda::torch_side {

// A code path of an operator, declared as a constant in the file that implements it. Counts how often it is taken;
// concord_choices::taken lists the counts.
class Choice {
 public:
  // |types|: element types for which the path can be taken. |is_open|: whether the user's settings allow it.
  Choice(std::string name, std::initializer_list<Type> types, bool (*is_open)() = nullptr);
  Choice(const Choice&) = delete;
  Choice& operator=(const Choice&) = delete;

  // Threads: any thread.
  void take(Type type) const { taken_[static_cast<size_t>(type)].fetch_add(1, std::memory_order_relaxed); }

  const std::string& name() const { return name_; }
  bool is_open_for(Type type) const;
  int64_t taken(Type type) const { return taken_[static_cast<size_t>(type)].load(std::memory_order_relaxed); }

 private:
  const std::string name_;
  std::array<bool, 4> fits_ = {};
  bool (*const is_open_)();
  mutable std::array<std::atomic<int64_t>, 4> taken_ = {};
};

inline constexpr std::initializer_list<Type> kAllTypes = {Type::f32, Type::f64, Type::bf16, Type::f16};
inline constexpr std::initializer_list<Type> kShortTypes = {Type::bf16, Type::f16};

}  // namespace concord::cuda::torch_side
