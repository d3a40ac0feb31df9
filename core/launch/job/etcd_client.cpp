#include "core/launch/job/etcd_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : kDigits[group >> (18 - 6 * j) & 63];
  }
  return text;
}

// Throws EtcdError if |text| is not base64.
std::string from_base64(std::string_view text) {
  std::string bytes;
  uint32_t group = 0;
  int bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) throw EtcdError("etcd's reply is not base64");
    group = group << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(group >> bits & 255);
  }
  return bytes;
}

// The gateway writes 64-bit integers as text, and leaves zeros out.
int64_t integer(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<int64_t>();
  const std::string text = found->is_string() ? found->get<std::string>() : "";
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw EtcdError(fmt::format("etcd's reply has no integer {}", name));
  }
  return value;
}

std::optional<EtcdClient::Value> first_value(const json& range) {
  const auto values = range.find("kvs");
  if (values == range.end() || !values->is_array() || values->empty()) return std::nullopt;
  const json& value = values->front();
  return EtcdClient::Value{.text = from_base64(value.value("value", "")),
                           .create_revision = integer(value, "create_revision"),
                           .lease = integer(value, "lease")};
}

json put_request(const std::string& key, const std::string& value, int64_t lease) {
  return {{"request_put", {{"key", to_base64(key)}, {"value", to_base64(value)}, {"lease", std::to_string(lease)}}}};
}

// Holds if |key| was created at |revision|; 0: if it does not exist.
json compare_created(const std::string& key, int64_t revision) {
  return {{"key", to_base64(key)},
          {"target", "CREATE"},
          {"result", "EQUAL"},
          {"create_revision", std::to_string(revision)}};
}

// Why etcd has rejected a request; empty if it has not.
std::string rejection(const HttpReply& reply) {
  if (reply.status == 0) return reply.error;
  if (reply.status == 200) return "";
  const json object = json_or_discarded(reply.body);
  for (const char* name : {"message", "error"}) {
    if (object.is_object() && object.contains(name) && object[name].is_string()) return object[name];
  }
  return fmt::format("HTTP status {}", reply.status);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::chrono::seconds parse_ttl(const std::string& text) {
  int seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size() && seconds >= 1 && seconds <= 3600) {
    return std::chrono::seconds(seconds);
  }
  throw ConfigError(fmt::format("--rdzv_conf: lease_ttl is '{}'; must be from 1 to 3600 seconds", text));
}

}  // namespace

EtcdOptions parse_etcd_options(const std::string& endpoints, const std::string& conf,
                               const std::function<std::string(const char* name)>& variable) {
  EtcdOptions options{.cacert = variable("ETCDCTL_CACERT"),
                      .cert = variable("ETCDCTL_CERT"),
                      .key = variable("ETCDCTL_KEY"),
                      .user = variable("ETCDCTL_USER"),
                      .password = variable("ETCDCTL_PASSWORD")};
  std::string protocol;
  for (const std::string& pair : split(conf)) {
    const std::string name = pair.substr(0, pair.find('='));
    const std::string value = pair.size() > name.size() ? pair.substr(name.size() + 1) : "";
    std::string* const text = name == "cacert"     ? &options.cacert
                              : name == "cert"     ? &options.cert
                              : name == "key"      ? &options.key
                              : name == "user"     ? &options.user
                              : name == "password" ? &options.password
                              : name == "protocol" ? &protocol
                                                   : nullptr;
    if (text != nullptr) {
      *text = value;
    } else if (name == "lease_ttl") {
      options.lease_ttl = parse_ttl(value);
    } else {
      throw ConfigError(
          fmt::format("--rdzv_conf: unknown name '{}'; etcd has cacert, cert, key, lease_ttl, password, "
                      "protocol and user, e.g. --rdzv_conf cacert=ca.pem,user=name:password",
                      name));
    }
  }
  if (const size_t colon = options.user.find(':'); colon != std::string::npos) {
    options.password = options.user.substr(colon + 1);
    options.user.resize(colon);
  }
  if (protocol.empty()) protocol = options.cacert.empty() && options.cert.empty() ? "http" : "https";
  for (const std::string& endpoint : split(endpoints)) {
    const bool has_protocol = endpoint.starts_with("http://") || endpoint.starts_with("https://");
    options.endpoints.push_back(has_protocol ? endpoint : protocol + "://" + endpoint);
  }
  if (options.endpoints.empty() || (protocol != "http" && protocol != "https")) {
    throw ConfigError(
        fmt::format("--rdzv_endpoint is '{}' with protocol '{}'; give HOST:2379[,HOST:2379...] and http or "
                    "https",
                    endpoints, protocol));
  }
  return options;
}

