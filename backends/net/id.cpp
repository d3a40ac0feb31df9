// The address in an id, the network interface for it, and the launcher's variables about hosts.
#include "backends/net/id.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backends/net/control.h"
#include "backends/shm/communicator.h"
#include "platform/sdk/plugin.hpp"

namespace concord::net {
namespace {

constexpr uint64_t kMark = 0x54454e44524f4e43;  // "CNORDNET": ids without an address have random bytes here
constexpr size_t kPlace = 48;                   // after the bytes from which backends/shm derives a name

// How long an interface may take to get a carrier and an address: cables, switches and DHCP take a while.
constexpr std::chrono::seconds kSettling{5};

constexpr Address kLoopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

std::optional<Address> address_of(const sockaddr* from) {
  Address address{};
  if (from == nullptr) return std::nullopt;
  if (from->sa_family == AF_INET) {
    address[10] = address[11] = 0xff;
    std::memcpy(address.data() + 12, &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
    return address;
  }
  if (from->sa_family != AF_INET6) return std::nullopt;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&v6)) return std::nullopt;  // means nothing on another host
  std::memcpy(address.data(), &v6, address.size());
  return address;
}

bool is_loopback(const Address& address) {
  const auto* v6 = reinterpret_cast<const in6_addr*>(address.data());
  return IN6_IS_ADDR_V4MAPPED(v6) ? address[12] == 127 : IN6_IS_ADDR_LOOPBACK(v6);
}

// The job's first host, which every rank reaches; null if it is not known. A job knows it under every launcher.
const char* master_host() {
  const char* told = sdk::config("comm.master");
  return told != nullptr ? told : std::getenv("MASTER_ADDR");
}

// This host's address on the way to the job's first host. |lacks_route|: there is none, because no way leads there.
std::optional<Address> address_towards_master(bool* lacks_route) {
  const char* master = master_host();
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (master == nullptr || ::getaddrinfo(master, "9", &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  *lacks_route = true;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const UniqueFd socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (!socket || ::connect(socket.get(), each->ai_addr, each->ai_addrlen) != 0) continue;  // sends nothing
    *lacks_route = false;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    const auto address = address_of(reinterpret_cast<sockaddr*>(&own));
    if (address && !is_loopback(*address)) return address;
  }
  // A loopback address of this host's own name (Debian's 127.0.1.1) does not tell which interface reaches other hosts.
  const std::string_view text = master;
  if (text == "localhost" || text == "::1" || text.starts_with("127.")) return kLoopback;
  return std::nullopt;
}

struct Interface {
  std::string name;  // or label: "eth0:1" is an address of eth0
  Address address{};
  bool has_carrier = false;
};

// Those that are up, with one entry per address; IPv4 first.
std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
      const bool up = (each->ifa_flags & IFF_UP) != 0 && each->ifa_addr != nullptr;
      if (!up || each->ifa_addr->sa_family != family) continue;
      const bool has_carrier = (each->ifa_flags & IFF_RUNNING) != 0;
      if (const auto address = address_of(each->ifa_addr)) found.push_back({each->ifa_name, *address, has_carrier});
    }
  }
  return found;
}

std::string device_of(const std::string& label) { return label.substr(0, label.find(':')); }

// A network that may not be ready: an interface that has just come up has no carrier, or no address yet.
struct FoundNetwork {
  Network network;
  bool is_ready = false;
};

FoundNetwork named_network(const std::string& name) {
  for (const Interface& each : interfaces()) {
    if (each.name == name) return {{device_of(name), each.address, true}, each.has_carrier};
  }
  return {{device_of(name), std::nullopt, true}, ::if_nametoindex(device_of(name).c_str()) == 0};
}

FoundNetwork network_towards_master() {
  bool lacks_route = false;
  FoundNetwork found{{.interface = {}, .address = address_towards_master(&lacks_route)}, !lacks_route};
  for (const Interface& each : interfaces()) {
    if (each.address != found.network.address) continue;
    found = {{device_of(each.name), each.address}, each.has_carrier};
  }
  return found;
}

