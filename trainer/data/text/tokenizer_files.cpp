#include "trainer/data/text/tokenizer_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "trainer/data/build/output_file.h"
#include "trainer/data/data_files.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/text/records.h"
#include "trainer/data/text/text_reader.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr int64_t kMaxTokenizerFile = int64_t{256} << 20;
// Prefixes of the file names that transformers looks for.
constexpr std::string_view kBeginnings[] = {"tokenizer.",        "tokenizer_",    "special_tokens_map.json",
                                            "added_tokens.json", "vocab.json",    "vocab.txt",
                                            "merges.txt",        "chat_template", "spiece.model"};

std::string utf8_of(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

// The characters that byte-level BPE maps bytes to (as in GPT-2): printable ones map to themselves, the others to 256
// and above.
ordered_json byte_vocabulary() {
  ordered_json vocabulary = ordered_json::object();
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 255 && byte != 173);
    vocabulary[utf8_of(is_printable ? byte : next++)] = byte;
  }
  return vocabulary;
}

TokenizerFiles byte_files() {
  const ordered_json level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  ordered_json added = ordered_json::array();
  for (const std::string_view special : kSpecialTokens) {
    added.push_back({{"id", *ByteTokenizer::special(special)},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const ordered_json whole = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", level},
      {"post_processor", nullptr},
      {"decoder", level},
      {"model", {{"type", "BPE"}, {"vocab", byte_vocabulary()}, {"merges", ordered_json::array()}}}};
  const ordered_json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"eos_token", kSpecialTokens[0]},
                                 {"pad_token", kSpecialTokens[1]},
                                 {"clean_up_tokenization_spaces", false}};
  return {{kTokenizerFile, whole.dump(1) + "\n"}, {"tokenizer_config.json", settings.dump(2) + "\n"}};
}

std::string read_whole(const fs::path& path) {
  const MappedFile file(path.string());
  if (file.size() > kMaxTokenizerFile) {
    throw ConfigError(fmt::format("{}: file has {} bytes; the limit for tokenizer files is {}", file.path(),
                                  file.size(), kMaxTokenizerFile));
  }
  return std::string(file.text());
}

bool is_tokenizer_file(std::string_view name) {
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](std::string_view beginning) { return name.starts_with(beginning); });
}

// A new tokenizer replaces the whole folder, so it must not contain anything else.
void check_only_tokenizer_files(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (!fs::exists(status)) return;
  std::string foreign = fs::is_directory(status) ? "" : folder;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const bool is_ours = is_tokenizer_file(entry.path().filename().string()) && entry.is_regular_file(error);
    if (!is_ours) foreign = entry.path().string();
  }
  if (foreign.empty()) return;
  throw ConfigError(
      fmt::format("{} is not a file of a tokenizer, and {} would be replaced; move it away, or choose "
                  "another --output",
                  foreign, folder));
}

// Sorted by name, so that the order does not depend on the file system.
TokenizerFiles files_in(const fs::path& folder) {
  TokenizerFiles files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (is_tokenizer_file(name) && !entry.is_directory(error)) files.emplace_back(name, read_whole(entry.path()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Returns whether training tokenizes |data| itself.
bool is_text(const std::string& data) {
  if (data.ends_with(".txt") || is_record_file(data) || is_several_files(data)) return true;
  if (!data.ends_with(".jsonl")) return false;
  const MappedFile file(data);
  const std::string_view text = file.text();
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return false;
  return parse_json_record(text.substr(begin, text.find('\n', begin) - begin), data).tokens.ids.empty();
}

}  // namespace

TokenizerFiles tokenizer_files(const std::string& tokenizer) {
  if (tokenizer == "byte") return byte_files();
  if (fs::is_directory(tokenizer)) return files_in(tokenizer);
  const fs::path file = tokenizer;
  if (file.filename() == kTokenizerFile) return files_in(file.has_parent_path() ? file.parent_path() : ".");
  return {{kTokenizerFile, read_whole(file)}};
}

// The names are those of ENDS in tokenizer_process.py.
std::optional<int64_t> end_of_document(const TokenizerFiles& files) {
  const auto found = std::ranges::find(files, kTokenizerFile, &TokenizerFiles::value_type::first);
  if (found == files.end()) return std::nullopt;
  const auto json = parse_json(found->second, kTokenizerFile);
  const auto id_of = [&](const std::string& token) -> std::optional<int64_t> {
    for (const auto& added : json.value("added_tokens", nlohmann::json::array())) {
      if (added.is_object() && added.value("content", "") == token) return added.value("id", int64_t{-1});
    }
    const auto vocabulary = nlohmann::json::json_pointer("/model/vocab");
    if (!json.contains(vocabulary) || !json.at(vocabulary).is_object()) return std::nullopt;
    const auto& tokens = json.at(vocabulary);
    return tokens.contains(token) ? std::optional(tokens.at(token).get<int64_t>()) : std::nullopt;
  };
  try {
    for (const char* token : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"}) {
      if (const std::optional<int64_t> id = id_of(token)) return id;
    }
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{}: {}", kTokenizerFile, json_reason(error)));
  }
  return std::nullopt;
}

std::string tokenizer_folder(const std::string& data) {
  const bool is_half = data.ends_with(".bin") || data.ends_with(".idx");
  return data.substr(0, data.size() - (is_half ? 4 : 0)) + ".tokenizer";
}

void check_tokenizer_folder(const std::string& data, const OutputRules& rules) {
  const std::string folder = tokenizer_folder(data);
  check_replaced_folder("--output", folder, rules);
  check_only_tokenizer_files(folder);
  std::error_code error;
  if (rules.overwrite || !fs::exists(folder, error)) return;
  throw ConfigError(fmt::format("{} already exists; choose another --output, or pass --overwrite", folder));
}

void write_tokenizer_files(const std::string& data, const TokenizerFiles& files) {
  const std::string folder = tokenizer_folder(data);
  std::error_code error;
  check_only_tokenizer_files(folder);
  fs::remove_all(folder, error);
  if (!error) fs::create_directory(folder, error);
  if (error) throw ConfigError(fmt::format("cannot create folder {}: {}", folder, error.message()));
  for (const auto& [name, text] : files) {
    OutputFile file(folder + "/" + name);
    file.write(text);
    file.sync();
    file.publish();
  }
}

TokenizerFiles read_tokenizer_files(const std::string& data, const std::string& tokenizer) {
  if (data.empty()) return {};  // samples generated by the program
  const std::string folder = tokenizer_folder(data);
  if (fs::is_directory(folder)) return files_in(folder);
  return is_text(data) ? tokenizer_files(tokenizer) : TokenizerFiles{};
}

}  // namespace concord
