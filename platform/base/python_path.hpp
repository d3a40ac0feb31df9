// PYTHONPATH for a Python that the program starts or embeds. An empty or relative entry names the working folder, which
// holds data: a sitecustomize.py there would run. Header only, so every layer may include it. Threads: pure.
#pragma once

#include <string>
#include <string_view>

namespace concord {

// Returns the absolute entries of |path|, in order.
inline std::string absolute_python_path(std::string_view path) {
  std::string kept;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = path.find(':', begin);
    const std::string_view entry = path.substr(begin, end - begin);
    if (entry.starts_with('/')) kept.append(kept.empty() ? "" : ":").append(entry);
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  return kept;
}

}  // namespace concord
