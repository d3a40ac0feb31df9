// Any bytes as manifest.json of a checkpoint: either rejected with a ConfigError, or sizes and checksums of files
// within the folder that survive a round trip.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/config_error.h"
#include "core/checkpoint/manifest.h"
#include "tests/fuzz/check.h"

namespace concord::fuzz {
namespace {

constexpr const char* kFile = "fuzz/manifest.json";

std::optional<Manifest> parse(std::string_view text) {
  try {
    return parse_manifest(text, kFile);
  } catch (const ConfigError& error) {
    check_error(error.what(), kFile);
    return std::nullopt;
  }
}

}  // namespace
}  // namespace concord::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  const std::optional<Manifest> manifest = fuzz::parse({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  fuzz::check(nlohmann::json::accept(data, data + size), "what is accepted is JSON");
  for (const auto& [name, file] : manifest->files) {
    fuzz::check(!name.empty() && name != "." && name != "..", "a file has a name");
    fuzz::check(name != kManifestFile, "the manifest does not have itself");
    fuzz::check(name.find('/') == std::string::npos, "a file is in the folder");
    fuzz::check(name.find('\0') == std::string::npos, "a name is what the system will see of it");
    fuzz::check(file.by_tensor || file.tensors.empty(), "only safetensors files have tensors");
  }
  fuzz::check(parse_manifest(to_json(*manifest), fuzz::kFile) == *manifest, "written, it is the same");
  return 0;
}
