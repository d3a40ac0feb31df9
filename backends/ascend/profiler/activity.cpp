#include "backends/ascend/profiler/activity.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "backends/ascend/cann.h"
#include "platform/sdk/checks.hpp"
#include "platform/sdk/symbol_table.hpp"

namespace concord::ascend {
namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kMaxRecords = 8'000'000;  // 320 MB; more is counted and dropped
constexpr abi::msptiActivityKind kKinds[] = {abi::kMsptiKernel, abi::kMsptiHccl, abi::kMsptiMemset, abi::kMsptiMemcpy};

const char* copy_name(int32_t kind) {
  switch (kind) {
    case abi::kMsptiCopyHostToDevice: return "copy host to device";
    case abi::kMsptiCopyDeviceToHost: return "copy device to host";
    case abi::kMsptiCopyDeviceToDevice: return "copy device to device";
    default: return "copy";
  }
}

int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Returns what has to be added to the system's time, which MSPTI uses, for CLOCK_MONOTONIC. The clocks are read
// together a few times; the shortest reading is the most exact.
int64_t clock_offset() {
  int64_t shortest = std::numeric_limits<int64_t>::max(), offset = 0;
  for (int i = 0; i < 5; ++i) {
    const int64_t before = clock_ns(CLOCK_MONOTONIC);
    const int64_t system = clock_ns(CLOCK_REALTIME);
    const int64_t taken = clock_ns(CLOCK_MONOTONIC) - before;
    if (taken >= shortest) continue;
    shortest = taken;
    offset = before + taken / 2 - system;
  }
  return offset;
}

void ignore_callback(void*, int32_t, uint32_t, const void*) {}

}  // namespace

Activities* Activities::current_ = nullptr;

void Activities::start() {
  if (is_recording_) sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, "activity.start: it records already");
  if (!is_loaded_) load();
  {
    const std::lock_guard lock(mutex_);
    records_.clear();
    names_.clear();
    dropped_ = 0;
  }
  check(mspti_.msptiSubscribe(&subscriber_, ignore_callback, nullptr), "msptiSubscribe");
  const abi::msptiResult result =
      mspti_.msptiActivityRegisterCallbacks(&Activities::give_buffer, &Activities::take_buffer);
  if (result != abi::kMsptiSuccess) mspti_.msptiUnsubscribe(subscriber_);
  check(result, "msptiActivityRegisterCallbacks");
  enable();
  is_recording_ = true;
}

int64_t Activities::stop(concord_activity_function visit, void* user) {
  sdk::check_not_null(reinterpret_cast<const void*>(visit), "visit");
  if (!is_recording_) sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, "activity.stop: nothing records; call start first");
  is_recording_ = false;
  // Before the kinds are disabled: MSPTI may drop records of a kind that is off.
  const abi::msptiResult flushed = mspti_.msptiActivityFlushAll(1);
  disable();
  check(flushed, "msptiActivityFlushAll");
  const int64_t offset = clock_offset();
  const std::lock_guard lock(mutex_);
  std::sort(records_.begin(), records_.end(), [](const Record& a, const Record& b) { return a.begin < b.begin; });
  for (const Record& record : records_) {
    const concord_activity activity = {.struct_size = sizeof activity,
                                       .kind = record.kind,
                                       .device = static_cast<int32_t>(record.device),
                                       .reserved = 0,
                                       .stream = record.stream,
                                       .name = record.name,
                                       .begin_ns = static_cast<int64_t>(record.begin) + offset,
                                       .end_ns = static_cast<int64_t>(record.end) + offset};
    visit(user, &activity);
  }
  records_ = {};
  return dropped_;
}

void Activities::load() {
  const sdk::VendorLibrary library = sdk::open_vendor_library(
      "MSPTI", cann_candidates("ascend.mspti", {"libmspti.so"}), "msptiActivityEnable",
      "it is in CANN's toolkit (8.1 and later); CONCORD_ASCEND_MSPTI can be the path of a libmspti.so");
  const sdk::VendorSymbol symbols[] = {
      sdk::required_symbol("msptiSubscribe", &mspti_.msptiSubscribe),
      sdk::required_symbol("msptiUnsubscribe", &mspti_.msptiUnsubscribe),
      sdk::required_symbol("msptiActivityRegisterCallbacks", &mspti_.msptiActivityRegisterCallbacks),
      sdk::required_symbol("msptiActivityEnable", &mspti_.msptiActivityEnable),
      sdk::required_symbol("msptiActivityDisable", &mspti_.msptiActivityDisable),
      sdk::required_symbol("msptiActivityFlushAll", &mspti_.msptiActivityFlushAll),
      sdk::required_symbol("msptiActivityGetNextRecord", &mspti_.msptiActivityGetNextRecord),
  };
  sdk::resolve_symbols(library, symbols);
  current_ = this;
  is_loaded_ = true;
  sdk::log(CONCORD_LOG_DEBUG, sdk::text("ascend: MSPTI from %s", library.path.c_str()));
}

