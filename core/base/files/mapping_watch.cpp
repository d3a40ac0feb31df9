#include "core/base/files/mapping_watch.h"

#include <unistd.h>
#include <csignal>

#include <atomic>
#include <cstdint>

#include "core/base/quoted.h"

namespace concord {
namespace {

// One watched mapping, read by the handler. A slot is owned by the thread that stored its message, and is in use while
// |begin| is not 0.
struct Slot {
  std::atomic<const std::string*> message{nullptr};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
};
constexpr int kMaxWatched = 4096;
Slot slots[kMaxWatched];
struct sigaction handler_before;

// Only async-signal-safe calls.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load();
    if (begin == 0 || address < begin || address >= slot.end.load()) continue;
    const std::string* message = slot.message.load();
    if (message != nullptr) (void)!::write(STDERR_FILENO, message->data(), message->size());
    ::_exit(1);
  }
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) return handler_before.sa_sigaction(signal, info, context);
  if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN)
    return handler_before.sa_handler(signal);
  ::signal(SIGBUS, SIG_DFL);  // the access is retried and terminates the process as usual
}

void install_handler() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &handler_before);
}

}  // namespace

MappingWatch::MappingWatch(const void* begin, size_t bytes, const std::string& path) {
  static const bool installed = (install_handler(), true);
  (void)installed;
  const auto* message =
      new std::string("concord: " + one_line(path, 4096) + ": is now shorter than the " + std::to_string(bytes) +
                      " bytes that were mapped, or cannot be read from disk; do not modify files while they are in "
                      "use, and replace them by renaming\n");
  for (int i = 0; i < kMaxWatched; ++i) {
    const std::string* none = nullptr;
    if (!slots[i].message.compare_exchange_strong(none, message)) continue;
    slots[i].end = reinterpret_cast<uintptr_t>(begin) + bytes;
    slots[i].begin = reinterpret_cast<uintptr_t>(begin);
    slot_ = i;
    return;
  }
  delete message;
}

void MappingWatch::end() {
  if (slot_ < 0) return;
  Slot& slot = slots[std::exchange(slot_, -1)];
  slot.begin = 0;
  delete slot.message.exchange(nullptr);
}

}  // namespace concord
