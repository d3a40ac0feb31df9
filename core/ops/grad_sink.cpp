#include "core/ops/grad_sink.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

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

GradSink GradSink::of_parts() const {
  return {.main = at::empty_like(main, main.options().dtype(at::kFloat)), .is_stale = std::make_shared<bool>(true)};
}

void GradSink::add_sum(const at::Tensor& sum) const {
  const at::NoGradGuard no_grad;
  const at::Tensor to = main;
  if (is_stale && std::exchange(*is_stale, false)) {
    to.copy_(sum);
  } else {
    to.add_(sum);
  }
}

void GradSink::add(Addition addition, Addition replacement) const {
  const auto run = [sink = *this, addition = std::move(addition), replacement = std::move(replacement)] {
    const at::NoGradGuard no_grad;
    if (sink.main.scalar_type() == at::kBFloat16) {
      const GradSink parts = sink.of_parts();
      parts.add(addition, replacement);
      sink.add_sum(parts.main);
    } else {
      at::Tensor to = sink.main;
      const bool replaces = sink.is_stale && std::exchange(*sink.is_stale, false);
      if (replaces && !replacement) to.zero_();
      (replaces && replacement ? replacement : addition)(to);
    }
    if (sink.added) sink.added();
  };
  if (deferred != nullptr) {
    deferred->put(run);
  } else {
    run();
  }
}

}  // namespace concord
