#include "core/launch/job/job_hello.h"

#include <fmt/format.h>

#include <array>

namespace concord {
namespace {

// "JOB|ADDRESS|ROSTER|who", with nothing where there is none.
std::array<std::string, 4> hello_parts(std::string_view text) {
  std::array<std::string, 4> parts;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const size_t bar = text.find('|');
    parts[i] = text.substr(0, bar);
    if (bar == std::string_view::npos) return parts;
    text.remove_prefix(bar + 1);
  }
  parts.back() = text;
  return parts;
}

}  // namespace

JobMessage hello_message(const JobHello& hello) {
  return {.kind = JobMessage::Kind::hello,
          .numbers = {hello.node, hello.nnodes, hello.nproc, hello.max_restarts, hello.worlds, hello.launcher,
                      hello.port, hello.saved_step, hello.kept_step, hello.leader_has_ended, hello.node_rank},
          .text = fmt::format("{}|{}|{}|{}", hello.job, hello.address, pack(hello.roster), hello.who)};
}

JobHello hello_of(const JobMessage& message) {
  const std::vector<int64_t>& n = message.numbers;
  const auto [job, address, roster, who] = hello_parts(message.text);
  return {.node = n.at(0),
          .node_rank = n.at(10),
          .nnodes = n.at(1),
          .nproc = n.at(2),
          .max_restarts = n.at(3),
          .worlds = n.at(4),
          .launcher = n.at(5),
          .port = n.at(6),
          .saved_step = n.at(7),
          .kept_step = n.at(8),
          .leader_has_ended = n.at(9) != 0,
          .job = job,
          .address = address,
          .roster = unpack_roster(roster).value_or(Membership{}),
          .who = who};
}

RosterEntry door_of(const JobHello& hello) {
  return {.launcher = hello.launcher,
          .node = static_cast<int>(hello.node),
          .port = static_cast<int>(hello.port),
          .address = hello.address};
}

}  // namespace concord
