#include "core/checkpoint/verify.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <unordered_set>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/quoted.h"
#include "core/checkpoint/crc32.h"
#include "core/safetensors/header.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceBytes = 4 << 20;
constexpr int kMaxThreads = 8;

// The data of one checksum: a plain file, or a tensor.
struct Unit {
  const InputFile* file;
  const std::string* name;
  std::string tensor;
  uint64_t begin, bytes;
  uint32_t expected;
  std::atomic<uint32_t> sum{0};
  std::mutex mutex = {};
  std::optional<Damage> damage = {};
};

// The part of a verification that this process performs. Every process lists the units in the same order, and each unit
// belongs to the part that contains the middle of its bytes.
class Verification {
 public:
  Verification(const std::string& folder, const Manifest& manifest, const VerifyShare& share)
      : folder_(folder), share_(share) {
    if (share.part < 0 || share.part >= share.parts) {
      throw std::out_of_range(fmt::format("part {} of {} of a checkpoint", share.part, share.parts));
    }
    for (const auto& [name, file] : manifest.files) all_bytes_ += file.bytes;
    for (const auto& [name, file] : manifest.files) add(name, file);
  }

  std::vector<Damage> run(const VerifyProgress& progress) {
    const int threads = std::min<int>(thread_count(), static_cast<int>(pieces_.size()));
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back([&] { work(progress); });
    work(progress);
    helpers.clear();
    for (Unit& unit : units_) judge(unit);
    std::stable_sort(damages_.begin(), damages_.end(),
                     [](const Damage& a, const Damage& b) { return a.file < b.file; });
    return std::move(damages_);
  }

 private:
  struct Piece {
    Unit* unit;
    uint64_t offset, bytes;
  };

  int thread_count() const {
    if (share_.threads > 0) return share_.threads;
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  }

  // Returns whether this process verifies the next |bytes|.
  bool is_mine(uint64_t bytes) {
    const long double middle = static_cast<long double>(planned_) + static_cast<long double>(bytes) / 2;
    planned_ += bytes;
    const auto parts = static_cast<long double>(share_.parts);
    const auto part =
        static_cast<int64_t>(middle * parts / static_cast<long double>(std::max<uint64_t>(all_bytes_, 1)));
    return std::min(part, share_.parts - 1) == share_.part;
  }

  void add(const std::string& name, const ManifestFile& file) {
    const uint64_t before = planned_;
    if (const InputFile* input = open(name, file)) {
      std::optional<Damage> wrong_size;
      if (input->size() != file.bytes) {
        wrong_size = {.kind = Damage::Kind::size,
                      .file = name,
                      .expected = std::to_string(file.bytes),
                      .found = std::to_string(input->size())};
      }
      file.by_tensor ? add_tensors(name, file, *input, wrong_size) : add_plain(name, file, *input, wrong_size);
    }
    planned_ = before + file.bytes;  // whatever was located in it, since the other processes may have seen more
  }

  // Returns null if it cannot be opened.
  const InputFile* open(const std::string& name, const ManifestFile& file) {
    const std::string path = folder_ + "/" + name;
    try {
      return files_.emplace_back(std::make_unique<InputFile>(path)).get();
    } catch (const ConfigError& error) {
      struct stat ignored{};
      const bool exists = ::lstat(path.c_str(), &ignored) == 0;
      if (is_mine(file.bytes)) {
        damages_.push_back(exists ? Damage{.kind = Damage::Kind::unreadable, .file = name, .reason = error.what()}
                                  : Damage{.kind = Damage::Kind::missing, .file = name});
      }
      return nullptr;
    }
  }

  void add_plain(const std::string& name, const ManifestFile& file, const InputFile& input,
                 const std::optional<Damage>& wrong_size) {
    if (!is_mine(file.bytes)) return;
    if (wrong_size) {
      damages_.push_back(*wrong_size);
    } else {
      add_unit(input, name, "", 0, file.bytes, file.crc32);
    }
  }

