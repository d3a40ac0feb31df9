// Errors: how a violated rule of CANN becomes the vendor's code and a message.
//
// Inside, a broken rule is thrown as Error. At the edge, guarded() turns it into the code and keeps the message for
// aclGetRecentErrMsg, which returns it once, to the thread that made the call.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "backends/ascend/acl_abi.h"
#include "platform/sdk/failure.hpp"

namespace concord::ascend::sim {

// Codes that only the simulator and its tests name; acl_abi.h has those the backend tells apart.
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
// 100000: an argument that ACL itself refuses, such as a null pointer.
[[noreturn]] void invalid(std::string sentence);
void require_not_null(const void* pointer, const char* name);

// This thread's last error. take_message gives it once; the text stays valid until the thread's next call of it.
void set_message(std::string sentence);
const char* take_message();
abi::aclError last_error();
abi::aclError take_last_error();

// Keeps what |error| is for |function| and returns its code.
abi::aclError report(const char* function, const Error& error);
// The exception that is being handled, as an Error.
Error current_error();

// Begins a call: throws 100001 if |needs_init| and there was no aclInit, and what a fault says this call fails with.
// Waits if a fault delays it; enter_queueing (faults.h) leaves that to the work.
void enter(const char* function, bool needs_init);

enum class Init { kNeeded, kNotNeeded };

// The edge of every exported function.
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
