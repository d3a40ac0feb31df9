#include "backends/cuda/profiler/activity.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "backends/cuda/torch_sibling_libraries.h"
#include "platform/sdk/checks.hpp"
#include "platform/sdk/symbol_table.hpp"

namespace concord::cuda {
namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kMaxRecords = 8'000'000;  // 400 MB; more is counted and dropped
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

std::string cupti_soname(int major) { return sdk::text("libcupti.so.%d", major); }

std::vector<std::string> cupti_candidates() {
  if (const char* chosen = sdk::config("cuda.cupti")) return {chosen};  // an explicit choice that fails is an error
  std::vector<std::string> paths = torch_sibling_libraries("cu13/lib/" + cupti_soname(13));
  for (std::string& path : torch_sibling_libraries("cuda_cupti/lib/" + cupti_soname(12)))
    paths.push_back(std::move(path));
  const std::string own = cupti_soname(CUDART_VERSION / 1000);
  for (const char* folder : {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/"}) {
    paths.push_back(folder + own);
  }
  return paths;
}

sdk::VendorLibrary find_cupti() {
  for (const int major : {13, 12}) {
    if (void* loaded = dlopen(cupti_soname(major).c_str(), RTLD_NOW | RTLD_NOLOAD)) {
      return {loaded, sdk::library_path(loaded, "cuptiActivityEnable", cupti_soname(major).c_str())};
    }
  }
  return sdk::open_vendor_library(
      "CUPTI", cupti_candidates(), "cuptiActivityEnable",
      "install nvidia-cuda-cupti or the CUDA Toolkit, or set CONCORD_CUDA_CUPTI to the path of a libcupti.so");
}

// "_ZN7concord4gemmE" is concord::gemm; a name that is none of C++ stays.
std::string readable(const char* name) {
  int status = -1;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "copy to another device";
    default: return "copy";
  }
}

int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

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
  offset_ = clock_offset();
  enable();
  is_recording_ = true;
}

int64_t Activities::stop(concord_activity_function visit, void* user) {
  sdk::check_not_null(reinterpret_cast<const void*>(visit), "visit");
  if (!is_recording_) sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, "activity.stop: nothing records; call start first");
  is_recording_ = false;
  disable();
  check(cupti_.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  const std::lock_guard lock(mutex_);
  std::sort(records_.begin(), records_.end(), [](const Record& a, const Record& b) { return a.begin < b.begin; });
  for (const Record& record : records_) {
    const concord_activity activity = {.struct_size = sizeof activity,
                                       .kind = record.kind,
                                       .device = static_cast<int32_t>(record.device),
                                       .reserved = 0,
                                       .stream = record.stream,
                                       .name = record.name->c_str(),
                                       .begin_ns = static_cast<int64_t>(record.begin) + offset_,
                                       .end_ns = static_cast<int64_t>(record.end) + offset_};
    visit(user, &activity);
  }
  records_ = {};
  return dropped_;
}

void Activities::load() {
  const sdk::VendorLibrary library = find_cupti();
  const sdk::VendorSymbol symbols[] = {
      sdk::required_symbol("cuptiActivityRegisterCallbacks", &cupti_.cuptiActivityRegisterCallbacks),
      sdk::required_symbol("cuptiActivityEnable", &cupti_.cuptiActivityEnable),
      sdk::required_symbol("cuptiActivityDisable", &cupti_.cuptiActivityDisable),
      sdk::required_symbol("cuptiActivityFlushAll", &cupti_.cuptiActivityFlushAll),
      sdk::required_symbol("cuptiActivityGetNextRecord", &cupti_.cuptiActivityGetNextRecord),
      sdk::required_symbol("cuptiActivityGetNumDroppedRecords", &cupti_.cuptiActivityGetNumDroppedRecords),
      sdk::required_symbol("cuptiGetTimestamp", &cupti_.cuptiGetTimestamp),
      sdk::required_symbol("cuptiGetResultString", &cupti_.cuptiGetResultString),
  };
  sdk::resolve_symbols(library, symbols);
  current_ = this;
  check(cupti_.cuptiActivityRegisterCallbacks(&Activities::give_buffer, &Activities::take_buffer),
        "cuptiActivityRegisterCallbacks");
  is_loaded_ = true;
  sdk::log(CONCORD_LOG_DEBUG, sdk::text("cuda: CUPTI from %s", library.path.c_str()));
}

