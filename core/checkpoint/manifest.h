// manifest.json of a checkpoint: the size and the checksums of every other file in its folder.
//
//   {"format": 1, "checksum": "crc32", "files": {
//     "config.json": {"bytes": 600, "crc32": "0a1b2c3d"},
//     "model.safetensors": {"bytes": 9000, "header": "00112233", "tensors": {"lm_head.weight": "8899aabb"}}}}
//
// A safetensors file has a checksum for its length and JSON header, and one for each tensor: ranks that write parts of
// tensors can compute them (core/checkpoint/crc32.h), and a damaged tensor can be reported by name. Threads: plain
// values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace concord {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr uint64_t kMaxManifestBytes = 100'000'000;  // same limit as for safetensors headers

struct ManifestFile {
  uint64_t bytes = 0;
  bool by_tensor = false;  // a safetensors file
  uint32_t crc32 = 0;      // checksum of all bytes, or with |by_tensor| of the length and header
  std::map<std::string, uint32_t, std::less<>> tensors = {};  // |by_tensor|: checksum of each tensor

  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  std::map<std::string, ManifestFile, std::less<>> files;  // by name in the folder

  bool operator==(const Manifest&) const = default;
};

std::string checksum_text(uint32_t crc32);  // 8 hexadecimal digits

// Returns one line per file and tensor; equal manifests have equal texts.
std::string to_json(const Manifest& manifest);

// Parses a manifest; |file| is used in messages. Throws ConfigError for anything that to_json() does not write, except
// for order and white space: file names that are not plain names within the folder or that name the manifest itself,
// duplicate names, checksums that are not 8 digits. Unknown keys are errors, since their meaning would not be checked.
Manifest parse_manifest(std::string_view json, const std::string& file);

// Returns a checksum of the checksums and names of all tensors: equal for equal tensors in the same files.
uint32_t tensor_digest(const Manifest& manifest);

bool has_manifest(const std::string& folder);
// Throws ConfigError if |folder| has no manifest.
Manifest read_manifest(const std::string& folder);

// Returns the manifest entry of the file |path|, for files that are not safetensors. Reads it in pieces. Throws
// ConfigError if it cannot be opened, std::runtime_error for an I/O error.
ManifestFile checksum_file(const std::string& path);

}  // namespace concord
