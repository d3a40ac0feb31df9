// How the launchers of a job on several machines find their leader: the --rdzv_* options, named as torchrun's.
#pragma once

#include <string>

namespace concord {

struct RendezvousOptions {
  std::string backend = "static";  // static: machine 0 leads; etcd: the launcher that holds a lease leads
  std::string endpoint = {};       // etcd: HOST:2379[,...], with http:// or https:// or without
  std::string id = {};             // etcd: name of the job, the same on all machines and of no other job
  std::string conf = {};           // etcd: NAME=VALUE[,...], see EtcdOptions
  std::string local_addr = {};     // etcd: address of this machine; empty: the one from which it reaches etcd
  bool uses_etcd() const { return backend == "etcd"; }
  bool operator==(const RendezvousOptions&) const = default;
};

}  // namespace concord
