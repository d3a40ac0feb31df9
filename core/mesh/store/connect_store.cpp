// connect_store of rendezvous.h: which process serves the job's store, where, and how the others reach it.
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <thread>

#include "core/mesh/store/agent_store.h"
#include "core/mesh/store/rendezvous.h"
#include "core/mesh/store/sockets.h"
#include "core/mesh/store/store_client.h"
#include "core/mesh/store/store_server.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Delay between the ranks' connections: a connection that does not fit into the server's queue is retried by the kernel
// only after 1, 3 and 7 seconds.
constexpr std::chrono::microseconds kTurn{100};
// Limits for one call, which never waits for another rank: the job's timeout, clamped to this range.
constexpr Milliseconds kMinLimit{5000};
constexpr Milliseconds kMaxLimit{60000};
// How long to retry if the server closes the connection, which a flood of unauthenticated peers may cause.
constexpr Milliseconds kAuthentication{5000};

Milliseconds limit_of(Milliseconds timeout) { return std::clamp(timeout, kMinLimit, kMaxLimit); }

// The address of the job's store.
struct Place {
  std::string unix_name;  // empty: TCP at host:port
  std::string host;
  int port = 0;

  std::string text() const {
    return fmt::format("{}:{}{}", host, port, unix_name.empty() ? "" : " (a Unix socket of this machine)");
  }
};

// Returns the address of the store: a Unix socket for jobs without a token on one machine, since the kernel then
// reports the user of the peer.
Place place_of(const JobEnvironment& job) {
  Place place{{}, job.master_addr, job.master_port};
  if (uses_unix_socket(job)) place.unix_name = fmt::format("concord-store-{}-{}", ::geteuid(), place.text());
  return place;
}

// Throws Error if the address is in use.
Listener listen_for(const JobEnvironment& job, const Place& place) {
  Listener listener = place.unix_name.empty() ? listen_on(place.host, place.port) : listen_on_unix(place.unix_name);
  if (listener.socket) return listener;
  const std::string advice = listener.error == EADDRINUSE
                                 ? "another process is listening there: a second process with rank 0, or an earlier "
                                   "job that is still running; stop it, or choose another MASTER_PORT"
                                 : "choose another MASTER_PORT";
  throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("rank 0 cannot serve the job's store at port {}: {}; {}",
                                                      job.master_port, std::strerror(listener.error), advice));
}

// The store of rank 0: its server, and a connection to it.
class ServedStore : public StoreClient {
 public:
  ServedStore(std::unique_ptr<StoreServer> server, UniqueFd socket, const std::string& token, std::string where,
              Milliseconds limit)
      : StoreClient(std::move(socket), token, std::move(where), limit), server_(std::move(server)) {}

 private:
  std::unique_ptr<StoreServer> server_;
};

UniqueFd connect_to(const Place& place, Milliseconds limit, std::string* reason) {
  if (!place.unix_name.empty()) return connect_unix(place.unix_name, reason);
  UniqueFd socket = connect_once(place.host, place.port, limit, reason);
  if (!socket) return socket;
  end_when_silent(socket);
  const int yes = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return socket;
}

// Returns the address at which rank 0 serves under torchrun, whose agent uses the job's port, possibly on another
// machine.
Place place_beside_agent(const JobEnvironment& job, Milliseconds timeout) {
  std::string reason;
  const UniqueFd socket = connect_once(job.master_addr, job.master_port, limit_of(timeout), &reason);
  if (!socket) {
    throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("rank 0 cannot reach torchrun's store at {}:{}: {}",
                                                        job.master_addr, job.master_port, reason));
  }
  const std::string own = own_address(socket);
  return {{}, own == peer_address(socket) ? job.master_addr : own, 0};
}

Place published_place(const JobEnvironment& job, Milliseconds timeout) {
  const std::string text = published_address(job, timeout);
  const size_t bar = std::min(text.rfind('|'), text.size());
  Place place{{}, text.substr(0, bar), 0};
  std::from_chars(text.data() + std::min(bar + 1, text.size()), text.data() + text.size(), place.port);
  return place;
}