EtcdClient::EtcdClient(EtcdOptions options, Post post) : options_(std::move(options)), post_(std::move(post)) {}

std::string EtcdClient::own_address() {
  const std::lock_guard lock(mutex_);
  return own_address_;
}

HttpReply EtcdClient::post(const std::string& endpoint, const std::string& path, const std::string& body) {
  HttpRequest request{.url = endpoint + path,
                      .body = body,
                      .cacert = options_.cacert,
                      .cert = options_.cert,
                      .key = options_.key,
                      .timeout = std::clamp<std::chrono::milliseconds>(
                          options_.lease_ttl / 4, std::chrono::milliseconds(500), std::chrono::milliseconds(2000))};
  {
    const std::lock_guard lock(mutex_);
    request.authorization = token_;
  }
  return post_(request);
}

void EtcdClient::authenticate(const std::string& endpoint) {
  const json body = {{"name", options_.user}, {"password", options_.password}};
  const HttpReply reply = post(endpoint, "/v3/auth/authenticate", body.dump());
  if (const std::string why = rejection(reply); !why.empty()) {
    throw EtcdError(fmt::format("etcd at {} does not authenticate the user '{}': {}", endpoint, options_.user, why));
  }
  const std::lock_guard lock(mutex_);
  token_ = json_or_discarded(reply.body).value("token", "");
}

json EtcdClient::call(const std::string& path, const json& body) {
  size_t first = 0;
  {
    const std::lock_guard lock(mutex_);
    first = endpoint_;
  }
  std::string problems;
  for (size_t i = 0; i < options_.endpoints.size(); ++i) {
    const size_t index = (first + i) % options_.endpoints.size();
    const std::string& endpoint = options_.endpoints[index];
    HttpReply reply = post(endpoint, path, body.dump());
    // Tokens expire after five minutes; without one etcd says that the user is empty.
    if (!options_.user.empty() && (reply.status == 400 || reply.status == 401)) {
      authenticate(endpoint);
      reply = post(endpoint, path, body.dump());
    }
    std::string why = rejection(reply);
    json object = why.empty() ? json_or_discarded(reply.body) : json();
    if (why.empty() && !object.is_object()) why = "its reply is not JSON";
    if (why.empty()) {
      const std::lock_guard lock(mutex_);
      endpoint_ = index;
      own_address_ = reply.own_address;
      return object;
    }
    problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", endpoint, why);
  }
  throw EtcdError(fmt::format("etcd does not answer ({})", problems));
}

std::optional<EtcdClient::Value> EtcdClient::get(const std::string& key) {
  return first_value(call("/v3/kv/range", {{"key", to_base64(key)}}));
}

std::optional<int64_t> EtcdClient::create(const std::string& key, const std::string& value, int64_t lease) {
  const json reply =
      call("/v3/kv/txn", {{"compare", json::array({compare_created(key, 0)})},
                          {"success", json::array({put_request(key, value, lease)})},
                          {"failure", json::array({json{{"request_range", {{"key", to_base64(key)}}}}})}});
  if (reply.value("succeeded", false)) return integer(reply.at("header"), "revision");
  // The reply to an earlier try may have been lost.
  const std::optional<Value> found = first_value(reply.at("responses").at(0).at("response_range"));
  return found && found->lease == lease ? std::optional(found->create_revision) : std::nullopt;
}

bool EtcdClient::put_if(const std::string& guard, int64_t create_revision, const std::string& key,
                        const std::string& value, int64_t lease) {
  return call("/v3/kv/txn", {{"compare", json::array({compare_created(guard, create_revision)})},
                             {"success", json::array({put_request(key, value, lease)})}})
      .value("succeeded", false);
}

int64_t EtcdClient::grant_lease(std::chrono::seconds ttl) {
  const int64_t lease = integer(call("/v3/lease/grant", {{"TTL", std::to_string(ttl.count())}}), "ID");
  if (lease == 0) throw EtcdError("etcd has granted no lease");
  return lease;
}

bool EtcdClient::keep_alive(int64_t lease) {
  const json reply = call("/v3/lease/keepalive", {{"ID", std::to_string(lease)}});
  const auto result = reply.find("result");
  return result != reply.end() && result->is_object() && integer(*result, "TTL") > 0;
}

void EtcdClient::revoke_lease(int64_t lease) { call("/v3/lease/revoke", {{"ID", std::to_string(lease)}}); }

}  // namespace concord
