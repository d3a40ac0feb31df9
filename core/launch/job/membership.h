// What a launcher has to know to go on without its leader: who decides on another one, and where these listen.
// Printable, and parsed as input from outside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/job/job_state.h"

namespace concord {

struct RosterEntry {
  int64_t launcher = 0;
  int node = 0;
  int port = 0;
  std::string address = {};
  bool operator==(const RosterEntry&) const = default;
};

struct Membership {
  Electorate electorate = {};
  std::vector<RosterEntry> voters = {};  // those of electorate.now
  bool operator==(const Membership&) const = default;
};

std::string pack(
    const Membership& roster);  // "7 now,11,11,12 11,0,29500,10.0.0.1 12,1,40001,10.0.0.2"; empty: no attempt yet
// Nothing where |text| is none.
std::optional<Membership> unpack_roster(std::string_view text);

}  // namespace concord
