// A count of the work of this process's devices: how often each operator ran, and the bytes that it read and wrote. It
// compares implementations without a device to time them on (CONCORD_SIM_NPU_REPORT).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

// Threads: any thread.
class WorkReport {
 public:
  struct Entry {
    int64_t launches = 0, read = 0, written = 0;
    double product_flops = 0;
    double microseconds = 0;  // by device_figures()
  };

  // Returns the report of this process, which is written when it exits if settings() ask for it. A file that cannot be
  // written ends the process: at the first use, or with exit code 1 if it fails later.
  static WorkReport& instance();

  void count(const char* name, int64_t read, int64_t written, double product_flops = 0);
  // Returns the work under |name|, or that under all names if it is null.
  Entry work_of(const char* name) const;

  // Returns {"label", "device", "total": ENTRY, "operators": {NAME: ENTRY}}.
  std::string json() const;
  // Returns a table of the operators that take longest.
  std::string table() const;

 private:
  std::map<std::string, Entry> with_times() const;

  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::ascend::sim
