// The part of an id that says where its maker listens.
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
  std::optional<Address> address;  // none: all of this host's
  bool chosen = false;             // by the user
};

// The interface that CONCORD_CPU_INTERFACE names, or the one on the way to the job's first host, or none if that is
// not known. Waits: a few seconds in all for one that has just come up and has no carrier or address yet. Throws
// INVALID_ARGUMENT.
Network own_network();

// The addresses from which this host's connections may come.
std::vector<Address> source_addresses();

// A number that only processes with |id| know.
uint64_t key_of(const void* id);

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
