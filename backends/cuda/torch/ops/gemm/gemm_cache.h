// A file of the user's cache folder with lines "key: numbers", which several processes read and add to. Free of CUDA
// and libtorch. What cannot be read counts as empty, and what cannot be written is kept for this process only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace concord::cuda::torch_side {

// Threads: one at a time.
class GemmCache {
 public:
  // |name| becomes a file name: characters other than letters, digits, '-' and '.' are replaced.
  explicit GemmCache(const std::string& name);

  // Returns the numbers of |key|; empty if there are none, or if the entry has anything else.
  std::vector<uint64_t> numbers(const std::string& key) const;
  // Adds a line, unless another process has added one for this key in the meantime; that one then counts for later
  // processes. The file is replaced as a whole.
  void write(const std::string& key, const std::string& numbers);

 private:
  std::map<std::string, std::string> read() const;

  std::string path_;  // empty: there is no folder for it
  std::map<std::string, std::string> lines_;
};

}  // namespace concord::cuda::torch_side