  // Every process reads a header, since it needs the offsets, but only one reports its damage.
  void add_tensors(const std::string& name, const ManifestFile& file, const InputFile& input,
                   const std::optional<Damage>& wrong_size) {
    std::string head;
    Damage damage{.kind = Damage::Kind::header, .file = name};
    std::optional<safetensors::Header> header;
    try {
      head = read_head(input);
      const uint32_t found = crc32(std::as_bytes(std::span(head)));
      if (found != file.crc32) {
        damage.expected = checksum_text(file.crc32);
        damage.found = checksum_text(found);
      }
      // Offsets assume the size in the manifest: the rest of a truncated file can be verified.
      header = safetensors::parse_header(std::string_view(head).substr(safetensors::kLengthBytes),
                                         file.bytes - std::min<uint64_t>(file.bytes, head.size()), input.path());
    } catch (const std::exception& error) {
      damage.reason = error.what();
    }
    const bool mine = is_mine(head.size());
    const bool intact = damage.found.empty() && damage.reason.empty();
    if (mine && wrong_size) damages_.push_back(*wrong_size);
    if (mine && !intact) damages_.push_back(damage);
    if (!intact) return;
    if (mine) compare_names(name, file, *header);
    for (safetensors::TensorInfo& tensor : header->tensors) {
      const auto expected = file.tensors.find(tensor.name);
      if (is_mine(tensor.bytes()) && expected != file.tensors.end()) {
        add_unit(input, name, std::move(tensor.name), head.size() + tensor.begin, tensor.bytes(), expected->second);
      }
    }
  }

  static std::string read_head(const InputFile& input) {
    std::string head(safetensors::kLengthBytes, '\0');
    head.resize(input.read_at(0, std::as_writable_bytes(std::span(head))));
    const uint64_t length = safetensors::header_length(head, input.size(), input.path());
    head.resize(safetensors::kLengthBytes + length);
    head.resize(input.read_at(0, std::as_writable_bytes(std::span(head))));
    return head;
  }

  void compare_names(const std::string& name, const ManifestFile& file, const safetensors::Header& header) {
    std::unordered_set<std::string_view> in_header;
    for (const safetensors::TensorInfo& tensor : header.tensors) {
      in_header.insert(tensor.name);
      if (!file.tensors.contains(tensor.name)) {
        damages_.push_back({.kind = Damage::Kind::not_in_manifest, .file = name, .tensor = tensor.name});
      }
    }
    for (const auto& [tensor, crc32] : file.tensors) {
      if (!in_header.contains(tensor)) {
        damages_.push_back({.kind = Damage::Kind::not_in_header, .file = name, .tensor = tensor});
      }
    }
  }

  void add_unit(const InputFile& input, const std::string& name, std::string tensor, uint64_t begin, uint64_t bytes,
                uint32_t expected) {
    Unit& unit = units_.emplace_back(&input, &name, std::move(tensor), begin, bytes, expected);
    if (begin > input.size() || bytes > input.size() - begin) {
      unit.damage = Damage{.kind = Damage::Kind::cut_off, .file = name, .tensor = unit.tensor};
      return;
    }
    for (uint64_t offset = 0; offset < bytes; offset += kPieceBytes) {
      pieces_.push_back({&unit, offset, std::min(kPieceBytes, bytes - offset)});
    }
    my_bytes_ += bytes;
  }

  void work(const VerifyProgress& progress) {
    std::vector<std::byte> buffer(kPieceBytes);
    for (size_t next = next_++; next < pieces_.size(); next = next_++) {
      const Piece& piece = pieces_[next];
      verify_piece(piece, std::span(buffer).first(piece.bytes));
      if (!progress) continue;
      const std::lock_guard lock(progress_mutex_);
      progress(done_ += piece.bytes, my_bytes_);
    }
  }

  static void verify_piece(const Piece& piece, std::span<std::byte> buffer) {
    Unit& unit = *piece.unit;
    std::string problem;
    try {
      if (unit.file->read_at(unit.begin + piece.offset, buffer) == buffer.size()) {
        unit.sum ^= crc32_share(buffer, piece.offset, unit.bytes);
        return;
      }
      problem = "the file has become shorter";
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::lock_guard lock(unit.mutex);
    unit.damage =
        Damage{.kind = Damage::Kind::unreadable, .file = *unit.name, .tensor = unit.tensor, .reason = problem};
  }

  void judge(Unit& unit) {
    const uint32_t found = crc32_of_zeros(unit.bytes) ^ unit.sum;
    if (!unit.damage && found != unit.expected) {
      unit.damage = Damage{.kind = Damage::Kind::checksum,
                           .file = *unit.name,
                           .tensor = unit.tensor,
                           .expected = checksum_text(unit.expected),
                           .found = checksum_text(found)};
    }
    if (unit.damage) damages_.push_back(std::move(*unit.damage));
  }

  const std::string& folder_;
  const VerifyShare share_;
  uint64_t all_bytes_ = 0, planned_ = 0, my_bytes_ = 0;
  std::vector<std::unique_ptr<InputFile>> files_;
  std::deque<Unit> units_;
  std::vector<Piece> pieces_;
  std::vector<Damage> damages_;
  std::atomic<size_t> next_{0};
  std::mutex progress_mutex_;
  uint64_t done_ = 0;
};

}  // namespace

