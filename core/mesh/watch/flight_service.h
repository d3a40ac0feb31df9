// What happens to the flight recorder when something fails: the file is written, and the other ranks are asked where
// they are.
//
// A rank in trouble writes its calls to concord-flight-<rank>.json, publishes its positions in the store and asks the
// others for theirs. Ranks that are well do the same from answer(), which the watchdog calls now and then; so a rank
// that is stuck in its own computation still says where it is. No reply from a rank is itself an answer. Threads:
// any thread.
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
    std::string folder = ".";  // where the file goes
  };
  FlightService(std::shared_ptr<Store> store, Options options);

  FlightRecorder& recorder() { return recorder_; }
  Peers& peers() { return peers_; }

  // How often answer() should be called: seldom enough that a big job does not flood the store.
  std::chrono::milliseconds period() const { return period_; }
  // Publishes this rank's positions and writes its file, once, where another rank has asked for them. Never throws.
  void answer() noexcept;

  struct Group {
    std::string communicator;  // as it is recorded
    std::string name;          // as the caller knows it
    RankGroup ranks;
    bool p2p = false;  // its p2p batches are meant, not its collectives
  };
  // Where the members of |group| are: publishes this rank's position and asks the others for theirs. Waits: some
  // periods for their answers. Throws Error if the store is gone.
  std::vector<MemberPosition> positions_of(const Group& group, const std::string& why);
  // Reports a failure in |group| to the other ranks and to disk, and returns the complete message: who is behind, if
  // that is known, then |why|, then the name of the file. Waits: some periods for the others' answers. Never throws.
  std::string report(const Group& group, const std::string& why) noexcept;

 private:
  std::string write_file(const std::string& why) const;  // returns where it went, or that it did not
  void publish();
  void linger(const Group& group, int64_t answered);
  std::string ask(const Group& group, const std::string& why);
  std::string cannot_ask(const std::string& why, const std::string& error);

  std::shared_ptr<Store> store_;
  Options options_;
  Peers peers_;
  std::chrono::milliseconds period_;
  std::atomic<bool> answered_ = false;
  std::mutex file_;  // one writes it at a time
  bool reported_ CONCORD_GUARDED_BY(file_) =
      false;  // the file tells of a failure of this rank; an answer does not replace it
  FlightRecorder recorder_;
};

// The name under which the p2p batches of a communicator are recorded; they are numbered apart from its collectives.
std::string p2p_name(const std::string& communicator);

}  // namespace concord
