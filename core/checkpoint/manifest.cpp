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

#include "core/checkpoint/crc32.h"
#include "core/config_error.h"
#include "core/input_file.h"
#include "core/parse_json.h"
#include "core/quoted.h"

namespace concord {
namespace {

constexpr uint64_t kFormat = 1;
constexpr size_t kDigits = 8;

// Handles the JSON while it is parsed: a checkpoint may have 100,000 tensors. Anything unexpected stops it there, so
// nesting is bounded.
class ManifestSax {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  ManifestSax(const std::string& place, Manifest& manifest) : place_(place), manifest_(manifest) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(fmt::format("{}: {}; it is damaged, or not the manifest of a checkpoint", place_, why));
  }

  bool start_object(size_t) {
    const bool allowed =
        depth_ == 0 || (depth_ == 1 && key_ == "files") || depth_ == 2 || (depth_ == 3 && key_ == "tensors");
    if (!allowed) unexpected("an object");
    ++depth_;
    return true;
  }

  bool end_object() {
    --depth_;
    if (depth_ == 2) finish_file();
    if (depth_ == 0) finish();
    return true;
  }

  bool key(const string_t& text) {
    if (depth_ == 2) {
      start_file(text);
    } else if (depth_ == 4) {
      tensor_ = text;
    } else {
      if (!(depth_ == 1 ? keys_ : file_keys_).insert(text).second) refuse(fmt::format("has {} twice", quoted(text)));
      key_ = text;
    }
    return true;
  }

  bool string(const string_t& text) {
    if (depth_ == 4) {
      if (!file_->tensors.emplace(tensor_, checksum(text)).second)
        refuse(fmt::format("has tensor {} of {} twice", quoted(tensor_), quoted(name_)));
    } else if (depth_ == 3 && (key_ == "crc32" || key_ == "header")) {
      file_->crc32 = checksum(text);
    } else if (depth_ != 1 || key_ != "checksum") {
      unexpected(fmt::format("the string {}", quoted(text)));
    } else if (text != "crc32") {
      refuse(fmt::format("has checksums of the kind {}; this version knows crc32", quoted(text)));
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) {
    if (depth_ == 3 && key_ == "bytes") {
      file_->bytes = value;
    } else if (depth_ != 1 || key_ != "format") {
      unexpected(fmt::format("the number {}", value));
    } else if (value != kFormat) {
      refuse(fmt::format("has format {}; this version reads format {}", value, kFormat));
    }
    return true;
  }

  bool number_integer(number_integer_t value) { return unexpected(fmt::format("the number {}", value)); }
  bool number_float(number_float_t, const string_t& text) {
    return unexpected(fmt::format("the number {}", quoted(text)));
  }
  bool null() { return unexpected("null"); }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) { return unexpected("binary data"); }
  bool start_array(size_t) { return unexpected("a list"); }
  bool end_array() { return true; }
  bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception&) {
    refuse(fmt::format("is not JSON: at byte {} after {}", position, quoted(token)));
  }

 private:
  void start_file(const string_t& name) {
    if (name.empty() || name == "." || name == ".." || name == kManifestFile || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      refuse(fmt::format("has the file {}; must be another file in the same folder, without a '/'", quoted(name)));
    }
    const auto [found, is_new] = manifest_.files.try_emplace(name);
    if (!is_new) refuse(fmt::format("has file {} twice", quoted(name)));
    name_ = name;
    file_ = &found->second;
    file_keys_.clear();
  }

  void finish_file() {
    file_->by_tensor = file_keys_.contains("header");
    const std::set<std::string> wanted = file_->by_tensor ? std::set<std::string>{"bytes", "header", "tensors"}
                                                          : std::set<std::string>{"bytes", "crc32"};
    if (file_keys_ != wanted) {
      refuse(fmt::format("file {} needs bytes and crc32, or bytes, header and tensors", quoted(name_)));
    }
  }

  void finish() const {
    if (keys_ != std::set<std::string>{"checksum", "files", "format"}) refuse("needs format, checksum and files");
  }

  uint32_t checksum(const string_t& text) const {
    uint32_t value = 0;
    const bool digits = text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!digits) refuse(fmt::format("{} is not a checksum of {} hexadecimal digits", quoted(text), kDigits));
    std::from_chars(text.data(), text.data() + text.size(), value, 16);
    return value;
  }

  [[noreturn]] bool unexpected(const std::string& what) const {
    std::string where = "instead of an object";
    if (depth_ == 1) where = fmt::format("as {}", quoted(key_));
    if (depth_ == 2) where = fmt::format("as file {}", quoted(name_));
    if (depth_ == 3) where = fmt::format("as {} of file {}", quoted(key_), quoted(name_));
    if (depth_ == 4) where = fmt::format("as tensor {} of file {}", quoted(tensor_), quoted(name_));
    refuse(fmt::format("has {} {}", what, where));
  }

  const std::string& place_;
  Manifest& manifest_;
  int depth_ = 0;               // 1: the manifest, 2: "files", 3: a file, 4: its "tensors"
  std::set<std::string> keys_;  // of the manifest
  std::set<std::string> file_keys_;
  std::string key_;   // of the manifest or of a file
  std::string name_;  // of the file
  std::string tensor_;
  ManifestFile* file_ = nullptr;
};

// Whether |text| can be written as it is: most names can, and going through the library costs more than all else.
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
  Manifest manifest;
  ManifestSax sax(file, manifest);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  return manifest;
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
