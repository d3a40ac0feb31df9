#include "core/checkpoint/auxiliary_files.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/base/files/input_file.h"
#include "core/safetensors/writer.h"

namespace concord {

using safetensors::FilePart;

bool is_auxiliary_file(std::string_view name) {
  // A trailing '*' marks a prefix.
  static constexpr std::string_view kCarried[] = {kGenerationConfigFile,
                                                  "tokenizer*",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "vocab.txt",
                                                  "merges.txt",
                                                  "chat_template*",
                                                  "spiece.model",
                                                  "processor_config.json",
                                                  "preprocessor_config.json",
                                                  "video_preprocessor_config.json"};
  return std::any_of(std::begin(kCarried), std::end(kCarried), [&](std::string_view pattern) {
    return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
  });
}

std::vector<std::string> auxiliary_files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!is_auxiliary_file(name) || entry.is_directory()) continue;
    InputFile(entry.path(), "it would be copied to every saved model; move it away");
    names.push_back(name);
  }
  return names;
}

void copy_file_durably(const std::string& from, const std::string& to) {
  const InputFile source(from);
  FilePart target(to, FilePart::Mode::create);
  std::vector<std::byte> piece(1 << 20);
  for (uint64_t place = 0; place < source.size();) {
    const ssize_t got = ::pread(source.fd(), piece.data(), piece.size(), static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(fmt::format("{}: cannot be read: {}", from, std::strerror(errno)));
    if (got == 0) throw std::runtime_error(fmt::format("{}: has become shorter while it was copied", from));
    target.write(place, std::span(piece).first(static_cast<size_t>(got)));
    place += static_cast<uint64_t>(got);
  }
  target.sync();
}

void write_file_durably(const std::string& path, std::string_view text) {
  FilePart file(path, FilePart::Mode::create, text.size());
  file.write(0, std::as_bytes(std::span(text)));
  file.sync();
}

}  // namespace concord
