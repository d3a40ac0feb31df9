#include "trainer/health/fault_callback.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <thread>

namespace concord {
namespace {

constexpr std::chrono::milliseconds kDelay{300};  // less than any limit of the launcher's
constexpr std::chrono::milliseconds kSlow{30};    // per step

void break_connections() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) ::shutdown(std::atoi(entry->d_name), SHUT_RDWR);  // only of sockets
  ::closedir(folder);
}

// Every write to a file fails from now on, as on a full disk; pipes and the terminal work.
void fill_disk() {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, RLIM_INFINITY};
  ::setrlimit(RLIMIT_FSIZE, &none);
}

}  // namespace

FaultCallback::FaultCallback(std::vector<Fault> faults, Trainer* trainer)
    : faults_(std::move(faults)), trainer_(trainer), rank_(trainer->job().rank()), board_(JobBoard::of_launcher()) {}

void FaultCallback::on_step_begin(const TrainerState& state, TrainerControl&) {
  const Clock::time_point now = Clock::now();
  step_time_ = now - last_step_;
  last_step_ = now;
  step_ = state.global_step + 1;
  if (is_slow_) std::this_thread::sleep_for(kSlow);
  for (size_t i = 0; i < faults_.size(); ++i) {
    if (!is_due(static_cast<int>(i), faults_[i])) continue;
    carry_out(static_cast<int>(i), faults_[i]);
    return;  // another one of this step comes in the next attempt
  }
}

bool FaultCallback::is_due(int number, const Fault& fault) const {
  if (fault.rank != rank_ || (board_ && board_->has_begun(number))) return false;
  if (fault.step > 0) return fault.step == step_;
  return board_ && monotonic_nanoseconds() - board_->created_at() >= fault.milliseconds * 1'000'000;
}

// Whether it has not happened yet.
bool FaultCallback::begin(int number, const Fault& fault, int64_t step) {
  if (board_ && !board_->begin_fault(number)) return false;
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  log_.fault(attempt != nullptr ? std::atoi(attempt) : 0, number, std::string(to_string(fault.kind)), fault.rank, step);
  return true;
}

void FaultCallback::carry_out(int number, const Fault& fault) {
  if (fault.kind == FaultKind::kill) {
    std::thread([this, number, fault, step = step_, wait = step_time_ * fault.where / 1000] {
      std::this_thread::sleep_for(wait);
      if (begin(number, fault, step)) ::kill(::getpid(), SIGKILL);
    }).detach();
    return;
  }
  if (!begin(number, fault, step_)) return;
  switch (fault.kind) {
    case FaultKind::stop: ::kill(::getpid(), SIGSTOP); break;
    case FaultKind::hang:
      for (;;) ::pause();
    case FaultKind::delay: std::this_thread::sleep_for(kDelay); break;
    case FaultKind::disconnect: break_connections(); break;
    case FaultKind::disk: fill_disk(); break;
    case FaultKind::slow: is_slow_ = true; break;
    default: change_weight(fault);
  }
}

void FaultCallback::change_weight(const Fault& fault) {
  const std::vector<Parameter*> parameters = trainer_->model().parameters();
  const at::NoGradGuard no_grad;
  const Parameter& parameter = *parameters[static_cast<size_t>(fault.where) % parameters.size()];
  at::Tensor value = parameter.value.detach().view({-1});
  const at::Tensor element = value.narrow(0, fault.where % value.numel(), 1);
  if (fault.kind == FaultKind::nan) {
    element.fill_(std::numeric_limits<float>::quiet_NaN());
    return;
  }
  at::Tensor host = element.to(at::kCPU).contiguous();
  auto* bytes = static_cast<unsigned char*>(host.data_ptr());
  bytes[static_cast<size_t>(fault.where) % host.nbytes()] ^= static_cast<unsigned char>(1U << (fault.where / 7 % 8));
  element.copy_(host);
}

}  // namespace concord
