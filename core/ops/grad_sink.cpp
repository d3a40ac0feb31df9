#include "core/ops/grad_sink.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace concord {

void DeferredGrads::run(size_t count) {
  for (count = std::min(count, halves_.size()); count > 0; --count) {
    const std::function<void()> half = std::move(halves_.front());
    halves_.pop_front();
    half();
  }
}

void GradSink::add(std::function<void(at::Tensor& main)> addition) const {
  const auto run = [sink = *this, addition = std::move(addition)] {
    const at::NoGradGuard no_grad;
    at::Tensor to = sink.main;
    addition(to);
    if (sink.added) sink.added();
  };
  if (later != nullptr) {
    later->put(run);
  } else {
    run();
  }
}

}  // namespace concord
