// The activity extension: MSPTI's activities, which are the kernels, collectives, copies and fills of devices with
// start and end.
//
// MSPTI is looked up at the first start: the setting ascend.mspti (a path), the dynamic linker's libmspti.so, the one
// in $ASCEND_HOME_PATH/lib64. The vendor's documentation has it preloaded (LD_PRELOAD=libmspti.so), since it replaces
// functions of the runtime that are called before.
// Threads: start and stop one at a time; MSPTI delivers buffers on its own thread.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backends/ascend/profiler/mspti_abi.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::ascend {

struct Mspti {
  abi::fn::msptiSubscribe* msptiSubscribe = nullptr;
  abi::fn::msptiUnsubscribe* msptiUnsubscribe = nullptr;
  abi::fn::msptiActivityRegisterCallbacks* msptiActivityRegisterCallbacks = nullptr;
  abi::fn::msptiActivityEnable* msptiActivityEnable = nullptr;
  abi::fn::msptiActivityDisable* msptiActivityDisable = nullptr;
  abi::fn::msptiActivityFlushAll* msptiActivityFlushAll = nullptr;
  abi::fn::msptiActivityGetNextRecord* msptiActivityGetNextRecord = nullptr;
};

// Records activities. There is one per process, because MSPTI's callbacks are plain functions.
class Activities {
 public:
  void start();
  int64_t stop(concord_activity_function visit, void* user);

 private:
  struct Record {
    concord_activity_kind kind;
    uint32_t device, stream;
    const char* name;     // in names_, or a constant
    uint64_t begin, end;  // times of MSPTI's clock
  };

  static void give_buffer(uint8_t** out_buffer, size_t* out_bytes, size_t* out_records) noexcept;
  static void take_buffer(uint8_t* buffer, size_t bytes, size_t valid) noexcept;
  void load();
  void enable();
  void disable() noexcept;
  void check(abi::msptiResult result, const char* call) const;
  void read(uint8_t* buffer, size_t valid) CONCORD_REQUIRES(mutex_);
  void add(const Record& record) CONCORD_REQUIRES(mutex_);
  const char* kept(const char* name) CONCORD_REQUIRES(mutex_);

  static Activities* current_;
  Mspti mspti_;
  abi::msptiSubscriberHandle subscriber_ = nullptr;
  bool is_loaded_ = false;
  bool is_recording_ = false;

  std::mutex mutex_;  // guards all below
  std::vector<Record> records_ CONCORD_GUARDED_BY(mutex_);
  std::set<std::string, std::less<>> names_ CONCORD_GUARDED_BY(mutex_);
  int64_t dropped_ CONCORD_GUARDED_BY(mutex_) = 0;
};

}  // namespace concord::ascend
