#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "platform/base/thread_safety.hpp"

namespace concord {

// Counts the calls of torch_npu's and libtorch's operators while it lives. Operators are called in several threads at a
// time: the test's, autograd's, and those of the simulated device's streams, which compute with libtorch.
class VendorCalls {
 public:
  VendorCalls() {
    {
      Calls& all = calls();
      const std::lock_guard lock(all.mutex);
      all.of_name.clear();
    }
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&VendorCalls::seen).scopes({at::RecordScope::FUNCTION}));
  }
  ~VendorCalls() { at::removeCallback(handle_); }
  VendorCalls(const VendorCalls&) = delete;
  VendorCalls& operator=(const VendorCalls&) = delete;

  int of(const std::string& name) const { return count("npu::npu_" + name); }
  int of_libtorch(const std::string& name) const { return count("aten::" + name); }

 private:
  struct Calls {
    std::mutex mutex;
    std::map<std::string, int> of_name CONCORD_GUARDED_BY(mutex);
  };

  // Never destroyed: threads of streams may still call operators at exit.
  static Calls& calls() {
    static auto* const all = new Calls;
    return *all;
  }
  static int count(const std::string& name) {
    Calls& all = calls();
    const std::lock_guard lock(all.mutex);
    return all.of_name[name];
  }
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& call) {
    Calls& all = calls();
    const std::lock_guard lock(all.mutex);
    ++all.of_name[call.name()];
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace concord
