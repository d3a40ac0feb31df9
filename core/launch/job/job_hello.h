// How a launcher introduces itself to the leader: the message hello and its parts.
#pragma once

#include <cstdint>
#include <string>

#include "core/launch/job/job_message.h"

namespace concord {

// As received: nothing here has been checked.
struct JobHello {
  int64_t node = 0;       // its machine; nnodes or more: a spare one
  int64_t node_rank = 0;  // its --node_rank; differs from |node| if it has replaced another machine
  int64_t nnodes = 0, nproc = 0, max_restarts = 0;
  int64_t worlds = 0;                       // number of world sizes that it can run with
  int64_t launcher = 0;                     // random id of this launcher
  int64_t saved_step = -1, kept_step = -1;  // its latest checkpoints, see AttemptEnd
  int64_t last_attempt = -1;                // the last one in which it ran ranks; -1: none
  std::string job = {};                     // the job of that attempt
  std::string who = {};                     // human-readable
  bool operator==(const JobHello&) const = default;
};

JobMessage hello_message(const JobHello& hello);
JobHello hello_of(const JobMessage& message);  // |message| must be a hello

}  // namespace concord
