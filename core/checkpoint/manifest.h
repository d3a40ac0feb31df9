// manifest.json of a checkpoint: the size and the checksums of every other file in its folder.
//
//   {"format": 1, "checksum": "crc32", "files": {
//     "config.json": {"bytes": 600, "crc32": "0a1b2c3d"},
//     "model.safetensors": {"bytes": 9000, "header": "00112233", "tensors": {"lm_head.weight": "8899aabb"}}}}
//
// A safetensors file has a checksum for its length and JSON header, and one for each tensor: ranks that write parts of
// tensors can compute them (core/checkpoint/crc32.h), and a damaged one can be named. Threads: plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace concord {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr uint64_t kMaxManifestBytes = 100'000'000;  // as of safetensors' headers

struct ManifestFile {
  uint64_t bytes = 0;
  bool by_tensor = false;  // a safetensors file
  uint32_t crc32 = 0;      // of all bytes; |by_tensor|: of the header with its length
  std::map<std::string, uint32_t, std::less<>> tensors = {};  // |by_tensor|: of the bytes of each

  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  std::map<std::string, ManifestFile, std::less<>> files;  // by their names in the folder

  bool operator==(const Manifest&) const = default;
};

std::string checksum_text(uint32_t crc32);  // 8 hexadecimal digits

// One line for each file and tensor; equal manifests have equal texts.
std::string to_json(const Manifest& manifest);

// |file| is for messages. Throws ConfigError for anything that to_json does not write, another order and other white
// space excepted: files that are not plain names within the folder or that name the manifest itself, a name twice,
// checksums that are not 8 digits. Keys that it does not know are errors: what they would say is not checked.
Manifest parse_manifest(std::string_view json, const std::string& file);

// Of the checksums of all tensors, with their names: the same for the same tensors, in the same files.
uint32_t tensor_digest(const Manifest& manifest);

bool has_manifest(const std::string& folder);
// Throws ConfigError where |folder| has none.
Manifest read_manifest(const std::string& folder);

// What a manifest says about the file |path|, read in pieces: for files that are not safetensors. Throws ConfigError
// where it cannot be opened, std::runtime_error for an I/O error.
ManifestFile checksum_file(const std::string& path);

}  // namespace concord
