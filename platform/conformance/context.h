// The context of a running test: the plugin's tables, its rank, a channel to the other ranks without the plugin, and
// the checks. A check that does not hold throws Failed, which the worker turns into the test's reason.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "platform/conformance/plugin.h"
#include "platform/sdk/plugin.hpp"

namespace concord::conformance {

using sdk::text;

struct Failed {
  std::string reason;
};

// Not a failure: |unsupported| is what the plugin declares it cannot do (expectations must list it), otherwise what
// this machine lacks (a second device).
struct Skipped {
  std::string reason;
  bool unsupported;
};

// How ranks exchange bytes outside the plugin: through the parent process. Throws Failed if a rank has exited.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // All ranks' bytes, in rank order. With |allow_lost|, a rank that has exited has an empty entry.
  virtual std::vector<std::string> gather(const std::string& mine, bool allow_lost) = 0;
  // Tells the parent that this process is about to end on purpose.
  virtual void announce_death() = 0;
  // Notes what is being done, for the report of a hang or a crash.
  virtual void step(const char* what) = 0;
};

class Comm;
class Stream;

// Not thread-safe, except for require_* and step, which threads of a test may call.
class Context {
 public:
  Context(const Plugin& the_plugin, Exchange& exchange, int rank, int world, bool quick);
  ~Context();

  const Plugin& plugin() const { return plugin_; }
  const concord_device_table& device_table() const { return plugin_.tables.device; }
  const concord_memory_table& memory() const { return plugin_.tables.memory; }
  const concord_stream_table& streams() const { return plugin_.tables.stream; }
  const concord_event_table& events() const { return plugin_.tables.event; }
  const concord_comm_table& comms() const { return plugin_.tables.comm; }
  const concord_rng_table& rng() const { return plugin_.tables.rng; }

  int rank() const { return rank_; }
  int world() const { return world_; }
  bool quick() const { return quick_; }  // the test may then do less of the same
  int32_t device() const { return device_; }
  int32_t device_count() const { return device_count_; }
  int64_t capability(const char* name) const { return plugin_.capability(name); }

  // A communicator of all ranks and a stream, made on first use and kept for the tests after this one.
  concord_comm world_comm();
  concord_stream stream();

  std::vector<std::string> gather(const std::string& mine) { return exchange_.gather(mine, false); }
  std::vector<std::string> gather_survivors(const std::string& mine) { return exchange_.gather(mine, true); }
  void meet() { exchange_.gather("", false); }  // outside the plugin: every rank has reached this point
  void meet_survivors() { exchange_.gather("", true); }
  [[noreturn]] void die();  // kill -9 of this process, announced
  void step(const char* what) { exchange_.step(what); }

  // The largest share of an error bound that was used; for the report. A test may note it from several threads.
  void note_share(double share) {
    double largest = share_;
    while (share > largest && !share_.compare_exchange_weak(largest, share)) {
    }
  }
  double share() const { return share_; }
  void start_test() { share_ = -1; }

  void require_ok(concord_status status, const char* call) const { require_status(status, CONCORD_STATUS_OK, call); }
  void require_status(concord_status status, concord_status wanted, const char* call) const;
  void require(bool holds, const std::string& what) const;
  [[noreturn]] void fail(const std::string& what) const { throw Failed{what}; }
  [[noreturn]] void skip_unsupported(const std::string& reason) const { throw Skipped{reason, true}; }
  [[noreturn]] void skip_here(const std::string& reason) const { throw Skipped{reason, false}; }

 private:
  const Plugin& plugin_;
  Exchange& exchange_;
  int rank_;
  int world_;
  bool quick_;
  int32_t device_ = 0;
  int32_t device_count_ = 0;
  std::atomic<double> share_ = -1;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Comm> comm_;
};

// "TIMEOUT (5)"
std::string status_text(concord_status status);

// How much longer than usual everything takes in this build: 1, or more under a sanitizer.
int slowness();

// For checks that are ordered by another process, which that sanitizer does not see.
bool under_thread_sanitizer();

// How long a test waits for something that must happen before it fails: 10 s times slowness(), unless it was set.
std::chrono::milliseconds patience();
void set_patience(double seconds);

// Runs |body|(0 .. count-1), each on its own thread, and throws the first exception after all have ended.
void run_threads(int count, const std::function<void(int)>& body);

}  // namespace concord::conformance

// The checks of tests, where |t| is the Context. Each notes itself as the current step.
#define CHECK_OK(call) (t.step(#call), t.require_ok((call), #call))
#define CHECK_STATUS(wanted, call) (t.step(#call), t.require_status((call), (wanted), #call))
#define CHECK(condition, ...)                                            \
  do {                                                                   \
    if (!(condition)) t.fail(::concord::conformance::text(__VA_ARGS__)); \
  } while (false)
