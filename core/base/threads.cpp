#include "core/base/threads.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace concord {

void run_on_threads(int64_t count, const std::function<void()>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(std::max<int64_t>(count, 1)));
  const auto run = [&](std::exception_ptr* error) {
    try {
      body();
    } catch (...) {
      *error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < errors.size(); ++i) threads.emplace_back(run, &errors[i]);
    run(&errors[0]);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

int64_t cores_for_each(int64_t processes, int64_t most) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return std::clamp<int64_t>(cores / std::max<int64_t>(1, processes), 1, most);
}

}  // namespace concord
