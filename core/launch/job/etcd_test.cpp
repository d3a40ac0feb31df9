// EtcdClient and EtcdLeader, with a small etcd in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/launch/job/etcd_leader.h"

namespace concord {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Replies as etcd's gateway does. Threads: any.
class FakeEtcd {
 public:
  struct Entry {
    std::string value;
    int64_t revision, lease;
  };
  HttpReply operator()(const HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    const size_t path = request.url.find('/', 8);
    if (down_.contains(request.url.substr(0, path))) return {.error = "connection refused"};
    if (!token_.empty() && request.url.ends_with("/authenticate")) return {200, json{{"token", token_}}.dump(), "", ""};
    if (!token_.empty() && request.authorization != token_) {
      return {401, R"({"error":"etcdserver: invalid auth token","code":16})", "", ""};
    }
    const json reply = answer(request.url.substr(path), json_or_discarded(request.body));
    if (loses_reply_ && reply.contains("succeeded")) {
      loses_reply_ = false;
      return {.error = "timed out"};
    }
    return {200, reply.dump(), "", "10.0.0.9"};
  }
  void expire() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    leases_.clear();
  }
  void set_down(std::set<std::string> endpoints) {
    const std::lock_guard lock(mutex_);
    down_ = std::move(endpoints);
  }
  void set_token(const std::string& token) { token_ = token; }
  void lose_reply() { loses_reply_ = true; }

 private:
  json answer(const std::string& path, const json& body) {
    if (path == "/v3/lease/grant") {
      leases_.insert(++revision_);
      return {{"ID", std::to_string(revision_)}, {"TTL", body["TTL"]}};
    }
    if (path == "/v3/lease/keepalive") {
      json result = {{"ID", body["ID"]}};
      if (leases_.contains(std::stoll(body["ID"].get<std::string>()))) result["TTL"] = "10";
      return {{"result", result}};
    }
    if (path == "/v3/lease/revoke") {
      const int64_t lease = std::stoll(body["ID"].get<std::string>());
      std::erase_if(entries_, [&](const auto& each) { return each.second.lease == lease; });
      return json::object();
    }
    if (path == "/v3/kv/range") return range(body["key"]);
    return txn(body);
  }
  json range(const std::string& key) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return json::object();
    return {{"kvs", json::array({json{{"value", found->second.value},
                                      {"create_revision", std::to_string(found->second.revision)},
                                      {"lease", std::to_string(found->second.lease)}}})}};
  }
  json txn(const json& body) {
    const json& compare = body["compare"][0];
    const auto found = entries_.find(compare["key"]);
    const int64_t created = found == entries_.end() ? 0 : found->second.revision;
    if (std::to_string(created) != compare["create_revision"].get<std::string>()) {
      if (!body.contains("failure")) return {{"header", {{"revision", "9"}}}};
      const json key = body["failure"][0]["request_range"]["key"];
      return {{"header", {{"revision", "9"}}}, {"responses", json::array({json{{"response_range", range(key)}}})}};
    }
    const json& put = body["success"][0]["request_put"];
    entries_[put["key"]] = {put["value"], ++revision_, std::stoll(put["lease"].get<std::string>())};
    return {{"header", {{"revision", std::to_string(revision_)}}}, {"succeeded", true}};
  }

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::set<int64_t> leases_;
  std::set<std::string> down_;
  std::string token_;
  bool loses_reply_ = false;
  int64_t revision_ = 100;
};

std::unique_ptr<EtcdClient> client_of(FakeEtcd* etcd, const std::string& user = "") {
  return std::make_unique<EtcdClient>(
      EtcdOptions{.endpoints = {"http://a:1", "http://b:1"}, .user = user, .password = "p", .lease_ttl = 1s},
      [etcd](const HttpRequest& request) { return (*etcd)(request); });
}

TEST(EtcdClient, StoresValuesUnderALease) {
  FakeEtcd etcd;
  const auto client = client_of(&etcd);
  EXPECT_FALSE(client->get("key"));
  const int64_t lease = client->grant_lease(10s);
  for (const std::string value : {"", "a", "ab", "abc", "\xff\x00 \n"}) {
    const std::string key = "key" + value;
    const int64_t revision = client->create(key, value, lease).value();
    EXPECT_EQ(client->get(key)->text, value);
    EXPECT_EQ(client->get(key)->create_revision, revision);
    EXPECT_FALSE(client->create(key, "other", client->grant_lease(10s)));
    EXPECT_TRUE(client->put_if(key, revision, key + "/more", "more", lease));
    EXPECT_FALSE(client->put_if(key, revision + 1000, key + "/more", "other", lease));
    EXPECT_EQ(client->get(key + "/more")->text, "more");
  }
  EXPECT_TRUE(client->keep_alive(lease));
  client->revoke_lease(lease);
  EXPECT_FALSE(client->get("keya"));
  EXPECT_FALSE(client->keep_alive(lease + 1000));
  EXPECT_EQ(client->own_address(), "10.0.0.9");
}

