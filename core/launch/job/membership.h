// The record that a leader keeps in its store (leader_store.h) for the launcher that leads after it: the last attempt
// and the machines that took part.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace concord {

struct Membership {
  int attempt = -1;                     // the last one that has started; -1: none
  std::string job = {};                 // name of the job
  std::map<int, std::string> who = {};  // launchers by machine: "process 4711 on node3"
  bool operator==(const Membership&) const = default;
};

// Where a leader listens.
struct LeaderAddress {
  int64_t launcher = 0;  // its random id; 0: not known
  std::string address = {};
  int port = 0;
  std::string who = {};  // human-readable
  bool operator==(const LeaderAddress&) const = default;
};

std::string to_json(const Membership& membership);
std::string to_json(const LeaderAddress& leader);
// Return nullopt if |text| is anything else.
std::optional<Membership> parse_membership(std::string_view text);
std::optional<LeaderAddress> parse_leader(std::string_view text);

}  // namespace concord
