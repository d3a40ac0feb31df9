// How a launcher introduces itself to the one that leads, or that may be elected to: the message hello with its parts.
#pragma once

#include <cstdint>
#include <string>

#include "core/launch/job/job_message.h"
#include "core/launch/job/membership.h"

namespace concord {

// As it came: nothing here is known to be right.
struct JobHello {
  int64_t node = 0;       // its machine; from nnodes on: a spare one
  int64_t node_rank = 0;  // its --node_rank; differs from |node| if it replaces another machine
  int64_t nnodes = 0, nproc = 0, max_restarts = 0;
  int64_t worlds = 0;                       // how many numbers of ranks will do
  int64_t launcher = 0;                     // its number
  int64_t port = 0;                         // where it listens
  int64_t saved_step = -1, kept_step = -1;  // its newest checkpoints, as AttemptEnd has them
  bool leader_has_ended = false;            // the connection to its leader has ended; it was not silent
  std::string job = {};                     // that it was in when it has lost its leader; empty: none
  std::string address = {};                 // where it listens
  Membership roster = {};                   // of that job
  std::string who = {};                     // for people
  bool operator==(const JobHello&) const = default;
};

JobMessage hello_message(const JobHello& hello);
JobHello hello_of(const JobMessage& message);  // whose kind is hello
RosterEntry door_of(const JobHello& hello);

}  // namespace concord
