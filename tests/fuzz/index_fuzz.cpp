// Any bytes as model.safetensors.index.json: either rejected with a ConfigError, or names of files within the folder.
#include <cstdint>
#include <optional>

#include "core/base/config_error.h"
#include "core/safetensors/index.h"
#include "tests/fuzz/check.h"

namespace concord::fuzz {
namespace {

constexpr const char* kFile = "fuzz.index.json";

std::optional<std::map<std::string, std::string>> parse(std::string_view text) {
  try {
    return safetensors::parse_index(text, kFile);
  } catch (const ConfigError& error) {
    check_error(error.what(), kFile);
    return std::nullopt;
  }
}

}  // namespace
}  // namespace concord::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  const auto files = fuzz::parse({reinterpret_cast<const char*>(data), size});
  if (!files) return 0;
  for (const auto& [tensor, file] : *files) {
    fuzz::check(!file.empty() && file != "." && file != "..", "a file has a name");
    fuzz::check(file.find('/') == std::string::npos, "a file is in the folder");
    fuzz::check(file.find('\0') == std::string::npos, "a name is what the system will see of it");
  }
  fuzz::check(safetensors::parse_index(safetensors::index_json(*files, size), fuzz::kFile) == *files,
              "written, it is the same");
  return 0;
}
