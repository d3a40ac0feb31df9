#include "backends/ascend/sim/runtime/machine.h"

#include <algorithm>

#include "backends/ascend/sim/runtime/memory/memory.h"
#include "backends/ascend/sim/runtime/settings.h"

namespace concord::ascend::sim {
namespace {

std::shared_ptr<Context>& current_context() {
  thread_local std::shared_ptr<Context> context;
  return context;
}

}  // namespace

Machine& Machine::instance() {
  static Machine& machine = *new Machine;  // never destroyed: others may use it to the very end
  struct AtExit {
    ~AtExit() { machine.stop_all(); }
  };
  static const AtExit at_exit;
  return machine;
}

Machine::Machine() {
  for (size_t i = visible_devices().size(); i > 0; --i) devices_.push_back(std::make_unique<Device>());
}

void Machine::stop_all() {
  constexpr auto kMaxWait = std::chrono::seconds(5);  // for work that cannot be stopped
  const auto deadline = Clock::now() + kMaxWait;
  const std::atomic<bool> never{false};
  for (int32_t number = 0; number < device_count(); ++number) {
    for (const auto& stream : streams_of(number)) {
      stream->queue()->abort(abi::kRtStreamAbort);
      stream->queue()->wait_for(stream->queue()->pushed(), never, deadline);
    }
  }
}

void Machine::require_device(int32_t device) const {
  if (device >= 0 && device < device_count()) return;
  fail(abi::kRtInvalidDeviceId,
       text("device %d does not exist; there are %d, numbered from 0", device, device_count()));
}

// ------------------------------------------------------------------------------------------------------------ contexts

void Machine::set_device(int32_t number) {
  require_device(number);
  const std::lock_guard lock(mutex_);
  Device& chosen = device(number);
  if (chosen.context == nullptr) chosen.context = make_context(number, true);
  ++chosen.retained;
  current_context() = chosen.context;
}

void Machine::reset_device(int32_t number, bool at_once) {
  require_device(number);
  std::shared_ptr<Context> ending;
  {
    const std::lock_guard lock(mutex_);
    Device& chosen = device(number);
    if (chosen.retained == 0) {
      fail(abi::kRtContextNull,
           text("device %d is not set: aclrtSetDevice must be called first, once for each reset", number));
    }
    chosen.retained = at_once ? 0 : chosen.retained - 1;
    if (chosen.retained > 0) return;
    ending = std::move(chosen.context);
  }
  end_context(ending);
  Memory::instance().of_device(number).release_all();
}

bool Machine::is_set(int32_t number) {
  require_device(number);
  const std::lock_guard lock(mutex_);
  return device(number).retained > 0;
}

std::shared_ptr<Context> Machine::current() const {
  const std::shared_ptr<Context>& context = current_context();
  if (context == nullptr) {
    fail(abi::kRtContextNull, "this thread has no context: call aclrtSetDevice or aclrtSetCurrentContext on it first");
  }
  if (!context->alive.load()) {
    fail(abi::kRtContextNull,
         text("the context of this thread has ended: device %d was reset or the context destroyed", context->device));
  }
  return context;
}

void Machine::make_current(void* context) {
  require_not_null(context, "context");
  current_context() = contexts_.share_locked(context);
}

void* Machine::create_context(int32_t number) {
  require_device(number);
  current_context() = make_context(number, false);
  return current_context()->handle;
}

void Machine::destroy_context(void* context) {
  require_not_null(context, "context");
  const std::shared_ptr<Context> found = contexts_.share_locked(context);
  if (found->is_default) {
    fail(abi::kRtParamInvalid,
         "a default context ends with its device; only contexts of aclrtCreateContext can be destroyed");
  }
  end_context(found);
}

std::shared_ptr<Context> Machine::make_context(int32_t number, bool is_default) {
  auto context = std::make_shared<Context>();
  context->device = number;
  context->is_default = is_default;
  context->default_stream = make_stream(context.get(), number, true);
  context->handle = contexts_.insert(context);
  return context;
}

void Machine::end_context(const std::shared_ptr<Context>& context) {
  for (const auto& stream : streams_of(context->device)) {
    if (stream->context() == context.get()) stream->queue()->drain();
  }
  context->alive.store(false);
  contexts_.remove(context->handle);
  streams_.remove_if([&](const Stream& stream) { return stream.context() == context.get(); });
  context->default_stream.reset();
}

// ------------------------------------------------------------------------------------------------------------- streams

// The count goes down when the last holder releases the stream.
std::shared_ptr<Stream> Machine::make_stream(const Context* context, int32_t number, bool is_default) {
  std::atomic<int32_t>& count = device(number).streams;
  if (count.fetch_add(1) >= kMaxStreams) {
    count.fetch_sub(1);
    fail(abi::kRtNoStreamResource, text("device %d has no stream left: %d are in use", number, kMaxStreams));
  }
  auto* made = new Stream(context, number, next_stream_id_.fetch_add(1), is_default);
  return {made, [&count](Stream* stream) {
            delete stream;
            count.fetch_sub(1);
          }};
}

void* Machine::create_stream() {
  const std::shared_ptr<Context> context = current();
  return streams_.insert(make_stream(context.get(), context->device, false));
}

void Machine::destroy_stream(void* handle, bool by_force) {
  require_not_null(handle, "stream");
  const std::shared_ptr<Stream> found = stream(handle);
  found->require_not_captured("destroying a stream");
  if (by_force) {
    found->queue()->abort(abi::kRtStreamAbort);
  } else {
    found->queue()->drain();
  }
  streams_.remove(handle);
}

std::shared_ptr<Stream> Machine::any_stream(void* handle) const {
  return handle == nullptr ? current()->default_stream : streams_.share_locked(handle);
}

std::shared_ptr<Stream> Machine::stream(void* handle) const {
  const std::shared_ptr<Context> context = current();
  if (handle == nullptr) return context->default_stream;
  std::shared_ptr<Stream> found = streams_.share_locked(handle);
  if (found->context() != context.get()) {
    fail(abi::kRtStreamContext,
         text("stream %d belongs to %s of device %d; the current one is %s of device %d", found->id(),
              found->device() == context->device ? "another context" : "a context", found->device(),
              context->is_default ? "the default context" : "a context", context->device));
  }
  return found;
}

std::vector<std::shared_ptr<Stream>> Machine::streams_of(int32_t number) const {
  std::vector<std::shared_ptr<Stream>> found;
  for (auto& stream : streams_.all()) {
    if (stream->device() == number) found.push_back(std::move(stream));
  }
  for (const auto& context : contexts_.all()) {
    if (context->device == number && context->default_stream != nullptr) found.push_back(context->default_stream);
  }
  return found;
}

// Waits for all of them within one time limit, and then reports the first failure.
void Machine::synchronize_device(int32_t number, int32_t timeout_ms) {
  const auto begun = Clock::now();
  std::unique_ptr<Error> first;
  for (const auto& stream : streams_of(number)) {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun).count();
    const auto left = timeout_ms < 0 ? -1 : static_cast<int32_t>(std::max<int64_t>(0, timeout_ms - passed));
    try {
      stream->queue()->synchronize(stream->queue()->pushed(), left, abi::kRtStreamSyncTimeout);
    } catch (const Error& error) {
      if (first == nullptr) first = std::make_unique<Error>(error);
    }
  }
  if (first != nullptr) throw Error(*first);
}

// ---------------------------------------------------------------------------------------------------- events and peers

void* Machine::create_event(Event::Kind kind, uint32_t flags) {
  const int32_t number = current()->device;
  return events_.insert(std::make_shared<Event>(kind, flags, number, &device(number).events));
}

void Machine::enable_peer(int32_t number, int32_t peer, bool enabled) {
  require_device(peer);
  if (number == peer) fail(abi::kRtParamInvalid, text("device %d is not its own peer", number));
  const std::lock_guard lock(mutex_);
  std::set<int32_t>& peers = device(number).peers;
  if (enabled) {
    peers.insert(peer);
  } else if (peers.erase(peer) == 0) {
    fail(abi::kRtParamInvalid, text("device %d has no access to device %d that could be disabled", number, peer));
  }
}

bool Machine::may_access(int32_t number, int32_t peer) {
  const std::lock_guard lock(mutex_);
  return number == peer || device(number).peers.count(peer) != 0 || device(peer).peers.count(number) != 0;
}

}  // namespace concord::ascend::sim
