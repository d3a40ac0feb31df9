// The native stacks of all threads of a process, without a debugger: the process prints them itself when it is asked.
//
// Example, given pid_t child:
//   install_stacks_handler();                                            // in the process that may hang, early
//   const StacksAnswer answer = request_stacks(child, std::chrono::seconds(2));     // in the one that supervises it
//
// Every thread prints its own, from the handler of a real-time signal, to the file given to install_stacks_handler:
//   thread 4712 (loader):
//   /opt/concord/lib/libconcordtorch.so(_ZN7concord7Channel4waitERNS_11PendingCallE+0x84) [0xffff8a3c1d24]
//   /lib/aarch64-linux-gnu/libc.so.6(+0x7f7ac) [0xffff8a1bf7ac]
// innermost frame first: the module, the symbol where it is exported (else addr2line -e MODULE +0x7f7ac finds it) and
// the address. Symbols are mangled: to demangle them takes memory, which a handler must not ask for.
//
// Limits. A thread answers only if it can run a handler: not one that is stopped (SIGSTOP, ptrace), that sleeps
// uninterruptibly (state D: a device driver, a dead network file system; it answers when it wakes up) or that blocks
// the signal, as the streams of the cpu backend do. request_stacks names those. A thread that hangs while it loads or
// unloads a library prints its name and may stop there, because symbols are looked up under the same lock. Calls that
// the signal interrupts are restarted where the system can do that (SA_RESTART); others end with EINTR.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// Not used by glibc, libtorch, CUDA or CANN.
int stacks_signal();

// From now on this process answers, with what it prints to |fd|, which stays open. May be called again, for another
// file. Throws std::system_error. Threads: one at a time.
void install_stacks_handler(int fd = STDERR_FILENO);

struct StacksAnswer {
  int64_t answered = 0;             // threads that have printed their stack, or ended in the meantime
  std::vector<std::string> silent;  // one line for each of the others: "thread 4712 (loader) is stopped"
};

// Asks all threads of |pid| for their stacks. A process without the handler is not asked: the signal would end it.
// |pid| is a child that has not been reaped, so it cannot be another process by now. Waits: until all have answered, at
// most |limit|. Never throws because of what the process is or does. Threads: any thread.
StacksAnswer request_stacks(pid_t pid, std::chrono::milliseconds limit);

}  // namespace concord
