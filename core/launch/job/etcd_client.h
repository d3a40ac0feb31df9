// Client of etcd's v3 API, through its JSON gateway.
//
// Every call tries the endpoints in turn, beginning with the last one that answered, and throws EtcdError if none does.
//
// Threads: any; calls wait for at most the timeout of a request for each endpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/launch/job/http_post.h"
#include "platform/base/thread_safety.hpp"

namespace concord {

class EtcdError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Options, named as those of etcdctl.
struct EtcdOptions {
  std::vector<std::string> endpoints = {};       // "https://10.0.0.1:2379"
  std::string cacert = {}, cert = {}, key = {};  // PEM files; empty: none
  std::string user = {}, password = {};          // empty: no authentication
  std::chrono::seconds lease_ttl{10};            // of the leader's lease
};

// Reads "HOST:2379[,...]" and the NAME=VALUE pairs of --rdzv_conf. Options that are not given come from the environment
// variables of etcdctl (ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY, ETCDCTL_USER, ETCDCTL_PASSWORD), which |variable|
// returns, or "". Throws ConfigError.
EtcdOptions parse_etcd_options(const std::string& endpoints, const std::string& conf,
                               const std::function<std::string(const char* name)>& variable);

class EtcdClient {
 public:
  using Post = std::function<HttpReply(const HttpRequest& request)>;
  explicit EtcdClient(EtcdOptions options, Post post = http_post);

  struct Value {
    std::string text = {};
    int64_t create_revision = 0;
    int64_t lease = 0;
  };
  std::optional<Value> get(const std::string& key);
  // Creates |key| if it does not exist. Returns its create_revision, or nullopt if it exists.
  std::optional<int64_t> create(const std::string& key, const std::string& value, int64_t lease);
  // Sets |key| if |guard| exists with |create_revision|. Returns whether it does.
  bool put_if(const std::string& guard, int64_t create_revision, const std::string& key, const std::string& value,
              int64_t lease);

  int64_t grant_lease(std::chrono::seconds ttl);
  bool keep_alive(int64_t lease);    // false: it has expired
  void revoke_lease(int64_t lease);  // deletes its keys, too

  std::string own_address();  // this machine's, as etcd sees it; empty before the first reply

 private:
  nlohmann::json call(const std::string& path, const nlohmann::json& body);
  HttpReply post(const std::string& endpoint, const std::string& path, const std::string& body);
  void authenticate(const std::string& endpoint);

  const EtcdOptions options_;
  const Post post_;
  std::mutex mutex_;
  size_t endpoint_ CONCORD_GUARDED_BY(mutex_) = 0;  // the last one that answered
  std::string token_ CONCORD_GUARDED_BY(mutex_);
  std::string own_address_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord
