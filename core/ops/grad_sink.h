// Where the gradient of a parameter goes instead of into autograd's .grad: directly into a buffer, immediately or
// deferred.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

namespace concord {

// Weight gradients deferred until there is time for them (the W of zero-bubble schedules). The operands are kept, so
// their memory stays in use until then. Threads: one at a time.
class DeferredWgrads {
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
  DeferredWgrads* later = nullptr;   // where the addition waits; null: it is made in backward
  // Whether |main| holds what is left of an earlier step, so that the first addition replaces it. Null: it never does.
  std::shared_ptr<bool> is_stale = {};

  using Addition = std::function<void(at::Tensor& main)>;
  // Performs the addition, or defers it, and calls |added| after it. |replacement| is what to do instead where |main|
  // is stale; without it that is cleared first.
  void add(Addition addition, Addition replacement = {}) const;
};

}  // namespace concord
