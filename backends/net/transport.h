// Messages between hosts: the interface of an engine for backends/net, which a module implements.
//
// A module is a separate shared library, libconcordnet_<engine>.so, so that neither the plugin nor the program needs
// the engine's library to start. It exports one function, kOpenPort, and is from the same build as the plugin that
// loads it. No exception leaves it.
//
// Messages from one rank to another on one lane arrive in the order in which they were sent: the n-th message matches
// the n-th receive. If their lengths differ, only the message's header and length are delivered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/net/connection.h"

namespace concord::net {

// Sent with every message: describes the sender's call, which the receiver checks before it uses the data.
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
  const char* why = "";  // the engine's error message; never freed
};

// A rank's endpoint in one communicator. Threads: one at a time.
class Port {
 public:
  // Call only if nothing is pending and no peer will use its own port again: an engine may lose data that a peer has
  // not read yet, or fail if a peer is just connecting. Never waits.
  virtual ~Port() = default;
  // Call instead of the destructor after a failure: pending transfers no longer progress. The module keeps its memory
  // and its sockets.
  virtual void retire() = 0;

  // Address by which peers reach this port.
  virtual const std::byte* address() const = 0;
  virtual size_t address_bytes() const = 0;
  virtual void set_address(int32_t peer, const std::byte* address, size_t bytes) = 0;

  virtual void send(int32_t peer, Lane lane, const Header& header, const void* data, int64_t bytes,
                    Transfer* transfer) = 0;
  virtual void receive(int32_t peer, Lane lane, void* data, int64_t bytes, Transfer* transfer) = 0;
  // |transfer| is done when everything sent to |peer| has left this process; a send may be done earlier.
  virtual void flush(int32_t peer, Transfer* transfer) = 0;

  // Sets whether the caller drives the port, by progress(). While it does not, the module drives the port on its own
  // thread, because peers may need an answer; then no receive may be pending.
  virtual void drive(bool mine) = 0;
  // Lets pending transfers progress. If none can, waits for an event for at most |milliseconds|.
  virtual void progress(int milliseconds) = 0;
};

struct Opening {
  int32_t rank = 0;
  int32_t world = 0;
  uint64_t key = 0;                // messages with a different key are dropped
  const char* interface = "";      // the network interface to use and listen on; empty: the engine chooses
  bool interface_is_must = false;  // chosen by the user; otherwise a faster network may be used
  // Addresses of the other ranks' hosts: the engine's TCP ports accept connections from these only. Empty: from all.
  std::span<const Address> sources = {};
};

// Returns a port; null, with a message in |error|, if the engine does not work here.
using OpenPort = Port* (*)(const Opening& opening, char* error, size_t error_bytes);
inline constexpr const char* kOpenPort = "concord_net_open_port";

}  // namespace concord::net
