// A small CUPTI: records are those that a test names, while their kind is switched on. Its clock is not the system's.
#include <cupti.h>
#include <time.h>

#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "backends/cuda/fake/control.h"

namespace {

constexpr uint64_t kClockOffset = 500'000'000'000'000'000;  // from CLOCK_MONOTONIC to the fake's

struct State {
  CUpti_BuffersCallbackRequestFunc give = nullptr;
  CUpti_BuffersCallbackCompleteFunc take = nullptr;
  std::set<CUpti_ActivityKind> enabled;
  std::vector<std::vector<char>> records;
  std::deque<std::string> names;  // stay where they are
  size_t dropped = 0;
  int enable_result = CUPTI_SUCCESS;
};

State& state() {
  static State instance;
  return instance;
}

template <class Record>
void keep(const Record& record) {
  if (!state().enabled.contains(record.kind)) return;
  const char* bytes = reinterpret_cast<const char*>(&record);
  state().records.emplace_back(bytes, bytes + sizeof record);
}

template <class Record>
Record new_record(CUpti_ActivityKind kind, unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns) {
  Record record;
  std::memset(&record, 0, sizeof record);
  record.kind = kind;
  record.deviceId = device;
  record.streamId = stream;
  record.start = begin_ns == 0 ? 0 : static_cast<uint64_t>(begin_ns) + kClockOffset;
  record.end = end_ns == 0 ? 0 : static_cast<uint64_t>(end_ns) + kClockOffset;
  return record;
}

size_t size_of(const uint8_t* record) {
  CUpti_ActivityKind kind{};
  std::memcpy(&kind, record, sizeof kind);
  if (kind == CUPTI_ACTIVITY_KIND_MEMCPY) return sizeof(CUpti_ActivityMemcpy6);
  if (kind == CUPTI_ACTIVITY_KIND_MEMSET) return sizeof(CUpti_ActivityMemset4);
  return sizeof(CUpti_ActivityKernel10);
}

}  // namespace

extern "C" {

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc give,
                                           CUpti_BuffersCallbackCompleteFunc take) {
  state().give = give;
  state().take = take;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (kind == CUPTI_ACTIVITY_KIND_MEMSET && state().enable_result != CUPTI_SUCCESS) {
    return static_cast<CUptiResult>(state().enable_result);
  }
  state().enabled.insert(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  state().enabled.erase(kind);
  return CUPTI_SUCCESS;
}

// Two records per buffer, so that there are several.
CUptiResult cuptiActivityFlushAll(uint32_t) {
  for (size_t next = 0; next < state().records.size();) {
    uint8_t* buffer = nullptr;
    size_t bytes = 0, most = 0, valid = 0;
    state().give(&buffer, &bytes, &most);
    for (int i = 0; i < 2 && next < state().records.size(); ++i, ++next) {
      std::memcpy(buffer + valid, state().records[next].data(), state().records[next].size());
      valid += state().records[next].size();
    }
    state().take(nullptr, 0, buffer, bytes, valid);
  }
  state().records.clear();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  uint8_t* const at = reinterpret_cast<uint8_t*>(*record);
  uint8_t* const next = at == nullptr ? buffer : at + size_of(at);
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = state().dropped;
  state().dropped = 0;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t* time) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  *time = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec) + kClockOffset;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult, const char** out_text) {
  *out_text = "CUPTI_ERROR_OF_THE_FAKE";
  return CUPTI_SUCCESS;
}

void fake_cupti_kernel(const char* name, unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns) {
  auto record =
      new_record<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, device, stream, begin_ns, end_ns);
  record.name = state().names.emplace_back(name).c_str();
  keep(record);
}

void fake_cupti_copy(int kind, unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns) {
  auto record = new_record<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY, device, stream, begin_ns, end_ns);
  record.copyKind = static_cast<uint8_t>(kind);
  keep(record);
}

void fake_cupti_fill(unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns) {
  keep(new_record<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET, device, stream, begin_ns, end_ns));
}

void fake_cupti_drop(int count) { state().dropped += static_cast<size_t>(count); }

void fake_cupti_fail_enable(int result) { state().enable_result = result; }

}  // extern "C"
