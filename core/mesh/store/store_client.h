// A connection to the server of a job's store (core/mesh/store/store_server.h).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/mesh/store/store.h"
#include "core/mesh/store/store_message.h"
#include "platform/base/sealed_connection.hpp"
#include "platform/base/thread_safety.hpp"
#include "platform/loader/error.h"

namespace concord {

// All threads share one connection. A dedicated thread receives the replies, so that a call that waits for a key delays
// no other call. A call throws PEER_LOST if its reply does not arrive within the time that it may wait for a key plus
// |limit|.
class StoreClient : public Store {
 public:
  // |where| is used in messages. Takes ownership of |socket|, which is connected. The first call verifies that the
  // server replies and has the same token.
  StoreClient(UniqueFd socket, const std::string& token, std::string where, Milliseconds limit);
  ~StoreClient() override;
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // Waits for the server's first reply, which authenticates both sides. Returns nullopt on success, otherwise the
  // reason, and sets |error| to that of SealedConnection or to ETIMEDOUT. Waits: at most |limit|.
  std::optional<std::string> greet(Milliseconds limit, int* error);

  void set(const std::string& key, std::string_view value) override;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  std::vector<std::string> get_all(std::span<const std::string> keys, Milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(std::span<const std::string> keys) override;
  bool remove(const std::string& key) override;

 private:
  struct Reply {
    StoreReply kind = StoreReply::done;
    StoreMessage message;
  };

  void run();
  void receive() CONCORD_REQUIRES(mutex_);
  void wake() const;
  // Returns nullopt if no reply arrives within |limit|, or the connection is lost.
  std::optional<Reply> request(StoreRequest kind, StoreMessage message, Milliseconds limit);
  // |waits| is how long the server may wait for a key before it replies.
  Reply call(StoreRequest kind, StoreMessage message, Milliseconds waits = {});
  std::vector<std::string> await(StoreRequest kind, std::span<const std::string> keys, Milliseconds timeout);
  std::string lost_text() CONCORD_REQUIRES(mutex_);

  const std::string where_;
  const Milliseconds limit_;
  UniqueFd wake_;  // an eventfd
  std::mutex mutex_;
  std::condition_variable changed_;
  SealedConnection connection_ CONCORD_GUARDED_BY(mutex_);
  std::map<uint64_t, std::optional<Reply>> pending_
      CONCORD_GUARDED_BY(mutex_);  // by number; a reply once it has arrived
  uint64_t last_ CONCORD_GUARDED_BY(mutex_) = 0;
  bool is_lost_ CONCORD_GUARDED_BY(mutex_) = false;
  bool is_closing_ CONCORD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Returns the number of requests that the clients of this process have sent: the load that it puts on the job's server.
int64_t store_requests();

}  // namespace concord
