// Work on a queue of the host platform, as a function object.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "platform/cpp/event.hpp"
#include "platform/loader/host.h"

namespace concord::bridge {

// Enqueues |work|, which must not call into the platform of |queue| and must not throw.
inline void launch(const Stream& queue, std::function<void()> work) {
  auto owned = std::make_unique<std::function<void()>>(std::move(work));
  queue.launch_host(
      [](void* user) {
        const std::unique_ptr<std::function<void()>> run(static_cast<std::function<void()>*>(user));
        (*run)();
      },
      owned.get());
  owned.release();
}

// Makes later work of |queue| start after |mark|, an event of a stream of a device. If the device has failed, so do the
// copies that follow.
inline void wait_for_device(const Stream& queue, std::shared_ptr<Event> mark) {
  launch(queue, [mark = std::move(mark)] {
    try {
      mark->synchronize();
    } catch (const Error& error) {
      loader::log(CONCORD_LOG_ERROR, "bridge", error.what());
    }
  });
}

}  // namespace concord::bridge
