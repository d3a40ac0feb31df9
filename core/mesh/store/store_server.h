// The server of a job's store: one thread in rank 0's process that keeps all keys and values.
//
// No request of a peer is parsed before its connection has authenticated (platform/base/sealed_connection.hpp). A peer
// that does not authenticate in time is dropped; if there are too many of them, the oldest is dropped, so that silent
// connections neither use up memory nor keep the job's ranks out. On a Unix socket only processes of this user and of
// root are accepted. Authenticated peers are subject to the limits too.
//
// Threads: all work is done on the server's own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "core/mesh/store/store_message.h"
#include "platform/base/sealed_connection.hpp"
#include "platform/base/unique_fd.hpp"

namespace concord {

inline constexpr std::string_view kStorePurpose = "store";  // for SealedConnection
inline constexpr size_t kMaxStoreRequest = size_t{16} << 20;

class StoreServer {
 public:
  struct Limits {
    size_t bytes = size_t{256} << 20;  // all keys and values
    size_t strangers = 64;             // connections that have not authenticated yet
    std::chrono::milliseconds introduction{5000};
  };

  // Serves peers that connect to |listener|, a listening socket, and have |token|.
  StoreServer(UniqueFd listener, std::string token, const Limits& limits);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    SealedConnection connection;
    Clock::time_point since;
    uint32_t events = 0;  // events that epoll reports
  };
  struct Wait {
    uint64_t client = 0;
    StoreRequest kind = StoreRequest::wait;
    StoreMessage request;
    Clock::time_point end;
    std::string key;  // the first missing key
  };

  void run();
  int milliseconds_to_next_end() const;
  void accept_all();
  bool is_room_for_one_more();
  void serve(uint64_t number);
  void watch(uint64_t number, Client* client);
  void drop(uint64_t number);
  void end_overdue();

  void handle(uint64_t client, StoreRequest kind, StoreMessage request);
  void reply(uint64_t client, uint64_t number, StoreReply kind, int64_t result, std::vector<std::string> texts = {});
  void change(uint64_t client, const StoreMessage& request, const std::string& value, int64_t result);
  void add(uint64_t client, const StoreMessage& request);
  void remove(uint64_t client, const StoreMessage& request);
  void answer_or_wait(Wait wait);
  void wake_waits(const std::string& key);
  const std::string* first_missing(const std::vector<std::string>& keys) const;

  const std::string token_;
  const Limits limits_;
  UniqueFd listener_, wake_, epoll_;
  std::map<uint64_t, Client> clients_;
  std::set<uint64_t> strangers_;  // ids of unauthenticated clients, oldest first
  uint64_t last_client_ = 0, last_wait_ = 0;
  std::map<std::string, std::string> values_;
  size_t bytes_ = 0;  // size of values_
  std::map<uint64_t, Wait> waits_;
  std::map<std::string, std::set<uint64_t>> waits_by_key_;
  std::set<std::pair<Clock::time_point, uint64_t>> waits_by_end_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace concord
