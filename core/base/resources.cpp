#include "core/base/resources.h"

#include <sys/resource.h>

#include <cerrno>
#include <new>
#include <string_view>
#include <system_error>

#include "core/base/quoted.h"

namespace concord {
namespace {

std::string limit_text(decltype(RLIMIT_AS) which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur);
}

std::string memory_text() {
  return "out of memory: an allocation of this process failed. Its address space limit (ulimit -v) is " +
         limit_text(RLIMIT_AS) +
         " bytes, and the machine or its container may have less; `concord doctor` shows the available memory. Provide "
         "more, or use a smaller batch (per_device_train_batch_size), a shorter seq_length or fewer processes";
}

// Part of the messages of libtorch's and torch_npu's allocators.
constexpr std::string_view kDeviceIsFull = "out of memory. Tried to allocate";

std::string device_memory_text(std::string_view said) {
  constexpr size_t kMaxMessage = 2000;
  return one_line(without_backtrace(said), kMaxMessage) +
         " To train with less memory, use a smaller per_device_train_batch_size with more "
         "gradient_accumulation_steps, which trains the same; keep less of the forward pass (recompute_granularity "
         "selective with recompute_modules layernorm,mlp_act,moe_act costs little, full saves most); or use more ranks "
         "for the model (tensor_model_parallel_size, pipeline_model_parallel_size) and for the optimizer's state "
         "(use_distributed_optimizer)";
}

std::string threads_text() {
  return "no more threads or processes could be started. Current limits: threads and processes of this user (ulimit "
         "-u) " +
         limit_text(RLIMIT_NPROC) + ", bytes of address space (ulimit -v) " + limit_text(RLIMIT_AS) +
         ", bytes of stack per thread (ulimit -s) " + limit_text(RLIMIT_STACK) +
         "; a container may allow fewer (docker --pids-limit, pids.max of its cgroup). Raise the limit, or start fewer "
         "processes, or fewer threads per process (OMP_NUM_THREADS)";
}

std::string files_text() {
  return "too many open files: the limit for this process is " + limit_text(RLIMIT_NOFILE) +
         "; raise it with ulimit -n 65536";
}

}  // namespace

std::string_view without_backtrace(std::string_view said) {
  return said.substr(0, said.find("\nException raised from"));
}

std::optional<std::string> what_is_short(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return memory_text();
  // libtorch's own message for host memory.
  if (std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos)
    return memory_text() + " (" + one_line(without_backtrace(error.what())) + ")";
  if (std::string_view(error.what()).find(kDeviceIsFull) != std::string_view::npos)
    return device_memory_text(error.what());
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return std::nullopt;
  const std::string given = std::string(" (") + error.what() + ")";
  const int code =
      system->code().category() == std::generic_category() || system->code().category() == std::system_category()
          ? system->code().value()
          : 0;
  if (code == EAGAIN) return threads_text() + given;
  if (code == ENOMEM) return memory_text() + given;
  if (code == EMFILE) return files_text() + given;
  return std::nullopt;
}

}  // namespace concord
