// An exclusive lock between processes of one machine, or of several that share a file system with locks. Released when
// the object is destroyed or the process exits, for any reason. The file itself is not removed.
#pragma once

#include <functional>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

class FileLock {
 public:
  // Waits: until no other process holds the lock. Calls |on_wait| once after two seconds. Throws ConfigError if |path|
  // cannot be written or locked; |hint| is appended to the message.
  explicit FileLock(const std::string& path, const std::function<void()>& on_wait = {}, const std::string& hint = "");

 private:
  UniqueFd file_;
};

}  // namespace concord
