// Crash-safe file output: a line is appended completely or not at all, a document is replaced atomically. Links are not
// followed. Throws std::runtime_error with the path and the system's message, and ConfigError for a path that is not a
// regular file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/files/input_file.h"
#include "platform/base/unique_fd.hpp"

namespace concord {

// A file to which lines are appended. Threads: one at a time.
class AppendFile {
 public:
  // Opens |path|, creating it if it does not exist; |truncate| empties it.
  AppendFile(std::string path, bool truncate);

  // Appends all of |bytes|; on failure (disk full) none are appended, and it throws. Also throws if the file has been
  // removed.
  void append(std::string_view bytes);
  // Throws if the file has been removed.
  void check_there() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd file_;
};

// Writes to a temporary file and renames it to |path|: a reader sees the old text or the new one. The text is durable
// before the rename.
void replace_file(const std::string& path, std::string_view text);

// Returns the content of |path|; empty if it does not exist.
std::string read_if_there(const std::string& path);

// Reads a file line by line, in pieces: holds at most the longest line and one piece. Threads: one at a time.
class LineReader {
 public:
  static constexpr size_t kMaxLine = size_t{256} << 20;  // a table of a million ranks has 40 MB

  explicit LineReader(std::string path, size_t longest = kMaxLine);  // no lines if the file does not exist

  // Returns the next line, without its line break, valid until the next call; nullopt after the last complete line.
  // Throws std::runtime_error if the file cannot be read or a line is too long.
  std::optional<std::string_view> next();
  int64_t number() const { return number_; }  // number of the line that next() returned, starting at 1
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  size_t longest_;
  std::optional<InputFile> file_;
  std::string text_;  // bytes that were read and not yet returned, starting at |begin_|
  size_t begin_ = 0;
  uint64_t place_ = 0;  // position of the end of |text_| in the file
  int64_t number_ = 0;
};

void make_folder(const std::string& path);  // including its parents

}  // namespace concord
