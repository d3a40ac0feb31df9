#include "backends/cpu/stream.h"

#include "backends/cpu/device.h"
#include "backends/cpu/event.h"
#include "platform/sdk/checks.hpp"

namespace concord::cpu {

concord_stream Streams::create(int32_t device, int32_t /*priority: clamped to the one there is*/) {
  devices_.check(device);
  return queues_.insert(std::make_shared<Queue>(device));
}

void Streams::destroy(concord_stream stream) {
  if (stream == nullptr) sdk::invalid("the null stream cannot be destroyed; only streams from create can be");
  const std::shared_ptr<Queue> queue = queues_.remove(stream);
  if (!queue->reached(queue->pushed())) {
    const std::lock_guard lock(mutex_);
    forget_done();
    closed_.push_back(queue);
  }
  queue->close();
}

void Streams::synchronize(concord_stream stream) {
  const std::shared_ptr<Queue> queue = queue_of(stream);
  if (queue == nullptr) return;
  queue->wait(queue->pushed());
  if (auto failure = queue->take_failure()) throw *failure;
}

int32_t Streams::query(concord_stream stream) {
  if (stream == nullptr) return 1;
  const Queue& queue = queues_.find(stream);
  return queue.reached(queue.pushed()) ? 1 : 0;
}

void Streams::wait_event(concord_stream stream, concord_event event) {
  const std::shared_ptr<Queue> queue = queue_of(stream);
  Mark mark = events_.mark_of(event);
  if (mark.reached() || mark.queue == queue) return;  // a queue is in order with itself
  if (queue == nullptr) return mark.wait();
  queue->push(Task([mark = std::move(mark)] { mark.wait(); }));
}

void Streams::priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest) {
  devices_.check(device);
  sdk::check_not_null(out_least, "out_least");
  sdk::check_not_null(out_greatest, "out_greatest");
  *out_least = 0;
  *out_greatest = 0;
}

void Streams::launch_host(concord_stream stream, concord_host_function function, void* user) {
  sdk::check_host_function(function);
  submit(stream, [function, user] { function(user); });
}

void Streams::check_device(concord_stream stream, int32_t device) const {
  if (stream == nullptr) return;
  const int32_t own = queues_.find(stream).device();
  if (own != device)
    sdk::invalid(sdk::text("the stream belongs to device %d; this needs one of device %d", own, device));
}

void Streams::synchronize_device(int32_t device) {
  std::vector<std::shared_ptr<Queue>> queues = queues_.all();
  {
    const std::lock_guard lock(mutex_);
    queues.insert(queues.end(), closed_.begin(), closed_.end());
  }
  std::erase_if(queues, [device](const std::shared_ptr<Queue>& queue) { return queue->device() != device; });
  for (const std::shared_ptr<Queue>& queue : queues) queue->wait(queue->pushed());
  {
    const std::lock_guard lock(mutex_);
    forget_done();
  }
  for (const std::shared_ptr<Queue>& queue : queues) {
    if (const auto failure = queue->failure()) throw *failure;
  }
}

// Checks the queue's last ticket, which also orders its work before that of this thread. An expired weak_ptr (its
// thread has released it) would show the same without that order.
void Streams::forget_done() {
  std::erase_if(closed_, [](const std::shared_ptr<Queue>& queue) { return queue->reached(queue->pushed()); });
}

}  // namespace concord::cpu