TEST(EtcdClient, AsksTheNextEndpointIfOneDoesNotAnswer) {
  FakeEtcd etcd;
  const auto client = client_of(&etcd);
  etcd.set_down({"http://a:1"});
  const int64_t lease = client->grant_lease(10s);
  etcd.set_down({"http://a:1", "http://b:1"});
  try {
    client->get("key");
    FAIL();
  } catch (const EtcdError& error) {
    EXPECT_STREQ(error.what(), "etcd does not answer (http://b:1: connection refused; http://a:1: connection refused)");
  }
  // The first endpoint has created it, and its reply was lost.
  etcd.set_down({});
  etcd.lose_reply();
  EXPECT_TRUE(client->create("key", "value", lease));
}

TEST(EtcdClient, AuthenticatesAgainWhenItsTokenHasExpired) {
  FakeEtcd etcd;
  etcd.set_token("first");
  const auto client = client_of(&etcd, "user");
  EXPECT_NO_THROW(client->get("key"));
  etcd.set_token("second");
  EXPECT_NO_THROW(client->get("key"));
  EXPECT_THROW(client_of(&etcd)->get("key"), EtcdError);
}

TEST(EtcdClient, ReadsTheOptionsOfEtcdctl) {
  const auto none = [](const char*) { return std::string(); };
  EtcdOptions options = parse_etcd_options("a:2379,https://b:2379", "lease_ttl=3,user=me:a:b", none);
  EXPECT_THAT(options.endpoints, ElementsAre("http://a:2379", "https://b:2379"));
  EXPECT_EQ(options.user, "me");
  EXPECT_EQ(options.password, "a:b");
  EXPECT_EQ(options.lease_ttl, 3s);
  const auto variable = [](const char* name) { return std::string(name) + ".pem"; };
  options = parse_etcd_options("a:2379", "cert=c,key=k,protocol=http", variable);
  EXPECT_THAT(options.endpoints, ElementsAre("http://a:2379"));
  EXPECT_EQ(options.cacert, "ETCDCTL_CACERT.pem");
  EXPECT_EQ(options.cert, "c");
  EXPECT_EQ(parse_etcd_options("a:2379", "", variable).endpoints[0], "https://a:2379");
  for (const char* conf : {"lease_ttl=0", "lease_ttl=x", "ttl=3", "protocol=ftp"}) {
    EXPECT_THROW(parse_etcd_options("a:2379", conf, none), ConfigError) << conf;
  }
  EXPECT_THROW(parse_etcd_options("", "", none), ConfigError);
}

class Leaders : public ::testing::Test {
 protected:
  std::unique_ptr<EtcdLeader> leader() {
    return std::make_unique<EtcdLeader>(client_of(&etcd_),
                                        EtcdLeaderOptions{.prefix = "/concord/job", .lease_ttl = 1s, .record_ttl = 9s});
  }
  static LeaderAddress address(int64_t launcher) {
    return {.launcher = launcher, .address = "10.0.0.1", .port = 4000, .who = "process 1"};
  }
  template <class Condition>
  static bool poll(Condition condition) {
    for (int i = 0; i < 6'000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  }
  bool campaign(EtcdLeader* candidate, int64_t launcher) {
    return poll([&] {
      candidate->campaign(address(launcher));
      candidate->leader();
      return candidate->leads();
    });
  }
  FakeEtcd etcd_;
};

TEST_F(Leaders, OneLeadsAtATimeAndTheNextOneFindsItsRecord) {
  const auto first = leader(), second = leader();
  ASSERT_TRUE(campaign(first.get(), 7));
  EXPECT_EQ(first->own_address(), "10.0.0.9");
  EXPECT_TRUE(poll([&] {
    second->campaign(address(8));
    return second->leader().has_value();
  }));
  EXPECT_EQ(second->leader(), address(7));
  const Membership membership{.attempt = 3, .job = "job", .who = {{0, "process 1"}}};
  EXPECT_TRUE(first->record(membership));
  EXPECT_FALSE(second->record({.attempt = 4, .job = "job", .who = {}}));
  EXPECT_TRUE(poll([&] { return second->leader() && second->membership() == membership; }));
  EXPECT_FALSE(second->leads());
  first->resign();
  EXPECT_FALSE(first->leads());
  ASSERT_TRUE(campaign(second.get(), 8));
  EXPECT_EQ(second->membership(), Membership{});
}

TEST_F(Leaders, OneWhoseLeaseHasExpiredDoesNotLead) {
  const auto first = leader();
  ASSERT_TRUE(campaign(first.get(), 7));
  etcd_.expire();
  EXPECT_FALSE(first->record({.attempt = 4, .job = "job", .who = {}}));
  EXPECT_FALSE(first->leads());
  ASSERT_TRUE(campaign(first.get(), 7));
  etcd_.expire();
  EXPECT_TRUE(poll([&] { return !first->leads(); }));
}

// It counts the time itself, and leads again if etcd has kept its lease.
TEST_F(Leaders, OneThatDoesNotReachEtcdDoesNotLead) {
  const auto first = leader();
  ASSERT_TRUE(campaign(first.get(), 7));
  etcd_.set_down({"http://a:1", "http://b:1"});
  EXPECT_TRUE(poll([&] { return !first->leads(); }));
  EXPECT_THAT(first->problem(), HasSubstr("connection refused"));
  etcd_.set_down({});
  EXPECT_TRUE(poll([&] { return first->leads(); }));
  EXPECT_TRUE(poll([&] { return first->problem().empty(); }));
}

}  // namespace
}  // namespace concord
