// Messages between the launchers of one job: a word, some numbers and a text. Printable. Input from outside is parsed
// strictly: a text that is not such a message is rejected.
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
    hello,    // launcher: introduces itself (job_hello.h)
    welcome,  // leader: accepts the launcher; its machine, if that is not the one it asked for; the name of the job
    refused,  // leader: rejects the launcher; the reason
    alive,    // both, every JobLink::kAliveEvery; launchers add their latest complete checkpoint and latest one on disk
    start,    // leader: attempt, port of the store, world size, first rank here, slots; address of the store
    stop,     // leader: attempt, whether gently; the reason
    finish,   // leader: exit code; the reason
    failed,   // launcher: attempt, slot, exit code, rank; description
    ended,    // launcher: attempt, and NodeEnd as numbers
    left,     // launcher: it received this signal
  };
  Kind kind{};
  std::vector<int64_t> numbers = {};
  std::string text = {};  // one line
  bool operator==(const JobMessage&) const = default;
};

std::string pack(const JobMessage& message);  // "start 2 29511 4 2 0 1|10.0.0.1"
// Returns nullopt if |text| is not a message, or has fewer numbers than its kind needs.
std::optional<JobMessage> unpack_message(std::string_view text);

JobMessage ended_message(int attempt, const NodeEnd& end);
NodeEnd node_end(const JobMessage& message);  // |message| must be an ended

}  // namespace concord
