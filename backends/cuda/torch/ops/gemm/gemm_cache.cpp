#include "backends/cuda/torch/ops/gemm/gemm_cache.h"

#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace concord::cuda::torch_side {
namespace {

namespace fs = std::filesystem;

// A shape has a line of some hundred characters, a model some dozens of shapes.
constexpr size_t kMaxLines = 100000;
constexpr size_t kMaxLine = 1000;

fs::path folder() {
  const auto set = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? fs::path(value) : fs::path();
  };
  if (const fs::path cache = set("XDG_CACHE_HOME"); !cache.empty()) return cache / "concord";
  if (const fs::path home = set("HOME"); !home.empty()) return home / ".cache" / "concord";
  return {};
}

}  // namespace

GemmCache::GemmCache(const std::string& name) {
  const fs::path in = folder();
  if (in.empty()) return;
  std::string file = "gemm-" + name + ".txt";
  for (char& c : file) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') c = '_';
  }
  path_ = (in / file).string();
  lines_ = read();
}

std::map<std::string, std::string> GemmCache::read() const {
  std::map<std::string, std::string> lines;
  std::ifstream file(path_);
  std::string line;
  while (lines.size() < kMaxLines && std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos && line.size() <= kMaxLine) lines[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return lines;
}

std::vector<uint64_t> GemmCache::numbers(const std::string& key) const {
  const auto found = lines_.find(key);
  if (found == lines_.end()) return {};
  std::vector<uint64_t> numbers;
  const char* at = found->second.data();
  const char* const end = at + found->second.size();
  while (at < end) {
    uint64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (next != end && *next != ' ')) return {};
    numbers.push_back(number);
    at = next == end ? end : next + 1;
  }
  return numbers;
}

void GemmCache::write(const std::string& key, const std::string& numbers) {
  lines_[key] = numbers;
  if (path_.empty()) return;
  std::map<std::string, std::string> all = read();
  all.emplace(key, numbers);
  std::error_code ignored;
  fs::create_directories(fs::path(path_).parent_path(), ignored);
  std::string next = path_ + ".XXXXXX";  // unique to this process, even if hosts share the folder
  if (const int made = mkstemp(next.data()); made < 0 || close(made) != 0) return;
  {
    std::ofstream file(next);
    for (const auto& [name, value] : all) file << name << ": " << value << '\n';
    file.close();
    if (!file) {
      fs::remove(next, ignored);
      return;
    }
  }
  fs::rename(next, path_, ignored);
}

}  // namespace concord::cuda::torch_side
