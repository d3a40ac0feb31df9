#include "core/checkpoint/write/metadata_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>

#include "core/checkpoint/auxiliary_files.h"
#include "core/checkpoint/crc32.h"
#include "core/safetensors/index.h"

namespace concord {
namespace {

// The files of one folder, each with its checksum.
class Texts {
 public:
  explicit Texts(std::string folder) : folder_(std::move(folder)) {}

  void write(const std::string& name, const std::string& text) {
    write_file_durably(folder_ + "/" + name, text);
    files_[name] = {.bytes = text.size(), .crc32 = crc32(std::as_bytes(std::span(text)))};
  }

  // Copies auxiliary files; returns whether they include a tokenizer.
  bool carry_over(const std::string& source, bool with_config) {
    std::vector<std::string> names = auxiliary_files_in(source);
    const bool has_tokenizer =
        std::ranges::any_of(names, [](const std::string& name) { return name != kGenerationConfigFile; });
    if (with_config && std::filesystem::exists(source + "/config.json")) names.emplace_back("config.json");
    for (const std::string& name : names) {
      copy_file_durably(source + "/" + name, folder_ + "/" + name);
      files_[name] = checksum_file(folder_ + "/" + name);
    }
    return has_tokenizer;
  }

  const auto& files() const { return files_; }

 private:
  std::string folder_;
  std::map<std::string, ManifestFile, std::less<>> files_;
};

}  // namespace

void write_metadata_files(const std::string& folder, const SavePlan& plan, const HfSaveOptions& options,
                          Manifest* manifest) {
  Texts texts(folder);
  for (const SavePlan::Set& set : plan.sets) {
    if (!set.folder.has_index()) continue;
    texts.write(safetensors::index_file(set.stem), safetensors::index_json(set.folder.file_of, set.folder.total_bytes));
  }
  if (options.with_config && !options.config_json.empty()) texts.write("config.json", options.config_json);
  const bool copies_config = options.with_config && options.config_json.empty();
  const bool has_tokenizer = !options.source.empty() && texts.carry_over(options.source, copies_config);
  for (const auto& [name, text] : options.tokenizer_files) {
    if (!has_tokenizer) texts.write(name, text);
  }
  for (const auto& [name, text] : options.more_files) texts.write(name, text);
  if (manifest == nullptr) return;
  manifest->files.insert(texts.files().begin(), texts.files().end());
  texts.write(kManifestFile, to_json(*manifest));
}

}  // namespace concord
