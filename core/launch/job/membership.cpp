#include "core/launch/job/membership.h"

#include <charconv>

#include "core/base/parse_json.h"

namespace concord {
namespace {

constexpr int kMaxMachine = 1 << 15;

// Returns the integer |name| of |object| if it is one between |lowest| and |highest|.
std::optional<int64_t> integer(const nlohmann::json& object, const char* name, int64_t lowest, int64_t highest) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  const auto value = found->get<int64_t>();
  return value < lowest || value > highest ? std::nullopt : std::optional(value);
}

std::string text(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string to_json(const Membership& membership) {
  nlohmann::json machines = nlohmann::json::object();
  for (const auto& [node, who] : membership.who) machines[std::to_string(node)] = who;
  return nlohmann::json{{"attempt", membership.attempt}, {"job", membership.job}, {"machines", machines}}.dump();
}

std::string to_json(const LeaderAddress& leader) {
  return nlohmann::json{
      {"launcher", leader.launcher}, {"address", leader.address}, {"port", leader.port}, {"who", leader.who}}
      .dump();
}

std::optional<Membership> parse_membership(std::string_view given) {
  const auto object = json_or_discarded(given);
  if (!object.is_object()) return std::nullopt;
  const auto attempt = integer(object, "attempt", 0, INT32_MAX - 1);
  const auto machines = object.find("machines");
  if (!attempt || machines == object.end() || !machines->is_object()) return std::nullopt;
  Membership membership{.attempt = static_cast<int>(*attempt), .job = text(object, "job")};
  for (const auto& [name, who] : machines->items()) {
    int node = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), node);
    const bool is_node = error == std::errc() && end == name.data() + name.size() && node >= 0 && node <= kMaxMachine;
    if (!is_node || !who.is_string()) return std::nullopt;
    membership.who[node] = who.get<std::string>();
  }
  return membership;
}

std::optional<LeaderAddress> parse_leader(std::string_view given) {
  const auto object = json_or_discarded(given);
  if (!object.is_object()) return std::nullopt;
  const auto launcher = integer(object, "launcher", 1, INT64_MAX), port = integer(object, "port", 1, 65535);
  if (!launcher || !port || text(object, "address").empty()) return std::nullopt;
  return LeaderAddress{.launcher = *launcher,
                       .address = text(object, "address"),
                       .port = static_cast<int>(*port),
                       .who = text(object, "who")};
}

}  // namespace concord
