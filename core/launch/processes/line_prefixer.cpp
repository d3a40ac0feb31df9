#include "core/launch/processes/line_prefixer.h"

#include <algorithm>
#include <utility>

namespace concord {

LinePrefixer::LinePrefixer(std::string prefix, bool complete_last_line)
    : prefix_(std::move(prefix)), complete_last_line_(complete_last_line) {}

void LinePrefixer::put_line(std::string_view line, std::string* out) {
  *out += prefix_;
  *out += line;
}

void LinePrefixer::feed(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t length = newline == std::string_view::npos ? bytes.size() : newline + 1;
    const size_t room = kMaxLine - partial_.size();
    const std::string_view piece = bytes.substr(0, std::min(length, room));
    bytes.remove_prefix(piece.size());
    if (piece.back() == '\n' && partial_.empty()) {
      put_line(piece, out);  // the usual case, without a copy
      continue;
    }
    partial_ += piece;
    if (piece.back() == '\n') put_line(std::exchange(partial_, {}), out);
    if (partial_.size() == kMaxLine) finish(out);
  }
}

void LinePrefixer::finish(std::string* out) {
  if (partial_.empty()) return;
  put_line(std::exchange(partial_, {}), out);
  if (complete_last_line_) *out += '\n';
}

}  // namespace concord
