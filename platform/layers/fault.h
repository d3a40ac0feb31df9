// The fault layer: makes calls fail, delays them or drops them, according to CONCORD_FAULT, to test how the program
// reacts.
//
//   CONCORD_FAULT="comm.all_reduce@3=PEER_LOST;stream.synchronize@*=delay:10ms;comm.broadcast@2=drop"
//
// The n-th call of a slot (counted from 1, for each rule and platform), or every call (*), is met by an action:
//   a status   the call is not made and returns this code (INVALID_ARGUMENT, TIMEOUT, ...)
//   delay:T    the call is made after T (us, ms or s)
//   drop       the call is not made and returns OK
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "platform/layers/interpose.h"

namespace concord::layers {

struct FaultRule {
  enum class Action { kFail, kDelay, kDrop };
  const loader::SlotInfo* slot;
  int64_t nth;  // 0: every call
  Action action;
  concord_status status;              // of kFail
  std::chrono::microseconds delay{};  // of kDelay
};

std::string fault_grammar();  // text for error messages

// Throws Error (INVALID_ARGUMENT) with the grammar if |text| does not follow it.
std::vector<FaultRule> parse_fault(const std::string& text);

// Threads: any.
class Fault {
 public:
  Fault(const loader::Tables& next, const std::vector<FaultRule>& rules);

  const loader::Tables& next() const { return next_; }

  template <auto Member, class Next, class... Arguments>
  concord_status around(const Next& call_next, Arguments...) {
    const Verdict verdict = judge(loader::Slot<Member>::kInfo);
    return verdict.make_call ? call_next() : verdict.status;
  }

 private:
  struct Verdict {
    bool make_call;
    concord_status status;
  };
  struct Counted {
    FaultRule rule;
    std::atomic<int64_t> calls{0};
  };

  // Counts the call, waits if a rule says so, and decides.
  Verdict judge(const loader::SlotInfo& slot);

  loader::Tables next_;
  std::vector<std::unique_ptr<Counted>> rules_;
};

}  // namespace concord::layers
