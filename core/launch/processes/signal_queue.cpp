#include "core/launch/processes/signal_queue.h"

#include <atomic>
#include <cerrno>
#include <stdexcept>

namespace concord {
namespace {

std::atomic<int> queue_fd{-1};

void enqueue(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  const SignalQueue::Entry entry{signal, info->si_pid};
  // A full pipe drops the entry. 8,000 unread signals are enough.
  if (::write(queue_fd.load(), &entry, sizeof entry) < 0) {
  }
  errno = saved;
}

}  // namespace

SignalQueue::SignalQueue() : pipe_(make_pipe()) {
  set_nonblocking(pipe_.read.get());
  set_nonblocking(pipe_.write.get());
  int none = -1;
  if (!queue_fd.compare_exchange_strong(none, pipe_.write.get())) {
    throw std::logic_error("launch() is already running in this process; only one call at a time is allowed");
  }
  struct sigaction action{};
  action.sa_sigaction = enqueue;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NOCLDSTOP;
  sigfillset(&action.sa_mask);
  sigset_t wanted;
  sigemptyset(&wanted);
  for (size_t i = 0; i < kQueued.size(); ++i) {
    ::sigaction(kQueued[i], nullptr, &before_[i]);
    if (kQueued[i] == SIGHUP && before_[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kQueued[i], &action, nullptr);
    sigaddset(&wanted, kQueued[i]);
  }
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
  ::pthread_sigmask(SIG_UNBLOCK, &wanted, &mask_before_);
}

SignalQueue::~SignalQueue() {
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  for (size_t i = 0; i < kQueued.size(); ++i) ::sigaction(kQueued[i], &before_[i], nullptr);
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  queue_fd.store(-1);
}

std::vector<SignalQueue::Entry> SignalQueue::take() {
  std::vector<Entry> entries;
  Entry buffer[64];
  for (;;) {
    const ssize_t length = ::read(fd(), buffer, sizeof buffer);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return entries;
    entries.insert(entries.end(), buffer, buffer + static_cast<size_t>(length) / sizeof(Entry));
  }
}

void SignalQueue::reset_in_child() {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  for (const int signal : kQueued) {
    struct sigaction now{};
    ::sigaction(signal, nullptr, &now);
    if (signal == SIGHUP && now.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &standard, nullptr);
  }
  ::sigaction(SIGPIPE, &standard, nullptr);
  ::sigaction(SIGXFSZ, &standard, nullptr);  // ignored by the program itself
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace concord
