// Messages between hosts: what backends/net needs of an engine, and what a module that wraps one provides.
//
// A module is a separate shared library, libconcordnet_<engine>.so, so that neither the plugin nor the program needs
// the engine's library to start. It exports one function, kOpenPort, and is from the same build as the plugin that
// loads it. No exception leaves it.
//
// Messages from one rank to another on one lane arrive in the order in which they were sent: the n-th message meets the
// n-th receive. A message that is not as long as its receive is not delivered, but its header and length are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/net/connection.h"

namespace concord::net {

// Goes with every message, so that a rank can see what its peer is doing before it uses the data.
struct Header {
  uint64_t words[2] = {};
};

// Independent orders of messages between the same two ranks.
enum class Lane : uint32_t { kCollectives = 0, kPointToPoint = 1 };
inline constexpr size_t kLanes = 2;

// One message in flight. Belongs to the caller, which must not move it or the data until it is no longer pending.
struct Transfer {
  enum class State { kPending, kDone, kBroken };
  State state = State::kPending;
  Header header;         // header of the received message
  int64_t bytes = 0;     // length of the received message
  const char* why = "";  // the engine's words for what broke; never freed
};

// One rank's end in one communicator. Threads: one at a time.
class Port {
 public:
  // Nothing is pending, and no peer will use its port any more: an engine may lose what a peer has not read yet, or
  // fail if a peer is just connecting. Never waits.
  virtual ~Port() = default;
  // Instead of deleting it, after a failure: nothing that is pending moves any more. The module keeps its memory and
  // its sockets.
  virtual void retire() = 0;

  // Address by which peers reach this port.
  virtual const std::byte* address() const = 0;
  virtual size_t address_bytes() const = 0;
  virtual void set_address(int32_t peer, const std::byte* address, size_t bytes) = 0;

  virtual void send(int32_t peer, Lane lane, const Header& header, const void* data, int64_t bytes,
                    Transfer* transfer) = 0;
  virtual void receive(int32_t peer, Lane lane, void* data, int64_t bytes, Transfer* transfer) = 0;
  // Done when all that was sent to |peer| has left this process: a send may be done before.
  virtual void flush(int32_t peer, Transfer* transfer) = 0;

  // Sets whether the caller drives the port, by progress(). While it does not, the module drives the port on its own
  // thread, because peers may need an answer; then no receive may be pending.
  virtual void drive(bool mine) = 0;
  // Moves what can be moved. If that is nothing, waits for news for at most |milliseconds|.
  virtual void progress(int milliseconds) = 0;
};

struct Opening {
  int32_t rank = 0;
  int32_t world = 0;
  uint64_t key = 0;                // only messages with it are taken
  const char* interface = "";      // the network interface to use and listen on; empty: the engine chooses
  bool interface_is_must = false;  // chosen by the user; otherwise a faster network may be used
  // The hosts of the other ranks: the engine's TCP ports take connections from these addresses only. Empty: from all.
  std::span<const Address> sources = {};
};

// Returns a port; null, with a message in |error|, if the engine does not work here.
using OpenPort = Port* (*)(const Opening& opening, char* error, size_t error_bytes);
inline constexpr const char* kOpenPort = "concord_net_open_port";

}  // namespace concord::net