const char* to_string(Damage::Kind kind) {
  switch (kind) {
    case Damage::Kind::manifest: return "manifest";
    case Damage::Kind::missing: return "missing";
    case Damage::Kind::size: return "size";
    case Damage::Kind::header: return "header";
    case Damage::Kind::checksum: return "checksum";
    case Damage::Kind::cut_off: return "cut off";
    case Damage::Kind::not_in_header: return "not in header";
    case Damage::Kind::not_in_manifest: return "not in manifest";
    case Damage::Kind::unreadable: return "unreadable";
  }
  return "unknown";
}

std::string to_string(const Damage& damage) {
  const std::string what = damage.tensor.empty()
                               ? one_line(damage.file)
                               : fmt::format("{}: tensor {}", one_line(damage.file), quoted(damage.tensor));
  const char* verb = damage.tensor.empty() ? ":" : "";
  switch (damage.kind) {
    case Damage::Kind::manifest: return fmt::format("{}: {}", what, damage.reason);
    case Damage::Kind::missing: return fmt::format("{}: is missing", what);
    case Damage::Kind::size:
      return fmt::format("{}: has {} bytes, but the manifest has {}", what, damage.found, damage.expected);
    case Damage::Kind::header:
      if (!damage.found.empty()) {
        return fmt::format(
            "{}: its header has the checksum {}, but the manifest has {}; its tensors were not verified{}", what,
            damage.found, damage.expected, damage.reason.empty() ? "" : " (" + damage.reason + ")");
      }
      return fmt::format("{}: its header cannot be read, so its tensors were not verified: {}", what, damage.reason);
    case Damage::Kind::checksum:
      return fmt::format("{}{} has the checksum {}, but the manifest has {}", what, verb, damage.found,
                         damage.expected);
    case Damage::Kind::cut_off: return fmt::format("{} lies beyond the end of the file", what);
    case Damage::Kind::not_in_header: return fmt::format("{} is in the manifest, but not in the file", what);
    case Damage::Kind::not_in_manifest: return fmt::format("{} is in the file, but not in the manifest", what);
    case Damage::Kind::unreadable: return fmt::format("{}{} cannot be read: {}", what, verb, damage.reason);
  }
  return what;
}

std::vector<Damage> verify_checkpoint(const std::string& folder, const VerifyShare& share,
                                      const VerifyProgress& progress) {
  if (!has_manifest(folder)) {
    throw ConfigError(fmt::format("{}: has no {}, so there are no checksums to verify it by", folder, kManifestFile));
  }
  std::optional<Manifest> manifest;
  try {
    manifest = read_manifest(folder);
  } catch (const ConfigError& error) {
    if (share.part != 0) return {};
    return {{.kind = Damage::Kind::manifest, .file = kManifestFile, .reason = error.what()}};
  }
  return verify_files(folder, *manifest, share, progress);
}

std::vector<Damage> verify_files(const std::string& folder, const Manifest& manifest, const VerifyShare& share,
                                 const VerifyProgress& progress) {
  return Verification(folder, manifest, share).run(progress);
}

std::vector<Damage> compare_sizes(const std::string& folder, const Manifest& manifest) {
  std::vector<Damage> damages;
  for (const auto& [name, file] : manifest.files) {
    struct stat found{};
    if (::stat((folder + "/" + name).c_str(), &found) != 0) {
      const int error = errno;
      damages.push_back(error == ENOENT
                            ? Damage{.kind = Damage::Kind::missing, .file = name}
                            : Damage{.kind = Damage::Kind::unreadable, .file = name, .reason = std::strerror(error)});
    } else if (static_cast<uint64_t>(found.st_size) != file.bytes) {
      damages.push_back({.kind = Damage::Kind::size,
                         .file = name,
                         .expected = std::to_string(file.bytes),
                         .found = std::to_string(found.st_size)});
    }
  }
  return damages;
}

std::vector<std::string> files_without_checksum(const std::string& folder, const Manifest& manifest) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != kManifestFile && !manifest.files.contains(name)) {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace concord
