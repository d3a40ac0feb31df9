// Where the gradient of a parameter goes instead of into autograd's .grad: directly into a buffer, immediately or
// deferred.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>

namespace concord {

// Weight gradients deferred until there is time for them (the W of zero-bubble schedules). The operands are kept, so
// their memory stays in use until then. Threads: one at a time.
class DeferredGrads {
 public:
  void put(std::function<void()> half) { halves_.push_back(std::move(half)); }
  size_t size() const { return halves_.size(); }
  // The oldest |count|, in the order in which they came; all of them if there are fewer.
  void run(size_t count);
  void run_all() { run(halves_.size()); }

 private:
  std::deque<std::function<void()>> halves_;
};

// A value; copies share the buffer. What it points to has to live until backward is done.
struct GradSink {
  at::Tensor main;                   // of the parameter's shape, fp32 or fp64; gradients are added to it
  std::function<void()> added = {};  // called after each addition, on the thread that made it
  DeferredGrads* later = nullptr;    // where the addition waits; null: it is made in backward

  // Performs the addition, or defers it, and calls |added| after it.
  void add(std::function<void(at::Tensor& main)> addition) const;
};

}  // namespace concord
