// Reporting of failures: writes the flight recorder to a file and collects the positions of the other ranks.
//
// A failing rank writes its calls to concord-flight-<rank>.json, publishes its positions in the store and requests
// those of the others. Healthy ranks do the same from answer(), which the watchdog calls periodically, so that even a
// rank that is stuck in its own computation reports its position. No reply is also information. Threads: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/mesh/peers.h"
#include "core/mesh/rank_layout.h"
#include "core/mesh/store/store.h"
#include "core/mesh/watch/flight_recorder.h"
#include "platform/base/thread_safety.hpp"

namespace concord {

class FlightService {
 public:
  struct Options {
    int64_t rank = 0;
    int64_t world = 1;
    std::string folder = ".";  // folder for the file
  };
  FlightService(std::shared_ptr<Store> store, Options options);

  FlightRecorder& recorder() { return recorder_; }
  Peers& peers() { return peers_; }

  // Returns the interval for calls of answer(), long enough that a large job does not flood the store.
  std::chrono::milliseconds period() const { return period_; }
  // If another rank has requested them, publishes this rank's positions and writes its file, once. Never throws.
  void answer() noexcept;

  struct Group {
    std::string communicator;  // name in the recorder
    std::string name;          // name that the caller uses
    RankGroup ranks;
    bool p2p = false;  // its p2p batches instead of its collectives
  };
  // Returns the positions of the members of |group|: publishes this rank's position and requests the others. Waits:
  // some periods for their replies. Throws Error if the store is gone.
  std::vector<MemberPosition> positions_of(const Group& group, const std::string& why);
  // Reports a failure in |group| to the other ranks and to disk. Returns the complete message: the lagging ranks, if
  // known, then |why|, then the name of the file. Waits: some periods for the replies of the others. Never throws.
  std::string report(const Group& group, const std::string& why) noexcept;

 private:
  std::string write_file(const std::string& why) const;  // returns its path, or that writing failed
  void publish();
  void linger(const Group& group, int64_t answered);
  std::string ask(const Group& group, const std::string& why);
  std::string cannot_ask(const std::string& why, const std::string& error);

  std::shared_ptr<Store> store_;
  Options options_;
  Peers peers_;
  std::chrono::milliseconds period_;
  std::atomic<bool> answered_ = false;
  std::mutex file_;  // guards the file
  bool reported_ CONCORD_GUARDED_BY(file_) =
      false;  // the file describes a failure of this rank; an answer does not replace it
  FlightRecorder recorder_;
};

// Returns the name under which the p2p batches of a communicator are recorded; they are numbered separately from its
// collectives.
std::string p2p_name(const std::string& communicator);

}  // namespace concord
