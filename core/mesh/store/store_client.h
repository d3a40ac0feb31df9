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

// All threads share one connection. A thread of its own receives the replies, so that a call that waits for a key
// delays no other call. A call whose reply does not come within the time it may wait for a key and |limit| is
// PEER_LOST.
class StoreClient : public Store {
 public:
  // |where|: for messages. Owns |socket|, which is connected. The first call finds out whether the server answers and
  // has the same token.
  StoreClient(UniqueFd socket, const std::string& token, std::string where, Milliseconds limit);
  ~StoreClient() override;
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // Returns when the server has replied, and both sides have thereby authenticated; otherwise why that has failed, and
  // sets |error| to that of SealedConnection, or ETIMEDOUT. Waits: at most |limit|.
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
  // |waits|: how long the server may wait for a key before it replies.
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

// How many requests the clients of this process have sent, for tests and benchmarks of large jobs.
int64_t store_requests();

}  // namespace concord
