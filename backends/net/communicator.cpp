#include "backends/net/communicator.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backends/net/control.h"
#include "backends/net/hosts.h"
#include "backends/net/id.h"
#include "backends/net/module.h"
#include "backends/net/spanning.h"
#include "backends/shm/communicator.h"
#include "backends/shm/process.h"
#include "platform/sdk/checks.hpp"

namespace concord::net {
namespace {

// A rank's first record, followed by the addresses of its host. control.cpp finds the keeper's rank in it.
struct Self {
  uint64_t host = 0;
  int64_t pid = 0;
};

struct Hosts {
  HostMap map;
  std::vector<Address> others;  // addresses of the other hosts
};

Hosts exchange_hosts(Line& line) {
  const Self self{shm::this_host(), ::getpid()};
  const std::vector<Address> own = source_addresses();
  std::string mine(reinterpret_cast<const char*>(&self), sizeof self);
  mine.append(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Address));
  Hosts hosts;
  std::vector<uint64_t> identities;
  for (const std::string& record : line.exchange(mine)) {
    Self its;
    if (record.size() >= sizeof its) std::memcpy(&its, record.data(), sizeof its);
    identities.push_back(its.host);
    for (size_t at = sizeof its; its.host != self.host && at + sizeof(Address) <= record.size();
         at += sizeof(Address)) {
      std::memcpy(hosts.others.emplace_back().data(), record.data() + at, sizeof(Address));
    }
  }
  hosts.map = map_hosts(identities);
  return hosts;
}

// The id for the ranks of this host among themselves: shm's check that its maker is here does not apply.
std::array<std::byte, shm::kUniqueIdBytes> local_id(const void* id) {
  std::array<std::byte, shm::kUniqueIdBytes> local{};
  std::memcpy(local.data(), id, local.size() - shm::kHostBytes);
  return local;
}

void exchange_addresses(Line& line, Port& port, int32_t rank) {
  const std::string mine(reinterpret_cast<const char*>(port.address()), port.address_bytes());
  const std::vector<std::string> all = line.exchange(mine);
  for (int32_t r = 0; r < static_cast<int32_t>(all.size()); ++r) {
    const std::string& address = all[static_cast<size_t>(r)];
    if (r != rank) port.set_address(r, reinterpret_cast<const std::byte*>(address.data()), address.size());
  }
}

// Leaves |line| where it is unless all goes well.
std::unique_ptr<shm::Engine> join(int32_t world, int32_t rank, const void* id, std::unique_ptr<Line>& line,
                                  const shm::Options& options) {
  auto [map, others] = exchange_hosts(*line);
  const auto here = local_id(id);
  if (map.host_count() == 1) return shm::Communicator::connect(world, rank, here.data(), shm::kUniqueIdBytes, options);
  const Network network = own_network();
  auto port = open_port({rank, world, key_of(id), network.interface.c_str(), network.chosen, others});
  try {
    exchange_addresses(*line, *port, rank);
    port->drive(false);  // peers may connect from now on
    shm::Options local_options = options;
    const auto own = static_cast<size_t>(map.host[static_cast<size_t>(rank)]);
    local_options.numbers = map.ranks[own];
    auto local =
        shm::Communicator::connect(static_cast<int32_t>(map.ranks[own].size()), map.place[static_cast<size_t>(rank)],
                                   here.data(), shm::kUniqueIdBytes, local_options);
    return std::make_unique<Spanning>(rank, std::move(map), std::move(local), std::move(port), std::move(line),
                                      options);
  } catch (...) {
    if (port != nullptr) port.release()->retire();
    throw;
  }
}

}  // namespace

std::unique_ptr<shm::Engine> connect(int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                     const shm::Options& options) {
  sdk::check_init(world, rank, id, id_bytes, shm::kUniqueIdBytes);
  if (world == 1 && has_address(id)) {
    forget_id(id);
    return shm::Communicator::connect(world, rank, local_id(id).data(), id_bytes, options);
  }
  if (!has_address(id)) return shm::Communicator::connect(world, rank, id, id_bytes, options);
  auto line = Line::open({world, rank, id, options.name, options.timeout});
  try {
    return join(world, rank, id, line, options);
  } catch (const sdk::Failure& failure) {
    line->report(failure.status(), failure.what());
    throw;
  }
}

}  // namespace concord::net
