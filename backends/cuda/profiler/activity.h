// The activity extension: CUPTI's activity API, which records every kernel, copy and fill with start and end.
//
// CUPTI is not linked: many machines do not have it, and if a profiler or libtorch has loaded one, that one must be
// used. The first start uses the first of these: the one already in the process; the setting cuda.cupti (a path); the
// one next to libtorch, where pip installs it; the dynamic linker's; the CUDA Toolkit's in /usr/local/cuda.
// Threads: start and stop one at a time; CUPTI delivers buffers on its own thread.
#pragma once

#include <cupti.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::cuda {

struct Cupti {
  decltype(&::cuptiActivityRegisterCallbacks) cuptiActivityRegisterCallbacks = nullptr;
  decltype(&::cuptiActivityEnable) cuptiActivityEnable = nullptr;
  decltype(&::cuptiActivityDisable) cuptiActivityDisable = nullptr;
  decltype(&::cuptiActivityFlushAll) cuptiActivityFlushAll = nullptr;
  decltype(&::cuptiActivityGetNextRecord) cuptiActivityGetNextRecord = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) cuptiActivityGetNumDroppedRecords = nullptr;
  decltype(&::cuptiGetTimestamp) cuptiGetTimestamp = nullptr;
  decltype(&::cuptiGetResultString) cuptiGetResultString = nullptr;
};

// Records activities. There is one per process, because CUPTI's callbacks are plain functions.
class Activities {
 public:
  void start();
  int64_t stop(concord_activity_function visit, void* user);

 private:
  struct Record {
    concord_activity_kind kind;
    uint32_t device, stream;
    const std::string* name;  // in names_
    uint64_t begin, end;      // times of CUPTI's clock
  };

  static void CUPTIAPI give_buffer(uint8_t** out_buffer, size_t* out_bytes, size_t* out_records) noexcept;
  static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t bytes,
                                   size_t valid) noexcept;
  void load();
  void enable();
  void disable() noexcept;
  void check(CUptiResult result, const char* call) const;
  int64_t clock_offset() const;
  void read(uint8_t* buffer, size_t valid) CONCORD_REQUIRES(mutex_);
  void add(concord_activity_kind kind, const char* name, uint32_t device, uint32_t stream, uint64_t begin, uint64_t end)
      CONCORD_REQUIRES(mutex_);

  static Activities* current_;
  Cupti cupti_;
  bool is_loaded_ = false;
  bool is_recording_ = false;
  int64_t offset_ = 0;  // from CUPTI's clock to CLOCK_MONOTONIC

  std::mutex mutex_;  // guards all below
  std::vector<Record> records_ CONCORD_GUARDED_BY(mutex_);
  std::map<std::string, std::string, std::less<>> names_ CONCORD_GUARDED_BY(mutex_);  // readable name by CUPTI's name
  int64_t dropped_ CONCORD_GUARDED_BY(mutex_) = 0;
};

}  // namespace concord::cuda
