#include "core/launch/job/job_hello.h"

#include <fmt/format.h>

namespace concord {

JobMessage hello_message(const JobHello& hello) {
  return {.kind = JobMessage::Kind::hello,
          .numbers = {hello.node, hello.nnodes, hello.nproc, hello.max_restarts, hello.worlds, hello.launcher,
                      hello.saved_step, hello.kept_step, hello.last_attempt, hello.node_rank},
          .text = fmt::format("{}|{}", hello.job, hello.who)};
}

JobHello hello_of(const JobMessage& message) {
  const std::vector<int64_t>& n = message.numbers;
  const size_t bar = message.text.find('|');
  return {.node = n.at(0),
          .node_rank = n.at(9),
          .nnodes = n.at(1),
          .nproc = n.at(2),
          .max_restarts = n.at(3),
          .worlds = n.at(4),
          .launcher = n.at(5),
          .saved_step = n.at(6),
          .kept_step = n.at(7),
          .last_attempt = n.at(8),
          .job = message.text.substr(0, bar),
          .who = bar == std::string::npos ? "" : message.text.substr(bar + 1)};
}

}  // namespace concord
