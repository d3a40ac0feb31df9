// Memory as the validate layer knows it: blocks that are allocated, in use by queued work, or released.
//
// Released memory is kept from the plugin for a while (the quarantine), so that its address cannot be reused and any
// use of it is an error. Not thread-safe; the layer has a lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "platform/abi/concord.h"
#include "platform/layers/lifetimes.h"

namespace concord::layers {

struct Allocation {
  enum class Kind { kDevice, kOnStream, kHost };
  Kind kind;
  int32_t device;  // -1 for kHost
  void* pointer;
  int64_t bytes;
  std::map<concord_stream, concord_event> uses;  // the newest event after queued work that uses it
  std::map<concord_stream, const char*> users;   // and the call that queued it
  std::optional<Ending> released;
};

// A part of memory that a call touches.
struct Range {
  enum class Side { kAny, kHost, kDevice };
  const void* pointer;
  int64_t bytes;
  const char* what;  // "send"
  Side side = Side::kAny;
  int32_t device = -1;  // where it has to be; -1: anywhere
};

std::string describe(const Allocation& allocation);

class Allocations {
 public:
  static constexpr int64_t kQuarantineBytes = int64_t{64} << 20;
  static constexpr size_t kQuarantineBlocks = 1024;

  void add(Allocation allocation);

  // The allocation that |pointer| points into, released or not; null if it was not allocated by this platform.
  Allocation* find(const void* pointer);

  // INVALID_ARGUMENT if |range| touches released memory, exceeds its allocation, or is on the wrong side.
  void check(const Range& range);

  // The live allocation that begins at |pointer| and was made as |kind| on |device|; INVALID_ARGUMENT if it is not one.
  Allocation& need(const void* pointer, Allocation::Kind kind, int32_t device);

  void forget(const void* pointer);

  // Marks it as released and returns what the quarantine has no more room for, for the caller to release.
  std::vector<Allocation> quarantine(Allocation& allocation);
  std::vector<Allocation> empty_quarantine();

  size_t live() const { return blocks_.size() - quarantine_.size(); }
  int64_t live_bytes() const;

 private:
  std::map<uintptr_t, Allocation> blocks_;
  std::deque<uintptr_t> quarantine_;
  int64_t quarantined_bytes_ = 0;
};

}  // namespace concord::layers