// Older releases know fewer kinds; there is no timeline without kernels.
void Activities::enable() {
  for (const abi::msptiActivityKind kind : kKinds) {
    const abi::msptiResult result = mspti_.msptiActivityEnable(kind);
    if (result == abi::kMsptiSuccess) continue;
    if (kind == abi::kMsptiKernel) disable();
    if (kind == abi::kMsptiKernel) check(result, "msptiActivityEnable");
    sdk::log(CONCORD_LOG_DEBUG, sdk::text("ascend: this MSPTI does not record activities of kind %d", kind));
  }
}

void Activities::disable() noexcept {
  for (const abi::msptiActivityKind kind : kKinds) mspti_.msptiActivityDisable(kind);
  mspti_.msptiUnsubscribe(subscriber_);
}

void Activities::check(abi::msptiResult result, const char* call) const {
  if (result == abi::kMsptiSuccess) return;
  sdk::fail(CONCORD_STATUS_VENDOR_ERROR, sdk::text("%s failed with %d", call, static_cast<int>(result)));
}

void Activities::give_buffer(uint8_t** out_buffer, size_t* out_bytes, size_t* out_records) noexcept {
  *out_buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *out_bytes = *out_buffer != nullptr ? kBufferBytes : 0;
  *out_records = 0;  // as many as there is space for
}

void Activities::take_buffer(uint8_t* buffer, size_t, size_t valid) noexcept {
  const std::unique_ptr<uint8_t, decltype(&std::free)> owned(buffer, &std::free);
  const std::lock_guard lock(current_->mutex_);
  if (buffer != nullptr && valid > 0) current_->read(buffer, valid);
}

void Activities::read(uint8_t* buffer, size_t valid) {
  abi::msptiActivity* next = nullptr;
  while (mspti_.msptiActivityGetNextRecord(buffer, valid, &next) == abi::kMsptiSuccess) {
    if (next->kind == abi::kMsptiKernel) {
      const auto* kernel = reinterpret_cast<const abi::msptiActivityKernel*>(next);
      add({CONCORD_ACTIVITY_KERNEL, kernel->device, kernel->stream, kernel->name, kernel->start, kernel->end});
    } else if (next->kind == abi::kMsptiHccl) {
      const auto* collective = reinterpret_cast<const abi::msptiActivityHccl*>(next);
      add({CONCORD_ACTIVITY_KERNEL, collective->device, collective->stream, collective->name, collective->start,
           collective->end});
    } else if (next->kind == abi::kMsptiMemcpy) {
      const auto* copy = reinterpret_cast<const abi::msptiActivityMemcpy*>(next);
      add({CONCORD_ACTIVITY_COPY, copy->device, copy->stream, copy_name(copy->copy_kind), copy->start, copy->end});
    } else if (next->kind == abi::kMsptiMemset) {
      const auto* fill = reinterpret_cast<const abi::msptiActivityMemset*>(next);
      add({CONCORD_ACTIVITY_FILL, fill->device, fill->stream, "fill", fill->start, fill->end});
    }
  }
}

const char* Activities::kept(const char* name) {
  const std::string_view known = name != nullptr ? name : "kernel";
  auto found = names_.find(known);
  if (found == names_.end()) found = names_.emplace(known).first;
  return found->c_str();
}

void Activities::add(const Record& record) {
  if (record.begin == 0 || record.end < record.begin) return;  // MSPTI's mark of a time that it could not measure
  if (records_.size() >= kMaxRecords) {
    ++dropped_;
    return;
  }
  try {
    records_.push_back(record);
    if (record.kind == CONCORD_ACTIVITY_KERNEL) records_.back().name = kept(record.name);
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

}  // namespace concord::ascend
