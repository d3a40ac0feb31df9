// A lock that processes of one machine, or of several that share a file system with locks, hold one at a time. It ends
// with the object or with the process, whatever ends that. The file stays.
#pragma once

#include <functional>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

class FileLock {
 public:
  // Waits: for the process that holds it. After two seconds of it, |on_wait| is called, once. Throws ConfigError if
  // |path| cannot be written or locked; |hint| ends the message.
  explicit FileLock(const std::string& path, const std::function<void()>& on_wait = {}, const std::string& hint = "");

 private:
  UniqueFd file_;
};

}  // namespace concord
