// What launchers of one job say to each other: a word, some numbers and a text. Printable, and parsed as input from
// outside: a text that is none of these is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/job/job_state.h"

namespace concord {

struct JobMessage {
  enum class Kind {
    hello,    // a launcher: its machine, of how many, its processes, max_restarts, how many worlds will do, its number,
              // its port, its newest checkpoints, as in alive, whether the connection to its leader has ended;
              // "JOB|ADDRESS|ROSTER|who it is". Job and roster (membership.h) belong to one that has lost its leader
    welcome,  // the leader: you belong to the job; the text is its name
    refused,  // the leader: why not
    alive,    // both, now and then; a launcher adds the newest complete checkpoint and the newest one on the disk
    roster,   // the leader, before the first start of an attempt: a roster
    agreed,   // a launcher: it has the roster of this attempt; the leader: its voters alone decide from now on
    start,    // the leader: attempt, port of the store, ranks of the job, first rank here, which processes; the
              // address of the store
    stop,     // the leader: attempt, whether gently; why
    finish,   // the leader: exit code; why
    failed,   // a launcher: attempt, which process, its exit code, its rank; how
    ended,    // a launcher: attempt, and NodeEnd as numbers
    left,     // a launcher: it was asked to stop, by this signal
    invite,   // a leader to who does not know it: its port; "ADDRESS|ROSTER"
    redirect,  // who does not lead, to one that has asked it: the port of the leader, 0 if it knows none; its address
  };
  Kind kind{};
  std::vector<int64_t> numbers = {};
  std::string text = {};  // one line
  bool operator==(const JobMessage&) const = default;
};

std::string pack(const JobMessage& message);  // "start 2 29511 4 2 0 1|10.0.0.1"
// Nothing where |text| is no message, or has fewer numbers than its kind needs.
std::optional<JobMessage> unpack_message(std::string_view text);

JobMessage ended_message(int attempt, const NodeEnd& end);
NodeEnd node_end(const JobMessage& message);  // of ended

}  // namespace concord
