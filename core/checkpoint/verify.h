// Whether the files of a checkpoint are what its manifest says (core/checkpoint/manifest.h). Reads every byte once, in
// pieces, by several threads: as fast as the disk gives them, in memory that does not depend on the checkpoint.
// Threads: any, at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"

namespace concord {

struct Damage {
  enum class Kind {
    manifest,         // cannot be read, so nothing can be verified
    missing,          // a file
    size,             // of a file: it was cut off, or bytes were added
    header,           // of a safetensors file: its tensors cannot be found
    checksum,         // of a plain file or a tensor
    cut_off,          // a tensor that lies beyond the end of its file
    not_in_header,    // a tensor of the manifest
    not_in_manifest,  // a tensor of the file
    unreadable,       // the system reports an error
  };
  Kind kind = Kind::checksum;
  std::string file;         // its name in the folder
  std::string tensor = {};  // empty: the file as a whole
  // What the manifest says and what is there: checksums, numbers of bytes. Empty where there is neither.
  std::string expected = {};
  std::string found = {};
  std::string reason = {};  // of the system or of the parser

  bool operator==(const Damage&) const = default;
};
const char* to_string(Damage::Kind kind);
// "model.safetensors: tensor 'a' has the checksum 00000000, but the manifest says 11111111".
std::string to_string(const Damage& damage);

// Part |part| of |parts|: about the same number of bytes, each file's header and each tensor in exactly one. All parts
// together find what one process finds alone.
struct VerifyShare {
  int64_t part = 0;
  int64_t parts = 1;
  int threads = 0;  // 0: one for each core, at most 8
};

// Bytes so far and in all. Called by one thread at a time.
using VerifyProgress = std::function<void(uint64_t done, uint64_t bytes)>;

// What is damaged in |folder|, in the order of files and of their data; empty: it is intact. Files that the manifest
// does not know are not looked at. Throws ConfigError where there is no manifest.
std::vector<Damage> verify_checkpoint(const std::string& folder, const VerifyShare& share = {},
                                      const VerifyProgress& progress = nullptr);
// The same, for a manifest that has been read. It has to outlive the call only.
std::vector<Damage> verify_files(const std::string& folder, const Manifest& manifest, const VerifyShare& share = {},
                                 const VerifyProgress& progress = nullptr);

// What the sizes of files tell, without reading them: missing files and those of another size. Fast.
std::vector<Damage> compare_sizes(const std::string& folder, const Manifest& manifest);

// Regular files of |folder| that the manifest does not have, sorted.
std::vector<std::string> files_without_checksum(const std::string& folder, const Manifest& manifest);

}  // namespace concord