[[noreturn]] void refuse_interface(const std::string& name) {
  std::string names;
  for (const Interface& each : interfaces()) {
    names += (names.empty() ? "" : ", ") + each.name + " (" + to_text(each.address) + ")";
  }
  sdk::invalid(
      sdk::text("CONCORD_CPU_INTERFACE is \"%s\", which is not a network interface with an address; there are %s",
                name.c_str(), names.c_str()));
}

std::vector<Address> own_addresses() {
  if (const Network network = own_network(); network.address) return {*network.address};
  std::vector<Address> addresses;
  for (const Interface& each : interfaces()) {
    if (!is_loopback(each.address)) addresses.push_back(each.address);
  }
  if (addresses.empty()) addresses.push_back(kLoopback);
  return addresses;
}

int64_t number_in(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? 0 : std::strtoll(value, nullptr, 10);
}

}  // namespace

Network own_network() {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point patience_ends = Clock::now() + kSettling;
  const char* variable = std::getenv("CONCORD_CPU_INTERFACE");
  const std::string name = variable != nullptr ? variable : "";
  for (;;) {
    const FoundNetwork found = name.empty() ? network_towards_master() : named_network(name);
    if (!found.is_ready && Clock::now() < patience_ends) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } else if (!name.empty() && !found.network.address) {
      refuse_interface(name);
    } else {
      return found.network;
    }
  }
}

// A loopback address does not identify a host, unless the job uses no other.
std::vector<Address> source_addresses() {
  std::vector<Address> addresses = own_addresses();
  for (const Interface& each : interfaces()) {
    const bool is_there = std::find(addresses.begin(), addresses.end(), each.address) != addresses.end();
    if (!is_loopback(each.address) && !is_there) addresses.push_back(each.address);
  }
  return addresses;
}

uint64_t key_of(const void* id) {
  constexpr size_t kKeyPlace = shm::kUniqueIdBytes - shm::kHostBytes - sizeof(uint64_t);
  static_assert(kPlace + sizeof kMark + sizeof(Where) <= kKeyPlace);  // random bytes of their own
  uint64_t key = 0;
  std::memcpy(&key, static_cast<const char*>(id) + kKeyPlace, sizeof key);
  return key;
}

void Where::write(void* id) const {
  static_assert(kPlace + sizeof kMark + sizeof(Where) <= static_cast<size_t>(shm::kUniqueIdBytes - shm::kHostBytes));
  auto* out = static_cast<char*>(id) + kPlace;
  std::memcpy(out, &kMark, sizeof kMark);
  std::memcpy(out + sizeof kMark, this, sizeof *this);
}

std::optional<Where> Where::read(const void* id) {
  const auto* in = static_cast<const char*>(id) + kPlace;
  if (std::memcmp(in, &kMark, sizeof kMark) != 0) return std::nullopt;
  Where where;
  std::memcpy(&where, in + sizeof kMark, sizeof where);
  where.count = std::min<uint16_t>(where.count, static_cast<uint16_t>(where.addresses.size()));
  return where;
}

Where Where::here(uint16_t port) {
  Where where;
  where.port = port;
  for (const Address& each : own_addresses()) {
    if (where.count < where.addresses.size()) where.addresses[where.count++] = each;
  }
  return where;
}

std::string Where::text() const {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + to_text(addresses[i]);
  return text + " port " + std::to_string(port);
}

bool has_address(const void* id) { return Where::read(id).has_value(); }

bool job_spans_hosts() {
  constexpr const char* kSizes[][2] = {{"WORLD_SIZE", "LOCAL_WORLD_SIZE"},
                                       {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                       {"PMI_SIZE", "MPI_LOCALNRANKS"}};
  for (const auto& [all, local] : kSizes) {
    if (number_in(local) > 0 && number_in(all) > number_in(local)) return true;
  }
  return number_in("SLURM_STEP_NUM_NODES") > 1 || number_in("SLURM_NNODES") > 1;
}

}  // namespace concord::net
