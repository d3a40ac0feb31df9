// The addresses of this host, and the part of a communicator's id that holds the address of its keeper.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/net/connection.h"

namespace concord::net {

// The interface by which this process reaches other hosts, and the address on which it listens.
struct Network {
  std::string interface;           // empty: any
  std::optional<Address> address;  // nullopt: all addresses of this host
  bool chosen = false;             // by the user
};

// Returns the interface that CONCORD_CPU_INTERFACE names, else the one that routes to the job's first host; none if
// that host is unknown. Waits: a few seconds in all if the interface has no carrier or address yet. Throws
// INVALID_ARGUMENT.
Network own_network();

// Returns the source addresses that this host's connections may have.
std::vector<Address> source_addresses();

// Returns a number that only processes with |id| know.
uint64_t key_of(const void* id);

// The address of an id's keeper.
struct Where {
  uint16_t port = 0;
  uint16_t count = 0;  // number of addresses, the likeliest first
  std::array<Address, 3> addresses{};

  static Where here(uint16_t port);
  static std::optional<Where> read(const void* id);
  void write(void* id) const;
  std::string text() const;  // "10.0.0.1, 10.1.0.1 port 4711"
};

}  // namespace concord::net
