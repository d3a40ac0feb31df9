#include "core/launch/job/rendezvous_backend.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/base/config_error.h"
#include "core/launch/job/etcd_leader.h"

namespace concord {
namespace {

EtcdOptions etcd_options(const RendezvousOptions& options) {
  return parse_etcd_options(options.endpoint, options.conf, [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  });
}

}  // namespace

void check(const RendezvousOptions& options, bool can_recover) {
  if (options.backend != "static" && !options.uses_etcd()) {
    throw ConfigError(fmt::format("--rdzv_backend is '{}'; must be static or etcd", options.backend));
  }
  if (!options.uses_etcd()) {
    if ((options.endpoint + options.id + options.conf).empty()) return;
    throw ConfigError("--rdzv_endpoint, --rdzv_id and --rdzv_conf are for etcd; add --rdzv_backend etcd");
  }
  if (!has_http()) {
    throw ConfigError(
        "--rdzv_backend is etcd, but this program was built without libcurl; install libcurl4-openssl-dev and build it "
        "again");
  }
  if (options.id.empty() || options.id.find('/') != std::string::npos) {
    throw ConfigError(
        fmt::format("--rdzv_id is '{}'; with --rdzv_backend etcd it must be a name of this job without /, "
                    "the same on all machines",
                    options.id));
  }
  etcd_options(options);
  if (can_recover) return;
  throw ConfigError(
      "--rdzv_backend etcd is for jobs on several machines that recover; add --nnodes and --max_restarts");
}

std::unique_ptr<LeaderStore> open_etcd(const RendezvousOptions& options, double rejoin_seconds) {
  const EtcdOptions etcd = etcd_options(options);
  const auto rejoin = std::chrono::ceil<std::chrono::seconds>(LeaderStore::Seconds(rejoin_seconds));
  const EtcdLeaderOptions leader{.prefix = "/concord/" + options.id,
                                 .lease_ttl = etcd.lease_ttl,
                                 .record_ttl = rejoin + 3 * etcd.lease_ttl + std::chrono::minutes(1)};
  return std::make_unique<EtcdLeader>(std::make_unique<EtcdClient>(etcd), leader);
}

}  // namespace concord
