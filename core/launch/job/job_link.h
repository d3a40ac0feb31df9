// The connections between the launchers of a job: one listens, the others connect, and each hears the others' messages.
//
// Only processes with the job's token can take part: the connections are sealed (platform/base/sealed_connection.hpp).
// A connection that does not authenticate within five seconds, sends something else or exceeds the limit for
// unauthenticated ones is dropped without effect on the others. Without a token anyone who can reach the port can take
// part.
//
// A thread of its own sends and receives, so that a launcher that is busy is not taken for lost; every half second it
// says that it is alive. A peer is lost when its connection ends, or when it is silent for five seconds. The launcher
// takes what has come by take(). Nothing waits but try_join and close.
//
// Example, given const std::string& token:
//   const auto leader = JobLink::serve("127.0.0.1", 29500, token);
//   std::string why;
//   const auto member = JobLink::try_join("127.0.0.1", 29500, token, std::chrono::seconds(10), &why);
//   member->send(JobLink::kLeader, {.kind = JobMessage::Kind::hello, .numbers = {1, 2, 4, 3, 0, 7, 29501, -1, -1, 0}});
//   for (const JobLink::Received& heard : leader->take()) { /* heard.peer, heard.message */ }
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
  static constexpr int kLeader = 0;  // the peer of one that has joined
  static constexpr std::chrono::milliseconds kAliveEvery{500};
  static constexpr std::chrono::milliseconds kPeerTimeout{5000};

  // Listens at |host|:|port| (core/mesh/store/sockets.h); port 0: any. Throws ConfigError where it cannot.
  static std::unique_ptr<JobLink> serve(const std::string& host, int port, const std::string& token);
  // Connects to it. Null where nobody listens, with the reason. Waits: |limit| at most.
  static std::unique_ptr<JobLink> try_join(const std::string& host, int port, const std::string& token,
                                           std::chrono::milliseconds limit, std::string* why);
  ~JobLink();
  JobLink(const JobLink&) = delete;
  JobLink& operator=(const JobLink&) = delete;

  int port() const { return port_; }                           // where it listens
  const std::string& own_address() const { return address_; }  // of this machine, as the one that it has joined sees it

  // What has come since the last call, in the order of each peer.
  struct Received {
    int peer = 0;  // a number for each connection, never used twice; it is known once its first message was genuine
    std::optional<JobMessage> message;  // nothing: it is lost, and
    std::string why = {};               // says why
    bool was_silent = false;            // its connection had not ended: it may still live
  };
  std::vector<Received> take();

  void send(int peer, const JobMessage& message);
  void set_heartbeat(const JobMessage& message);  // from now on, instead of an alive without numbers
  void drop(int peer);                            // what was sent to it still goes out; nothing more is heard of it
  // Waits: until all that was sent has gone out and the peers have closed, at most |limit|.
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
