// Verifies the files of a checkpoint against its manifest (core/checkpoint/manifest.h). Reads every byte once, in
// pieces, with several threads: at the speed of the disk, in memory that does not depend on the checkpoint. Threads:
// any, concurrently.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"

namespace concord {

struct Damage {
  enum class Kind {
    manifest,         // the manifest cannot be read, so nothing can be verified
    missing,          // a file does not exist
    size,             // a file was truncated or extended
    header,           // a safetensors header is damaged: its tensors cannot be located
    checksum,         // a plain file or a tensor is damaged
    cut_off,          // a tensor is beyond the end of its file
    not_in_header,    // a tensor of the manifest is not in the header
    not_in_manifest,  // a tensor of the header is not in the manifest
    unreadable,       // the system reports an error
  };
  Kind kind = Kind::checksum;
  std::string file;         // name in the folder
  std::string tensor = {};  // empty: the whole file
  // Values in the manifest and in the file: checksums, numbers of bytes. Empty if there are none.
  std::string expected = {};
  std::string found = {};
  std::string reason = {};  // error of the system or of the parser

  bool operator==(const Damage&) const = default;
};
const char* to_string(Damage::Kind kind);
// "model.safetensors: tensor 'a' has the checksum 00000000, but the manifest has 11111111".
std::string to_string(const Damage& damage);

// The share |part| of |parts| of the work: about the same number of bytes; each header and each tensor is in exactly
// one. All parts together find the same damages as one process.
struct VerifyShare {
  int64_t part = 0;
  int64_t parts = 1;
  int threads = 0;  // 0: one per core, at most 8
};

// Called with the bytes so far and in total, by one thread at a time.
using VerifyProgress = std::function<void(uint64_t done, uint64_t bytes)>;

// Returns the damages in |folder|, in the order of files and of their data; empty if it is intact. Ignores files that
// are not in the manifest. Throws ConfigError if there is no manifest.
std::vector<Damage> verify_checkpoint(const std::string& folder, const VerifyShare& share = {},
                                      const VerifyProgress& progress = nullptr);
// Like verify_checkpoint(), for a parsed manifest, which must only outlive the call.
std::vector<Damage> verify_files(const std::string& folder, const Manifest& manifest, const VerifyShare& share = {},
                                 const VerifyProgress& progress = nullptr);

// Compares only the sizes of files, without reading them: returns missing files and those of a different size. Fast.
std::vector<Damage> compare_sizes(const std::string& folder, const Manifest& manifest);

// Returns the regular files of |folder| that are not in the manifest, sorted.
std::vector<std::string> files_without_checksum(const std::string& folder, const Manifest& manifest);

}  // namespace concord
