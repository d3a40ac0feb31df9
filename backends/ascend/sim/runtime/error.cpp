#include "backends/ascend/sim/runtime/error.h"

#include <cstdio>
#include <new>

#include "backends/ascend/sim/runtime/faults.h"
#include "backends/ascend/sim/runtime/process.h"
#include "backends/ascend/sim/runtime/settings.h"

namespace concord::ascend::sim {
namespace {

struct LastError {
  abi::aclError code = abi::kAclSuccess;
  std::string message;
  std::string given;  // what take_message returned
};

LastError& last() {
  thread_local LastError error;
  return error;
}

}  // namespace

void fail(abi::aclError code, std::string sentence) { throw Error(code, std::move(sentence)); }

void invalid(std::string sentence) { fail(abi::kAclInvalidParam, std::move(sentence)); }

void require_not_null(const void* pointer, const char* name) {
  if (pointer == nullptr) invalid(text("the argument '%s' is null", name));
}

void set_message(std::string sentence) {
  if (settings().prints_errors) std::fprintf(stderr, "%s\n", sentence.c_str());
  last().message = std::move(sentence);
}

const char* take_message() {
  last().given = std::exchange(last().message, {});
  return last().given.c_str();
}

abi::aclError last_error() { return last().code; }
abi::aclError take_last_error() { return std::exchange(last().code, abi::kAclSuccess); }

abi::aclError report(const char* function, const Error& error) {
  last().code = error.code();
  set_message(text("[sim-npu] %s: %s (%d)", function, error.what(), error.code()));
  return error.code();
}

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {abi::kAclBadAlloc, "the host is out of memory"};
  } catch (const std::exception& error) {
    return {abi::kRtInternalError, error.what()};
  } catch (...) {
    return {abi::kRtInternalError, "something that is not an exception was thrown"};
  }
}

namespace {

void require_init() {
  if (!Process::initialized()) fail(abi::kAclUninitialize, "aclInit has not been called, or aclFinalize has");
}

}  // namespace

void enter(const char* function, bool needs_init) {
  if (needs_init) require_init();
  if (Faults::active()) Faults::instance().meet_call(function);
}

WorkFault enter_queueing(const char* function) {
  require_init();
  return Faults::active() ? Faults::instance().count(function) : WorkFault{};
}

}  // namespace concord::ascend::sim
