#include "core/models/saved_texts.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/checkpoint/crc32.h"
#include "core/input_file.h"
#include "core/safetensors/index.h"
#include "core/safetensors/writer.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using safetensors::FilePart;

constexpr const char* kGenerationConfig = "generation_config.json";
// Files of a source folder; a trailing '*' marks a prefix.
constexpr const char* kCarried[] = {kGenerationConfig,   "tokenizer*",     "special_tokens_map.json",
                                    "added_tokens.json", "vocab.json",     "vocab.txt",
                                    "merges.txt",        "chat_template*", "spiece.model"};

bool is_carried(const std::string& name) {
  for (const std::string_view pattern : kCarried) {
    if (pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern) return true;
  }
  return false;
}

void carry_file(const fs::path& from, const fs::path& to) {
  const InputFile source(from.string());
  FilePart target(to.string(), FilePart::Mode::create);
  std::vector<char> piece(1 << 20);
  for (uint64_t place = 0; place < source.size();) {
    const ssize_t got = ::pread(source.fd(), piece.data(), piece.size(), static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw std::runtime_error(fmt::format("{}: cannot be read completely", from.string()));
    target.write(place, std::as_bytes(std::span(piece.data(), static_cast<size_t>(got))));
    place += static_cast<uint64_t>(got);
  }
  target.sync();
}

// The files of one folder, each with its checksum.
class Texts {
 public:
  explicit Texts(std::string folder) : folder_(std::move(folder)) {}

  void write(const std::string& name, const std::string& text) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    FilePart file(folder_ + "/" + name, FilePart::Mode::create, text.size());
    file.write(0, bytes);
    file.sync();
    files_[name] = {.bytes = text.size(), .crc32 = crc32(bytes)};
  }

  // Whether it included a tokenizer.
  bool carry_over(const std::string& source, bool with_config) {
    bool has_tokenizer = false;
    for (const auto& entry : fs::directory_iterator(source)) {
      const std::string name = entry.path().filename().string();
      const bool config = name == "config.json" && with_config;
      if (!entry.is_regular_file() || !(config || is_carried(name))) continue;
      carry_file(entry.path(), fs::path(folder_) / name);
      files_[name] = checksum_file(folder_ + "/" + name);
      has_tokenizer |= !config && name != kGenerationConfig;
    }
    return has_tokenizer;
  }

  const auto& files() const { return files_; }

 private:
  std::string folder_;
  std::map<std::string, ManifestFile, std::less<>> files_;
};

}  // namespace

void write_texts(const std::string& folder, const SavePlan& plan, const HfSaveOptions& options, Manifest* manifest) {
  Texts texts(folder);
  for (const SavePlan::Set& set : plan.sets) {
    if (!set.folder.has_index()) continue;
    texts.write(safetensors::index_file(set.stem), safetensors::index_json(set.folder.file_of, set.folder.total_bytes));
  }
  if (!options.config_json.empty()) texts.write("config.json", options.config_json);
  const bool has_tokenizer = !options.source.empty() && texts.carry_over(options.source, options.config_json.empty());
  for (const auto& [name, text] : options.tokenizer_files) {
    if (!has_tokenizer) texts.write(name, text);
  }
  for (const auto& [name, text] : options.more_files) texts.write(name, text);
  if (manifest == nullptr) return;
  manifest->files.insert(texts.files().begin(), texts.files().end());
  texts.write(kManifestFile, to_json(*manifest));
}

}  // namespace concord
