// Writing files so that what is read later is whole: a line appended whole or not at all, a document replaced at once.
// Nothing is written through a link. Errors are std::runtime_error with the path and the system's words, and
// ConfigError for a path that is no regular file.
#pragma once

#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"

namespace concord {

// A file that lines are added to. Threads: one at a time.
class AppendFile {
 public:
  // Opens |path|, making it if it is not there; |truncate| empties it.
  AppendFile(std::string path, bool truncate);

  // All of |bytes| are in the file after it; where that fails (disk full) none are, and it throws. So it does where the
  // file has no name any more: somebody has removed it.
  void append(std::string_view bytes);
  // Throws where somebody has removed the file.
  void check_there() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd file_;
};

// Writes beside |path| and renames: a reader sees the old text or the new one. The text is on the disk before the name.
void replace_file(const std::string& path, std::string_view text);

// The whole text of |path|; empty where there is no such file.
std::string read_if_there(const std::string& path);

void make_folder(const std::string& path);  // and those above it

}  // namespace concord
