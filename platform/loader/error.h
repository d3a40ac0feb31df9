// The exception of the platform: what was called, with which arguments, on which plugin, and why it failed.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "platform/abi/status.h"

namespace concord {

// "INVALID_ARGUMENT"; "unknown status 99" for a code that this host does not know (which is a failure like any other).
std::string status_name(concord_status status);

// The code called |name|, without CONCORD_STATUS_ before it; nothing if there is none.
std::optional<concord_status> status_from_name(std::string_view name);

// All names, OK first.
std::vector<std::string> status_names();

class Error : public std::runtime_error {
 public:
  // A failure of the loader or of a setting, which has only a message.
  Error(concord_status status, const std::string& message);

  // A failed call of a table's slot. |call| is "stream.create", |arguments| "device=7, priority=0".
  struct Call {
    std::string plugin;
    std::string call;
    std::string arguments;
    std::string detail;  // the plugin's sentence; may be empty
  };
  Error(concord_status status, Call call);

  concord_status status() const noexcept { return status_; }
  const std::string& plugin() const noexcept { return call_.plugin; }
  const std::string& call() const noexcept { return call_.call; }
  const std::string& arguments() const noexcept { return call_.arguments; }
  const std::string& detail() const noexcept { return call_.detail; }

 private:
  concord_status status_;
  Call call_;
};

}  // namespace concord
