// The zygote: a process that has loaded what ranks need, and forks them.
//
// The standard input of a zygote is a socket of the launcher's (zygote.h). A zygote writes one byte when it is
// ready. Then every request is a ZygoteRequest with four descriptors (standard input, output and error of the rank, and
// the guard's), followed by the environment, "NAME=value" with a zero after each. The answer is a ZygoteAnswer, which
// the new rank writes itself.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace concord {

inline constexpr const char* kZygoteVariable = "CONCORD_ZYGOTE";  // set: this process is one
inline constexpr const char* kZygoteName = "concord-zygote";      // of the process, for tools
inline constexpr int kZygoteDescriptors = 4;

struct ZygoteRequest {
  uint32_t environment_bytes;
  int32_t guard_slot;
  pid_t launcher;
};

struct ZygoteAnswer {
  pid_t pid;      // pid of the rank, which is a child of the launcher
  int32_t error;  // errno if there is no rank
};

bool is_zygote();
// Serves requests. Returns in every rank that it forks: there the environment, the standard streams and the session are
// the rank's own. In the zygote itself it never returns: it exits with the launcher, or if it has more than one thread,
// because fork would copy only this one.
void fork_ranks();

}  // namespace concord
