// Errors: a violated rule of CANN becomes the vendor's code and a message.
//
// The implementation throws Error. In exported functions guarded() turns it into the code and stores the message for
// aclGetRecentErrMsg, which returns it once, to the calling thread.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "backends/ascend/acl_abi.h"
#include "platform/sdk/failure.hpp"

namespace concord::ascend::sim {

// Codes that only the simulator and its tests use; acl_codes.h has those that the backend distinguishes.
inline constexpr abi::aclError kRtStreamNoCallback = 107015;
inline constexpr abi::aclError kRtThreadSubscribe = 107012;
inline constexpr abi::aclError kRtStreamSubscribe = 107011;
inline constexpr abi::aclError kRtCaptureDependency = 107024;
inline constexpr abi::aclError kRtStreamUnjoined = 107025;
inline constexpr abi::aclError kRtModelCaptured = 107026;
inline constexpr abi::aclError kRtStreamCaptured = 107027;
inline constexpr abi::aclError kRtEventCaptured = 107028;
inline constexpr abi::aclError kRtStreamNotCaptured = 107029;
inline constexpr abi::aclError kRtCaptureModeNotSupport = 107030;
inline constexpr abi::aclError kRtCaptureImplicit = 107031;
inline constexpr abi::aclError kRtCaptureUnmatched = 107036;
inline constexpr abi::aclError kRtCaptureWrongThread = 107038;
inline constexpr abi::aclError kRtCaptureInvalidated = 507903;

class Error : public std::exception {
 public:
  Error(abi::aclError code, std::string text) : code_(code), text_(std::move(text)) {}

  abi::aclError code() const { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  abi::aclError code_;
  std::string text_;
};

using sdk::text;

[[noreturn]] void fail(abi::aclError code, std::string sentence);
// Throws 100000, for an argument that ACL itself rejects, such as a null pointer.
[[noreturn]] void invalid(std::string sentence);
void require_not_null(const void* pointer, const char* name);

// The last error message of this thread. take_message returns it once; the text is valid until the thread's next call
// of it.
void set_message(std::string sentence);
const char* take_message();
abi::aclError last_error();
abi::aclError take_last_error();

// Stores the message of |error| in |function| and returns its code.
abi::aclError report(const char* function, const Error& error);
// Returns the exception that is being handled as an Error.
Error current_error();

// Begins a call: throws 100001 if |needs_init| and aclInit was not called, or the code of a fault for this call. Waits:
// if a fault delays the call; enter_queueing (faults.h) delays the work instead.
void enter(const char* function, bool needs_init);

enum class Init { kNeeded, kNotNeeded };

// Wraps the body of every exported function.
template <class Body>
abi::aclError guarded(const char* function, Body&& body, Init init = Init::kNeeded) noexcept {
  try {
    enter(function, init == Init::kNeeded);
    body();
    return abi::kAclSuccess;
  } catch (...) {
    return report(function, current_error());
  }
}

}  // namespace concord::ascend::sim
