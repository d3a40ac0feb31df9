#include "platform/conformance/context.h"

#include <csignal>
#include <mutex>
#include <thread>

#include "platform/base/sanitizer.hpp"
#include "platform/conformance/resources.h"

namespace concord::conformance {

Context::Context(const Plugin& the_plugin, Exchange& exchange, int rank, int world, bool quick)
    : plugin_(the_plugin), exchange_(exchange), rank_(rank), world_(world), quick_(quick) {
  if (device_table().count(device_table().self, &device_count_) != CONCORD_STATUS_OK) device_count_ = 0;
  device_ = device_count_ > 0 ? rank % device_count_ : 0;
  if (device_count_ > 0) device_table().set_current(device_table().self, device_);
}

Context::~Context() = default;

concord_stream Context::stream() {
  if (stream_ == nullptr) stream_ = std::make_unique<Stream>(*this);
  return stream_->get();
}

concord_comm Context::world_comm() {
  if (comm_ == nullptr) comm_ = std::make_unique<Comm>(Comm::connect(*this));
  return comm_->get();
}

void Context::die() {
  exchange_.announce_death();
  raise(SIGKILL);
  std::abort();
}

void Context::require_status(concord_status status, concord_status wanted, const char* call) const {
  if (status == wanted) return;
  std::string reason = text("%s returned %s", call, status_text(status).c_str());
  const std::string detail = take_detail();
  if (status != CONCORD_STATUS_OK) reason += detail.empty() ? " without an error message" : " \"" + detail + "\"";
  if (wanted != CONCORD_STATUS_OK) reason += "; expected " + status_text(wanted);
  fail(reason);
}

void Context::require(bool holds, const std::string& what) const {
  if (!holds) fail(what);
}

std::string status_text(concord_status status) {
  static const char* const names[] = {
      "OK",        "INVALID_ARGUMENT", "UNIMPLEMENTED",       "UNAVAILABLE",  "OUT_OF_MEMORY", "TIMEOUT",
      "PEER_LOST", "ABORTED",          "FAILED_PRECONDITION", "ABI_MISMATCH", "VENDOR_ERROR",  "INTERNAL"};
  const bool known = status >= 0 && status <= CONCORD_STATUS_INTERNAL;
  return text("%s (%d)", known ? names[status] : "an unknown status", status);
}

int slowness() {
#if CONCORD_UNDER_ASAN || CONCORD_UNDER_TSAN
  return 8;
#else
  return 1;
#endif
}

bool under_thread_sanitizer() {
#if CONCORD_UNDER_TSAN
  return true;
#else
  return false;
#endif
}

namespace {
double patience_seconds = 10;
}

std::chrono::milliseconds patience() {
  return std::chrono::milliseconds(static_cast<int64_t>(patience_seconds * 1000 * slowness()));
}

void set_patience(double seconds) { patience_seconds = seconds; }

void run_threads(int count, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace concord::conformance