// Connects until a server with the same token replies. Throws Error after |timeout|; a server that refused the token
// before it stopped replying is reported as refusing it.
std::shared_ptr<Store> reach(const JobEnvironment& job, const Place& place, Milliseconds timeout) {
  const Clock::time_point begin = Clock::now(), deadline = begin + timeout;
  std::optional<std::string> refusal;
  std::this_thread::sleep_for(std::min<Clock::duration>(job.rank * kTurn, timeout / 2));
  for (Milliseconds pause{2};; pause = std::min(pause * 3 / 2 + Milliseconds(1), Milliseconds(200))) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    std::string reason;
    int error = 0;
    if (UniqueFd socket = connect_to(place, std::clamp(left, Milliseconds(1), kMinLimit), &reason)) {
      auto client = std::make_shared<StoreClient>(std::move(socket), job.token, place.text(), limit_of(timeout));
      const auto failure = client->greet(std::clamp(left, Milliseconds(1), limit_of(timeout)), &error);
      if (!failure) return client;
      if (error == SealedConnection::kWrongSecret) refusal = failure;
      const bool is_final = error != SealedConnection::kWrongSecret || Clock::now() - begin > kAuthentication;
      if (is_final || Clock::now() + pause >= deadline) {
        throw Error(error == ETIMEDOUT && !refusal ? CONCORD_STATUS_TIMEOUT : CONCORD_STATUS_UNAVAILABLE,
                    fmt::format("rank {} cannot use the store at {}: {}; if another program is listening there, choose "
                                "another MASTER_PORT",
                                job.rank, place.text(), error == ETIMEDOUT && refusal ? *refusal : *failure));
      }
    } else if (Clock::now() + pause >= deadline) {
      throw Error(CONCORD_STATUS_TIMEOUT,
                  fmt::format("rank {} found no store at {} within {} ms ({}); is rank 0 running there, and do all "
                              "ranks have the same MASTER_ADDR and MASTER_PORT, and the same {}, or none?",
                              job.rank, place.text(), timeout.count(), reason, kJobToken));
    }
    std::this_thread::sleep_for(pause);
  }
}

std::shared_ptr<Store> serve(const JobEnvironment& job, const Place& place, Milliseconds timeout) {
  Listener listener = listen_for(job, place);
  Place own = place;
  own.host = listener.address;
  own.port = own_port(listener.socket);
  StoreServer::Limits limits;
  limits.strangers += static_cast<size_t>(job.world);  // all ranks may connect at once
  auto server = std::make_unique<StoreServer>(std::move(listener.socket), job.token, limits);
  std::string reason;
  UniqueFd socket = connect_to(own, limit_of(timeout), &reason);
  if (!socket) throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("rank 0 cannot reach its own store: {}", reason));
  auto store =
      std::make_shared<ServedStore>(std::move(server), std::move(socket), job.token, own.text(), limit_of(timeout));
  int error = 0;
  // The server drops connections that stay unauthenticated, and publishing may take longer than that.
  if (const auto failure = store->greet(limit_of(timeout), &error)) {
    throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("rank 0 cannot use its own store: {}", *failure));
  }
  if (place.port == 0 && place.unix_name.empty()) {
    publish_address(job, fmt::format("{}|{}", place.host, own.port), timeout);
  }
  return store;
}

}  // namespace

bool uses_unix_socket(const JobEnvironment& job) { return job.token.empty() && job.local_world == job.world; }

std::shared_ptr<Store> connect_store(const JobEnvironment& job, Milliseconds timeout) {
  if (job.world == 1) return make_local_store();
  if (!job.agent_store || uses_unix_socket(job)) {
    const Place place = place_of(job);
    return job.rank == 0 ? serve(job, place, timeout) : reach(job, place, timeout);
  }
  if (job.rank == 0) return serve(job, place_beside_agent(job, timeout), timeout);
  return reach(job, published_place(job, timeout), timeout);
}

}  // namespace concord
