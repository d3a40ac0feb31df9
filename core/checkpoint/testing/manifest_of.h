// Computes the manifest of a folder with intact files from the files themselves.
#pragma once

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "core/checkpoint/crc32.h"
#include "core/checkpoint/manifest.h"
#include "core/safetensors/reader.h"
#include "core/safetensors/testing/files.h"

namespace concord::testing {

inline Manifest manifest_of(const std::string& folder) {
  Manifest manifest;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), path = entry.path().string();
    if (!entry.is_regular_file() || name == kManifestFile) continue;
    ManifestFile& file = manifest.files[name] = checksum_file(path);
    if (!name.ends_with(".safetensors")) continue;
    const safetensors::Reader reader(path);
    uint64_t data = 0;
    file.by_tensor = true;
    for (const safetensors::TensorInfo& tensor : reader.tensors()) {
      file.tensors[tensor.name] = crc32(reader.data(tensor));
      data += tensor.bytes();
    }
    std::string head(file.bytes - data, '\0');
    std::ifstream(path, std::ios::binary).read(head.data(), static_cast<std::streamsize>(head.size()));
    file.crc32 = crc32(std::as_bytes(std::span(head)));
  }
  return manifest;
}

inline void write_manifest(const std::string& folder) {
  safetensors::testing::write_file(folder + "/" + kManifestFile, to_json(manifest_of(folder)));
}

}  // namespace concord::testing
