// Injected failures and delays, as set by CONCORD_SIM_NPU_FAULT or concord_sim_set_faults:
//
//   aclrtMalloc@3=207001          the third call fails with this code
//   aclnnAdd@1=async:507015       the first call succeeds, its work fails on the stream
//   HcclAllReduce@*=delay:10ms    the work of every call begins 10 ms late (a call without work: the call itself)
//
// Rules are separated by ';'. A name is an exported function's or a task's; '*' is any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/ascend/sim/runtime/error.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

struct FaultRule {
  enum class Kind { kFail, kFailOnStream, kDelay };
  std::string name;
  int64_t nth = 0;  // 0: every call
  Kind kind = Kind::kFail;
  abi::aclError code = 0;
  std::chrono::microseconds delay{};
};

// Throws Error 100000 with the grammar if |text| does not follow it.
std::vector<FaultRule> parse_faults(const std::string& text);

// The effect of the rules on the work of one call.
struct WorkFault {
  abi::aclError code = 0;
  std::chrono::microseconds delay{};
};

// Threads: any.
class Faults {
 public:
  static Faults& instance();
  // Whether there are rules. Cheap, because every call checks it.
  static bool active() { return instance().active_.load(std::memory_order_relaxed); }

  void set(const std::string& text);
  // Counts a call. Throws if a rule makes it fail; waits if one delays it.
  void meet_call(const char* name) { sleep(count(name).delay); }
  // Counts a call that queues work: throws if the call itself fails, and returns what happens to the work.
  WorkFault count(const char* name);
  int64_t calls_of(const std::string& name);

  static void sleep(std::chrono::microseconds delay);

 private:
  Faults();

  std::atomic<bool> active_{false};
  std::mutex mutex_;  // guards all below
  std::vector<FaultRule> rules_ CONCORD_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> calls_ CONCORD_GUARDED_BY(mutex_);
};

// Like enter() (error.h), for functions that queue work.
WorkFault enter_queueing(const char* function);

// Like guarded() (error.h), for functions that queue work on a stream: |body| gets the WorkFault to pass on.
template <class Body>
abi::aclError guarded_queueing(const char* function, Body&& body) noexcept {
  try {
    body(enter_queueing(function));
    return abi::kAclSuccess;
  } catch (...) {
    return report(function, current_error());
  }
}

}  // namespace concord::ascend::sim
