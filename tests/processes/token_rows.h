// Training data of a few small samples.
#pragma once

#include <fstream>
#include <string>

namespace concord::testing_processes {

// Writes |count| samples of 16 tokens.
inline std::string write_jsonl(const std::string& path, int count, int largest = 300) {
  std::ofstream file(path);
  for (int i = 0; i < count; ++i) {
    file << "{\"input_ids\": [";
    for (int t = 0; t < 16; ++t) file << (t ? ", " : "") << (i * 31 + t * 7) % largest;
    file << "]}\n";
  }
  return path;
}

}  // namespace concord::testing_processes
