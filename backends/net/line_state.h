// The state of a rank's control connection (control.h), shared by the Line and the listening thread.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backends/net/control.h"
#include "platform/base/sealed_connection.hpp"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/failure.hpp"

namespace concord::net {

struct Line::State {
  Seat seat;
  std::string where;  // the keeper, for messages

  // Guards all below; never held while waiting.
  mutable std::mutex mutex;
  SealedConnection connection CONCORD_GUARDED_BY(mutex);
  int32_t keeper CONCORD_GUARDED_BY(mutex) = -1;  // the rank that runs in the keeper's process; -1: none or unknown
  OnFailure on_failure CONCORD_GUARDED_BY(mutex);
  std::map<int32_t, std::string> lost CONCORD_GUARDED_BY(mutex);
  std::set<int32_t> left CONCORD_GUARDED_BY(mutex);
  std::string cut CONCORD_GUARDED_BY(mutex);                  // why the connection was lost; empty: it is open
  std::function<void()> on_parted CONCORD_GUARDED_BY(mutex);  // set once this rank leaves

  bool all_left() const CONCORD_REQUIRES(mutex) { return static_cast<int32_t>(left.size()) == seat.world - 1; }

  // Handles the messages that have arrived; returns a failure that another rank has reported, if any. Called by the
  // listening thread.
  std::optional<sdk::Failure> listen() CONCORD_REQUIRES(mutex);
  std::vector<std::string> open_round(std::string_view body) CONCORD_REQUIRES(mutex);
  std::optional<std::string> round CONCORD_GUARDED_BY(mutex);
};

}  // namespace concord::net
