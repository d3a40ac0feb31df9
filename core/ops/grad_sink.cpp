#include "core/ops/grad_sink.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace concord {

void DeferredWgrads::run(size_t count) {
  for (count = std::min(count, halves_.size()); count > 0; --count) {
    const std::function<void()> half = std::move(halves_.front());
    halves_.pop_front();
    half();
  }
}

void GradSink::add(Addition addition, Addition replacement) const {
  const auto run = [sink = *this, addition = std::move(addition), replacement = std::move(replacement)] {
    const at::NoGradGuard no_grad;
    at::Tensor to = sink.main;
    const bool replaces = sink.is_stale && std::exchange(*sink.is_stale, false);
    if (replaces && !replacement) to.zero_();
    (replaces && replacement ? replacement : addition)(to);
    if (sink.added) sink.added();
  };
  if (deferred != nullptr) {
    deferred->put(run);
  } else {
    run();
  }
}

}  // namespace concord
