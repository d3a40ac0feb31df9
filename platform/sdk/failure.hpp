// Failures of a plugin and its way to the host: error messages, log lines and settings. Header-only.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "platform/abi/concord.h"

namespace concord::sdk {

// A failure to return through the ABI: the status that the caller gets and the message that explains it.
class Failure : public std::exception {
 public:
  Failure(concord_status status, std::string detail) : status_(status), detail_(std::move(detail)) {}
  const char* what() const noexcept override { return detail_.c_str(); }
  concord_status status() const noexcept { return status_; }

 private:
  concord_status status_;
  std::string detail_;
};

// Formats like printf, so that a plugin does not need a formatting library.
[[gnu::format(printf, 1, 2)]] inline std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string result(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(result.data(), result.size() + 1, format, again);
  va_end(again);
  return result;
}

[[noreturn]] inline void fail(concord_status status, std::string detail) { throw Failure(status, std::move(detail)); }

[[noreturn]] inline void invalid(std::string detail) { fail(CONCORD_STATUS_INVALID_ARGUMENT, std::move(detail)); }

// Returns the exception that is being handled as a Failure. Call only in a catch block.
inline Failure current_failure() {
  try {
    throw;
  } catch (const Failure& failure) {
    return failure;
  } catch (const std::bad_alloc&) {
    return {CONCORD_STATUS_OUT_OF_MEMORY, "the host is out of memory"};
  } catch (const std::exception& error) {
    return {CONCORD_STATUS_INTERNAL, error.what()};
  } catch (...) {
    return {CONCORD_STATUS_INTERNAL, "the plugin threw something that is not an std::exception"};
  }
}

// The host that opened this plugin, one per shared library. CONCORD_PLUGIN sets it before the plugin's constructor
// runs.
inline const concord_host*& host_slot() {
  static const concord_host* host = nullptr;
  return host;
}

inline void set_error_detail(const char* detail) noexcept {
  const concord_host* host = host_slot();
  if (host != nullptr && host->set_error_detail != nullptr) host->set_error_detail(host->self, detail);
}

inline void log(concord_log_level level, const std::string& line) noexcept {
  const concord_host* host = host_slot();
  if (host != nullptr && host->log != nullptr) host->log(host->self, level, line.c_str());
}

// Returns a setting by its dotted name ("cpu.devices"); null if it is not set.
inline const char* config(const char* name) noexcept {
  const concord_host* host = host_slot();
  return host != nullptr && host->config != nullptr ? host->config(host->self, name) : nullptr;
}

// Runs |body|, a function that returns a status, and converts whatever it throws into a status. |report|(message)
// receives the message of the exception. No exception leaves it.
template <class Body, class Report>
concord_status fence(Body&& body, Report&& report) noexcept {
  try {
    try {
      return body();
    } catch (...) {
      const Failure failure = current_failure();
      report(failure.what());
      return failure.status();
    }
  } catch (...) {  // no memory for the message
    report("the host is out of memory");
    return CONCORD_STATUS_OUT_OF_MEMORY;
  }
}

// Runs |body| and converts whatever it throws into a status, with the message as the host's error detail.
template <class Body>
concord_status fence(Body&& body) noexcept {
  return fence(
      [&] {
        body();
        return concord_status{CONCORD_STATUS_OK};
      },
      &set_error_detail);
}

}  // namespace concord::sdk
