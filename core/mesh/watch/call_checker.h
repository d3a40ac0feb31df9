// The debug mode of groups (CONCORD_LAYERS=validate): before a call goes to the device, the ranks of the group compare
// what they are about to call, through the store. A mismatch, which would otherwise hang or give wrong numbers, is then
// an error on every rank that names both calls.
//
// Each call costs a few round trips to the store and waits for all ranks of the group (a p2p batch: for the senders),
// so this is for debugging, not for production. Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/peers.h"
#include "core/mesh/rank_layout.h"
#include "core/mesh/store/store.h"
#include "core/mesh/watch/flight_recorder.h"
#include "platform/abi/comm.h"

namespace concord {

class CallChecker {
 public:
  struct Options {
    std::string name;  // name of the communicator
    RankGroup ranks;
    int64_t index = 0;                  // index of this rank in |ranks|
    std::chrono::milliseconds timeout;  // for the calls of the other ranks
  };
  // |peers| must outlive this object.
  CallChecker(std::shared_ptr<Store> store, Peers& peers, Options options);

  // Waits: until every rank has made its call number |sequence|. Throws Error: INVALID_ARGUMENT if the calls differ,
  // TIMEOUT with a rank that has not called, PEER_LOST with a rank that can no longer call.
  void check(int64_t sequence, const CallSignature& signature);

  // Like check() above, for all_to_all_v: also compares the count that i sends to j with the count that j expects from
  // i.
  void check(int64_t sequence, const CallSignature& signature, std::span<const int64_t> send_counts,
             std::span<const int64_t> recv_counts);

  // Like check() above, for a p2p batch. Waits: until each sender of |items| has made its call. A sender does not wait.
  void check(const CallSignature& signature, std::span<const concord_p2p_item> items);

 private:
  std::string key(int64_t sequence, int64_t index) const;
  const std::string& shown(const CallSignature& signature) const;  // the group's name as the caller knows it
  std::vector<std::string> exchange(int64_t sequence, const CallSignature& signature, const std::string& mine);
  [[noreturn]] void differ(int64_t sequence, const CallSignature& signature, int64_t index, const std::string& theirs,
                           const std::string& mine) const;

  std::shared_ptr<Store> store_;
  Peers& peers_;
  Options options_;
  std::map<std::pair<int64_t, int64_t>, int64_t> transfers_;  // (sender, receiver) -> number of transfers so far
};

}  // namespace concord
