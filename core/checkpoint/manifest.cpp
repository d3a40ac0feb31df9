#include "core/checkpoint/manifest.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/checkpoint/crc32.h"

namespace concord {
namespace {

constexpr uint64_t kFormat = 1;
constexpr size_t kDigits = 8;

constexpr std::string_view kSpace = " \t\n\r";

// Parses the JSON of a manifest sequentially. A checkpoint may have 100,000 tensors, and the JSON library spends most
// of its time on the characters of strings. So strings are taken as is; only those with escapes or non-ASCII characters
// are passed to the library.
class ManifestParser {
 public:
  ManifestParser(std::string_view text, const std::string& place) : text_(text), place_(place) {}

  Manifest parse() {
    Manifest manifest;
    std::set<std::string> keys;
    object("instead of an object", [&](const std::string& key) {
      add_key(&keys, key);
      if (key == "format") {
        format();
      } else if (key == "checksum") {
        kind();
      } else if (key == "files") {
        object("as 'files'", [&](const std::string& name) { file(name, &manifest); });
      } else {
        refuse(fmt::format("has {} as {}, which is not known", value_text(), quoted(key)));
      }
    });
    skip_space();
    if (at_ != text_.size()) not_json();
    if (keys != std::set<std::string>{"checksum", "files", "format"}) refuse("needs format, checksum and files");
    return manifest;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(fmt::format("{}: {}; it is damaged, or not the manifest of a checkpoint", place_, why));
  }
  [[noreturn]] void not_json() const { refuse(fmt::format("is not JSON: at byte {}", at_ + 1)); }

  void format() {
    if (const uint64_t value = number("as 'format'"); value != kFormat) {
      refuse(fmt::format("has format {}; this version reads format {}", value, kFormat));
    }
  }
  void kind() {
    if (const std::string text = string("as 'checksum'"); text != "crc32") {
      refuse(fmt::format("has checksums of the kind {}; this version knows crc32", quoted(text)));
    }
  }

  void file(const std::string& name, Manifest* manifest) {
    if (name.empty() || name == "." || name == ".." || name == kManifestFile || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      refuse(fmt::format("has the file {}; must be another file in the same folder, without a '/'", quoted(name)));
    }
    const auto [found, is_new] = manifest->files.try_emplace(name);
    if (!is_new) refuse(fmt::format("has file {} twice", quoted(name)));
    ManifestFile& file = found->second;
    std::set<std::string> keys;
    object(fmt::format("as file {}", quoted(name)), [&](const std::string& key) {
      const std::string where = fmt::format("as {} of file {}", quoted(key), quoted(name));
      add_key(&keys, key);
      if (key == "bytes") {
        file.bytes = number(where);
      } else if (key == "crc32" || key == "header") {
        file.crc32 = checksum(where);
      } else if (key == "tensors") {
        object(where, [&](const std::string& tensor) { add_tensor(name, tensor, &file); });
      } else {
        refuse(fmt::format("has {} {}, which is not known", value_text(), where));
      }
    });
    file.by_tensor = keys.contains("header");
    if (keys != (file.by_tensor ? std::set<std::string>{"bytes", "header", "tensors"}
                                : std::set<std::string>{"bytes", "crc32"})) {
      refuse(fmt::format("file {} needs bytes and crc32, or bytes, header and tensors", quoted(name)));
    }
  }

  void add_tensor(const std::string& name, const std::string& tensor, ManifestFile* file) {
    skip_space();
    if (peek() != '"') expect_value('"', fmt::format("as tensor {} of file {}", quoted(tensor), quoted(name)));
    // to_json() writes them sorted: each is inserted at the end.
    const size_t before = file->tensors.size();
    file->tensors.emplace_hint(file->tensors.end(), tensor, checksum({}));
    if (file->tensors.size() == before) refuse(fmt::format("has tensor {} of {} twice", quoted(tensor), quoted(name)));
  }

  void add_key(std::set<std::string>* keys, const std::string& key) const {
    if (!keys->insert(key).second) refuse(fmt::format("has {} twice", quoted(key)));
  }

  // Calls |each| with every key; it reads the value. |where| ends the error message for a value of a different type.
  template <class Each>
  void object(const std::string& where, const Each& each) {
    expect_value('{', where);
    ++at_;
    skip_space();
    if (peek() == '}') {
      ++at_;
      return;
    }
    for (;;) {
      const std::string key = string_here();
      skip_space();
      if (peek() != ':') not_json();
      ++at_;
      each(key);
      skip_space();
      const char next = peek();
      if (next != ',' && next != '}') not_json();
      ++at_;
      if (next == '}') return;
      skip_space();
    }
  }

  uint64_t number(const std::string& where) {
    skip_space();
    const std::string_view digits = word();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool leading_zero = digits.size() > 1 && digits.front() == '0';
    if (error != std::errc() || end != digits.data() + digits.size() || leading_zero) {
      refuse(fmt::format("has {} {}", value_text(), where));
    }
    at_ += digits.size();
    return value;
  }

