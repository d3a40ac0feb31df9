// Files for tests: a temporary folder, and safetensors files built from their parts, valid or invalid.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/temporary_folder.h"

namespace concord::safetensors::testing {

using tests::TemporaryFolder;

inline std::string write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();  // in blocks; iterators are slow without optimisation
  return bytes.str();
}

inline std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

inline std::string file_of(std::string_view json, std::string_view data) {
  return length_bytes(json.size()) + std::string(json) + std::string(data);
}

// Returns what() of the exception of type E that |body| throws; "accepted" if it throws none.
template <class E, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace concord::safetensors::testing
