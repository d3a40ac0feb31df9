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
  at::Tensor main;                     // shape of the parameter, fp32, fp64 or bf16; gradients are added to it
  std::function<void()> added = {};    // called after each addition, on the same thread
  DeferredWgrads* deferred = nullptr;  // queue for the additions; null: they run in backward
  // Whether |main| holds the gradient of an earlier step, so that the first addition overwrites it. Null: never.
  std::shared_ptr<bool> is_stale = {};

  // Whether |main| may have this type.
  static bool is_main_type(c10::ScalarType type) {
    return type == c10::kFloat || type == c10::kDouble || type == c10::kBFloat16;
  }

  using Addition = std::function<void(at::Tensor& main)>;
  // Runs or defers the addition, and calls |added| after it. |replacement| runs instead if |main| is stale; without it
  // |main| is cleared first. Operators add in fp32: if |main| is bf16, they get other memory, whose sum is then added.
  void add(Addition addition, Addition replacement = {}) const;
  // Adds |sum|, of any type, to |main| immediately, rounded to nearest; does not call |added|.
  void add_sum(const at::Tensor& sum) const;
  // Returns a sink for the parts of a gradient whose sum add_sum() takes: it adds immediately, to a new fp32 tensor,
  // and has no |added|.
  GradSink of_parts() const;
};

}  // namespace concord
