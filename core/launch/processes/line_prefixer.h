// Turns the bytes of one stream into whole lines with a prefix, so that the lines of many processes can share one
// output. Pure: bytes in, bytes out.
#pragma once

#include <string>
#include <string_view>

namespace concord {

class LinePrefixer {
 public:
  // |complete_last_line|: a last line without a newline gets one, so that what comes next does not continue it.
  LinePrefixer(std::string prefix, bool complete_last_line);

  // Appends to |out| the lines that |bytes| completes, and keeps the rest for later.
  void feed(std::string_view bytes, std::string* out);
  // Appends what is left at the end of the stream.
  void finish(std::string* out);

  // A longer line than this is passed on in pieces.
  static constexpr size_t kMaxLine = size_t{1} << 20;

 private:
  void put_line(std::string_view line, std::string* out);

  std::string prefix_;
  bool complete_last_line_;
  std::string partial_;
};

}  // namespace concord
