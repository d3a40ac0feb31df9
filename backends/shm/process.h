// Which process a rank is, and whether it is still alive. Needs nothing but /proc: no parent-child relation, no pidfd.
// Threads: any.
#pragma once

#include <sys/types.h>

#include <bitset>
#include <cstdint>
#include <string>

namespace concord::shm {

// A process by its number, its start time (clock ticks since boot; it distinguishes a reused number) and the
// pid namespace in which the number counts.
struct ProcessIdentity {
  int64_t pid = 0;
  uint64_t start_time = 0;
  uint64_t pid_namespace = 0;
};

// The processors that a process may run on, by number; those beyond are not counted.
using ProcessorSet = std::bitset<1024>;

enum class ProcessState { kRunning, kStopped, kEnded, kUnknown };

// This process. start_time is 0 if /proc cannot be read; the state of such an identity is unknown.
ProcessIdentity this_process();

// Returns a number that is equal for processes which can connect to each other's unix sockets: those of this boot of
// the host in this network namespace. 0 if /proc cannot be read.
uint64_t this_host();

// Returns the processors on which the calling thread may run.
ProcessorSet available_processors();

// kEnded: exited, a zombie, or another process has the pid now. kUnknown: it is in another pid namespace, or /proc
// cannot be read.
ProcessState state_of(const ProcessIdentity& process);

// "pid 4711", "pid 4711, stopped" or "pid 4711, ended", for messages.
std::string describe(const ProcessIdentity& process);

}  // namespace concord::shm