  uint32_t checksum(const std::string& where) {
    const std::string text = string(where);
    uint32_t value = 0;
    const bool digits = text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!digits) refuse(fmt::format("{} is not a checksum of {} hexadecimal digits", quoted(text), kDigits));
    std::from_chars(text.data(), text.data() + text.size(), value, 16);
    return value;
  }

  std::string string(const std::string& where) {
    expect_value('"', where);
    return string_here();
  }

  std::string string_here() {
    if (peek() != '"') not_json();
    const size_t begin = at_ + 1;
    size_t end = begin;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' && text_[end] >= ' ' && text_[end] <= '~')
      ++end;
    if (end < text_.size() && text_[end] == '"') {
      at_ = end + 1;
      return std::string(text_.substr(begin, end - begin));
    }
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) not_json();
    const std::string_view literal = text_.substr(at_, end + 1 - at_);
    at_ = end + 1;
    return parse_json(literal, place_).get<std::string>();
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void expect_value(char begin, const std::string& where) {
    skip_space();
    if (peek() != begin) refuse(fmt::format("has {} {}", value_text(), where));
  }

  // Returns the text up to a character that can follow a number or a literal.
  std::string_view word() const {
    return text_.substr(at_, std::min(text_.find_first_of(",}] \t\n\r", at_), text_.size()) - at_);
  }

  // Describes the type of the value at the current position.
  std::string value_text() {
    skip_space();
    switch (peek()) {
      case '{': return "an object";
      case '[': return "a list";
      case '"': return "a string";
      case '\0': not_json();
      default: return fmt::format("the value {}", quoted(word()));
    }
  }

  const std::string_view text_;
  const std::string& place_;
  size_t at_ = 0;
};

// Returns whether |text| can be written as is: most names can, and the library would take most of the time.
bool is_plain(std::string_view text) {
  for (const char each : text) {
    if (each < ' ' || each > '~' || each == '"' || each == '\\') return false;
  }
  return true;
}

void append_string(std::string& out, const std::string& text) {
  if (is_plain(text)) {
    out.append("\"").append(text).append("\"");
    return;
  }
  try {
    out += nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(fmt::format("the name {} is not UTF-8, so no manifest can have it", quoted(text)));
  }
}

void append_file(std::string& out, const ManifestFile& file) {
  out += fmt::format("{{\"bytes\":{},\"{}\":\"{}\"", file.bytes, file.by_tensor ? "header" : "crc32",
                     checksum_text(file.crc32));
  if (file.by_tensor) {
    out += ",\"tensors\":{";
    const char* between = "\n";
    for (const auto& [name, crc32] : file.tensors) {
      out += std::exchange(between, ",\n");
      append_string(out, name);
      out.append(":\"").append(checksum_text(crc32)).append("\"");
    }
    out += "}";
  }
  out += "}";
}

}  // namespace

std::string checksum_text(uint32_t crc32) { return fmt::format("{:08x}", crc32); }

std::string to_json(const Manifest& manifest) {
  std::string out = fmt::format("{{\"format\":{},\"checksum\":\"crc32\",\"files\":{{", kFormat);
  const char* between = "\n";
  for (const auto& [name, file] : manifest.files) {
    out += std::exchange(between, ",\n");
    append_string(out, name);
    out += ":";
    append_file(out, file);
  }
  return out + "}}\n";
}

Manifest parse_manifest(std::string_view json, const std::string& file) {
  refuse_zero_byte(json, file);
  return ManifestParser(json, file).parse();
}

uint32_t tensor_digest(const Manifest& manifest) {
  std::string text;
  for (const auto& [file, entry] : manifest.files) {
    for (const auto& [tensor, checksum] : entry.tensors) text += file + '\0' + tensor + '\0' + checksum_text(checksum);
  }
  return crc32(std::as_bytes(std::span(text)));
}

bool has_manifest(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder + "/" + kManifestFile, ignored);
}

Manifest read_manifest(const std::string& folder) {
  const std::string file = folder + "/" + kManifestFile;
  return parse_manifest(InputFile(file).read(kMaxManifestBytes, "the manifest of a checkpoint"), file);
}

ManifestFile checksum_file(const std::string& path) {
  constexpr size_t kPiece = 1 << 20;
  const InputFile file(path);
  std::vector<std::byte> piece(std::min<uint64_t>(kPiece, file.size() + 1));
  ManifestFile result;
  for (;;) {
    const ssize_t got = ::pread(file.fd(), piece.data(), piece.size(), static_cast<off_t>(result.bytes));
    if (got == 0) return result;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    result.crc32 = crc32(result.crc32, std::span(piece).first(static_cast<size_t>(got)));
    result.bytes += static_cast<uint64_t>(got);
  }
}

}  // namespace concord
