#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <string>

namespace concord {

// Counts the calls of torch_npu's and libtorch's operators while it lives.
class VendorCalls {
 public:
  VendorCalls() {
    calls().clear();
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&VendorCalls::seen).scopes({at::RecordScope::FUNCTION}));
  }
  ~VendorCalls() { at::removeCallback(handle_); }
  VendorCalls(const VendorCalls&) = delete;
  VendorCalls& operator=(const VendorCalls&) = delete;

  int of(const std::string& name) const { return calls()["npu::npu_" + name]; }
  int of_libtorch(const std::string& name) const { return calls()["aten::" + name]; }

 private:
  static std::map<std::string, int>& calls() {
    static std::map<std::string, int> all;
    return all;
  }
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& call) {
    ++calls()[call.name()];
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace concord
