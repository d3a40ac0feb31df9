// The ranks of a communicator as one of them sees them: publishing its own progress, waiting for theirs, and the one
// record of what failed.
//
// Waiting spins briefly, then lets other threads run, then sleeps on the rank's doorbell. While asleep it checks ten
// times a second: has the communicator failed, has an awaited process exited, has the timeout passed. The first rank
// that detects a failure records it for all and wakes them, so that every rank reports the same.
//
// Threads: one at a time, except abort(), error(), failed() and record(), which any thread may call at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/shm/call.h"
#include "backends/shm/segment.h"
#include "backends/shm/yielding.h"
#include "platform/abi/status.h"

namespace concord::shm {

inline constexpr uint64_t kAnyNews = ~uint64_t{0};

// A condition that a rank waits for. ready() is called often and must be cheap.
class Awaited {
 public:
  explicit Awaited(uint64_t wish) : wish_(wish) {}
  virtual bool ready() = 0;
  // Whether |rank| is one of those that are still missing.
  virtual bool awaits(int32_t rank) const = 0;
  // The step at which peers ring the doorbell, or kAnyNews.
  uint64_t wish() const { return wish_; }

 protected:
  ~Awaited() = default;

 private:
  uint64_t wish_;
};

class Team {
 public:
  // |numbers|: what the ranks are called in messages; empty: what they are called here.
  Team(std::shared_ptr<Segment> segment, int32_t rank, std::string name, std::chrono::milliseconds timeout,
       std::vector<int32_t> numbers = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int32_t rank() const { return rank_; }
  int32_t world() const { return world_; }
  int32_t number(int32_t rank) const { return numbers_.empty() ? rank : numbers_[static_cast<size_t>(rank)]; }
  const std::string& name() const { return name_; }
  const Segment& segment() const { return *segment_; }

  // Begins an operation: fails with the recorded failure if the communicator has failed. Other ranks may look it up for
  // messages.
  void begin(const Call& call);
  void end();

  // Steps of collectives. publish() makes all that this rank has written before visible to ranks that wait for |step|.
  void publish(uint64_t step);
  // Waits until every rank has published |step|.
  void wait_for_all(uint64_t step);

  // Wakes |peer| if it sleeps and waits for any news.
  void ring_for_news(int32_t peer);
  // Waits until |awaited| is ready. Fails with PEER_LOST, TIMEOUT, or what another rank has recorded.
  template <class Condition>
  void wait(Condition& awaited) {
    for (int i = 0; i < spins_; ++i) {
      if (awaited.ready()) return;
      relax();
    }
    wait_slowly(awaited);
  }

  // Like the other wait(), but calls |meanwhile| repeatedly instead of sleeping.
  void wait(Awaited& awaited, const std::function<void()>& meanwhile);

  // Records the failure unless there is one already, wakes all ranks, and throws the recorded one.
  [[noreturn]] void fail(concord_status status, const std::string& detail);
  void throw_if_failed() const;
  bool failed() const;
  // Records the failure unless there is one already, and wakes all ranks. Any thread at any time.
  void record(concord_status status, const std::string& detail) noexcept;

  // The operations that begin from now on are steps of |call|: ranks compare it instead, and messages name it. Null: no
  // longer. A rank that sleeps in them calls |meanwhile| every few milliseconds.
  void act_for(const Call* call, std::function<void()> meanwhile) {
    acting_for_ = call;
    meanwhile_ = std::move(meanwhile);
  }
  const Call& shown(const Call& call) const { return acting_for_ != nullptr ? *acting_for_ : call; }

  void abort() noexcept;
  concord_status error(std::string* out_detail) const;

 private:
  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // 'yield' is no pause at all on most cores
#endif
  }

  void wait_slowly(Awaited& awaited);
  void sleep(Awaited& awaited, std::chrono::milliseconds at_most);
  // True if |awaited| has become ready meanwhile.
  bool look_for_lost(Awaited& awaited);
  [[noreturn]] void time_out(const Awaited& awaited, std::chrono::milliseconds waited);
  bool all_have_reached(uint64_t step) const;
  void ring(int32_t rank) const;
  std::string whereabouts(int32_t rank) const;

  const std::shared_ptr<Segment> segment_;
  const int32_t rank_;
  const int32_t world_;
  const std::string name_;
  const std::chrono::milliseconds timeout_;
  const std::vector<int32_t> numbers_;
  const int64_t owner_;  // the process that may speak for this rank: not a child made by fork
  const int spins_;
  const int yields_;
  Yielding yielding_;
  Call current_;
  const Call* acting_for_ = nullptr;
  std::function<void()> meanwhile_;
};

}  // namespace concord::shm
