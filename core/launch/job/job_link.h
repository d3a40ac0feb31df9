// Connections between the launchers of a job: the leader listens, and the others connect to it.
//
// Only processes with the job's token can take part: the connections are sealed (platform/base/sealed_connection.hpp).
// A connection that does not authenticate within five seconds, sends something else or exceeds the limit for
// unauthenticated ones is dropped without effect on the others. Without a token anyone who can reach the port can take
// part.
//
// A dedicated thread sends and receives, so that a busy launcher does not appear lost, and sends a heartbeat every half
// second. A peer is lost when its connection ends, or when it is silent for five seconds. Only try_join and close wait.
//
// Example, given const std::string& token:
//   const auto leader = JobLink::serve("127.0.0.1", 29500, token);
//   std::string why;
//   const auto member = JobLink::try_join("127.0.0.1", 29500, token, std::chrono::seconds(10), &why);
//   member->send(JobLink::kLeader, {.kind = JobMessage::Kind::hello, .numbers = {1, 2, 4, 3, 0, 7, -1, -1, 0, 1}});
//   for (const JobLink::Received& received : leader->take()) { /* received.peer, received.message */ }
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/launch/job/job_message.h"
#include "platform/base/sealed_connection.hpp"
#include "platform/base/thread_safety.hpp"
#include "platform/base/unique_fd.hpp"

namespace concord {

class JobLink {
 public:
  static constexpr int kLeader = 0;  // peer number of the leader, in launchers that have joined it
  static constexpr std::chrono::milliseconds kAliveEvery{500};
  static constexpr std::chrono::milliseconds kPeerTimeout{5000};

  // Listens at |host|:|port| (core/mesh/store/sockets.h); port 0: any. Throws ConfigError if it cannot.
  static std::unique_ptr<JobLink> serve(const std::string& host, int port, const std::string& token);
  // Connects to a leader. Returns null, and the reason in |why|, if nothing listens there. Waits: at most |limit|.
  static std::unique_ptr<JobLink> try_join(const std::string& host, int port, const std::string& token,
                                           std::chrono::milliseconds limit, std::string* why);
  ~JobLink();
  JobLink(const JobLink&) = delete;
  JobLink& operator=(const JobLink&) = delete;

  int port() const { return port_; }                           // the port at which it listens
  const std::string& own_address() const { return address_; }  // this machine's, as the leader sees it

  // A message or the loss of a peer.
  struct Received {
    int peer = 0;                       // number of the connection, never reused
    std::optional<JobMessage> message;  // nullopt: the peer is lost
    std::string why = {};               // why it is lost
    bool was_silent = false;            // it was lost by its silence, and may still run
  };
  // Returns everything since the last call; each peer's messages are in order.
  std::vector<Received> take();

  void send(int peer, const JobMessage& message);
  void set_heartbeat(const JobMessage& message);  // sent from now on instead of an alive without numbers
  void drop(int peer);  // closes the connection after everything that was sent; nothing more is received
  // Waits until everything has been sent and the peers have closed, at most |limit|.
  void close(std::chrono::milliseconds limit);

 private:
  struct Peer;
  using Clock = std::chrono::steady_clock;

  JobLink(UniqueFd listener, const std::string& token);
  void add(UniqueFd socket, bool is_leader);
  void run();
  void poll_once();
  void accept_all();
  void read(Peer* peer) CONCORD_REQUIRES(mutex_);
  void write(Peer* peer) CONCORD_REQUIRES(mutex_);
  void keep_time(Peer* peer) CONCORD_REQUIRES(mutex_);
  void lose(Peer* peer, const std::string& why, bool was_silent) CONCORD_REQUIRES(mutex_);
  void queue(Peer* peer, const JobMessage& message) CONCORD_REQUIRES(mutex_);
  void wake();

  const std::string token_;
  UniqueFd listener_;  // none in one that has joined
  int port_ = 0;
  std::string address_;
  UniqueFd wake_;     // an eventfd
  std::mutex mutex_;  // all below
  std::condition_variable changed_;
  std::map<int, std::unique_ptr<Peer>> peers_ CONCORD_GUARDED_BY(mutex_);
  std::vector<Received> heard_ CONCORD_GUARDED_BY(mutex_);
  JobMessage alive_ CONCORD_GUARDED_BY(mutex_) = {.kind = JobMessage::Kind::alive};
  int next_peer_ CONCORD_GUARDED_BY(mutex_) = 0;
  bool is_closing_ CONCORD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace concord
