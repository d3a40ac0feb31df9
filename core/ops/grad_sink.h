// The destination of a parameter's gradient instead of autograd's .grad: directly a buffer, immediately or deferred.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

namespace concord {

// Weight gradients that are deferred until there is time for them (the W of zero-bubble schedules). Their operands are
// kept, so their memory stays in use until then. Threads: one at a time.
class DeferredWgrads {
 public:
  void put(std::function<void()> half) { halves_.push_back(std::move(half)); }
  size_t size() const { return halves_.size(); }
  // Runs the oldest |count| in order; all of them if there are fewer.
  void run(size_t count);
  void run_all() { run(halves_.size()); }

 private:
  std::deque<std::function<void()>> halves_;
};

// A value; copies share the buffer. Everything it points to must live until backward is done.
struct GradSink {
  at::Tensor main;                     // shape of the parameter, fp32 or fp64; gradients are added to it
  std::function<void()> added = {};    // called after each addition, on the same thread
  DeferredWgrads* deferred = nullptr;  // queue for the additions; null: they run in backward
  // Whether |main| holds the gradient of an earlier step, so that the first addition overwrites it. Null: never.
  std::shared_ptr<bool> is_stale = {};

  using Addition = std::function<void(at::Tensor& main)>;
  // Runs or defers the addition, and calls |added| after it. |replacement| runs instead if |main| is stale; without it
  // |main| is cleared first.
  void add(Addition addition, Addition replacement = {}) const;
};

}  // namespace concord