void Activities::enable() {
  for (const CUpti_ActivityKind kind : kKinds) {
    const CUptiResult result = cupti_.cuptiActivityEnable(kind);
    if (result == CUPTI_SUCCESS) continue;
    disable();
    check(result, "cuptiActivityEnable");
  }
}

void Activities::disable() noexcept {
  for (const CUpti_ActivityKind kind : kKinds) cupti_.cuptiActivityDisable(kind);
}

void Activities::check(CUptiResult result, const char* call) const {
  if (result == CUPTI_SUCCESS) return;
  const char* message = nullptr;
  cupti_.cuptiGetResultString(result, &message);
  sdk::fail(CONCORD_STATUS_VENDOR_ERROR, sdk::text("%s failed with %d, %s", call, static_cast<int>(result),
                                                   message != nullptr ? message : "no message"));
}

// The two clocks are read together a few times; what was read within the shortest time is the most exact.
int64_t Activities::clock_offset() const {
  int64_t shortest = std::numeric_limits<int64_t>::max(), offset = 0;
  for (int i = 0; i < 5; ++i) {
    uint64_t time = 0;
    const int64_t before = monotonic_ns();
    check(cupti_.cuptiGetTimestamp(&time), "cuptiGetTimestamp");
    const int64_t taken = monotonic_ns() - before;
    if (taken >= shortest) continue;
    shortest = taken;
    offset = before + taken / 2 - static_cast<int64_t>(time);
  }
  return offset;
}

void CUPTIAPI Activities::give_buffer(uint8_t** out_buffer, size_t* out_bytes, size_t* out_records) noexcept {
  *out_buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *out_bytes = *out_buffer != nullptr ? kBufferBytes : 0;  // without a buffer CUPTI counts what it drops
  *out_records = 0;                                        // as many as there is space for
}

void CUPTIAPI Activities::take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                                      size_t valid) noexcept {
  const std::unique_ptr<uint8_t, decltype(&std::free)> owned(buffer, &std::free);
  const std::lock_guard lock(current_->mutex_);
  size_t dropped = 0;
  if (current_->cupti_.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) {
    current_->dropped_ += static_cast<int64_t>(dropped);
  }
  if (buffer != nullptr) current_->read(buffer, valid);
}

// Newer versions of CUPTI append fields to these records and keep the ones before them.
void Activities::read(uint8_t* buffer, size_t valid) {
  CUpti_Activity* next = nullptr;
  while (cupti_.cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS) {
    if (next->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || next->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel4*>(next);
      add(CONCORD_ACTIVITY_KERNEL, kernel->name, kernel->deviceId, kernel->streamId, kernel->start, kernel->end);
    } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy*>(next);
      add(CONCORD_ACTIVITY_COPY, copy_name(copy->copyKind), copy->deviceId, copy->streamId, copy->start, copy->end);
    } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset*>(next);
      add(CONCORD_ACTIVITY_FILL, "fill", fill->deviceId, fill->streamId, fill->start, fill->end);
    }
  }
}

void Activities::add(concord_activity_kind kind, const char* name, uint32_t device, uint32_t stream, uint64_t begin,
                     uint64_t end) {
  if (begin == 0 || end < begin) return;  // CUPTI's mark of unfinished work
  if (records_.size() >= kMaxRecords) {
    ++dropped_;
    return;
  }
  try {
    const char* const known = name != nullptr ? name : "kernel";
    auto found = names_.find(std::string_view(known));
    if (found == names_.end()) found = names_.emplace(known, readable(known)).first;
    records_.push_back({kind, device, stream, &found->second, begin, end});
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

}  // namespace concord::cuda
