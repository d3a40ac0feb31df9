// A file in the user's cache folder with lines "key: numbers", which several processes read and extend. Uses neither
// CUDA nor libtorch. An unreadable file counts as empty; if it is not writable, entries exist in this process only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace concord::cuda::torch_side {

// Threads: one at a time.
class GemmCache {
 public:
  // |name|: the file's name, in which characters other than letters, digits, '-' and '.' are replaced.
  explicit GemmCache(const std::string& name);

  // Returns the numbers of |key|; empty if there is no entry or an invalid one.
  std::vector<uint64_t> numbers(const std::string& key) const;
  // Adds a line, unless another process has added one for this key in the meantime; later processes then use that one.
  // Replaces the file as a whole.
  void write(const std::string& key, const std::string& numbers);

 private:
  std::map<std::string, std::string> read() const;

  std::string path_;  // empty: there is no cache folder
  std::map<std::string, std::string> lines_;
};

}  // namespace concord::cuda::torch_side
