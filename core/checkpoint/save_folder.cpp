#include "core/checkpoint/save_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/base/files/new_file.h"
#include "core/checkpoint/auxiliary_files.h"
#include "core/safetensors/writer.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNonceFile = ".concord-nonce";
constexpr size_t kNonceDigits = 16;
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kReplaced = ".old";  // the previous contents, if names cannot be exchanged

bool is_nonce(std::string_view text) {
  return text.size() == kNonceDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Returns the |folder| that a temporary folder belongs to; empty if |name| is not a temporary name.
std::string_view base_of(std::string_view name) {
  if (name.ends_with(kReplaced)) name.remove_suffix(kReplaced.size());
  const size_t at = name.rfind(kTemporary);
  if (at == std::string_view::npos || !is_nonce(name.substr(at + kTemporary.size()))) return {};
  return name.substr(0, at);
}

// Removes |folder|; the file that is_ours() checks goes last, so that the next process removes the rest if this one is
// killed.
void remove_ours(const fs::path& folder) {
  const std::vector<fs::directory_entry> entries(fs::directory_iterator(folder), {});
  for (const fs::directory_entry& entry : entries) {
    const bool last = entry.path().extension() == ".safetensors" || entry.path().filename() == kNonceFile;
    if (!last) fs::remove_all(entry.path());
  }
  fs::remove_all(folder);
}
void try_to_remove_ours(const fs::path& folder) noexcept {
  try {
    if (fs::exists(folder)) remove_ours(folder);
  } catch (const std::exception&) {  // retried the next time
  }
}

// Returns true for "model.safetensors", "optimizer-00001-of-00002.safetensors", and the index of such files.
bool is_tensor_file(std::string_view name) {
  constexpr std::string_view kStems[] = {"model", "adapter_model", "optimizer", "fp8"};
  for (const std::string_view stem : kStems) {
    if (!name.starts_with(stem)) continue;
    std::string rest(name.substr(stem.size()));
    for (char& letter : rest) {
      if (letter >= '0' && letter <= '9') letter = '0';
    }
    if (rest == ".safetensors" || rest == ".safetensors.index.json" || rest == "-00000-of-00000.safetensors")
      return true;
  }
  return false;
}

// Moves foreign files from the replaced folder |from| to the one that has replaced it.
void keep_foreign_files(const fs::path& from, const fs::path& to) {
  for (const std::string& name : foreign_files_in(from.string())) {
    if (!fs::exists(fs::symlink_status(to / name))) fs::rename(from / name, to / name);
  }
}

// Renames |temporary| to |folder|.
void put_in_place(const std::string& temporary, const std::string& folder) {
  if (!fs::exists(folder) || fs::is_empty(folder)) {
    safetensors::rename_durably(temporary, folder);  // replaces an empty folder
    return;
  }
  const long code = ::syscall(SYS_renameat2, AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE);
  if (code == 0) {
    safetensors::sync_folder(fs::absolute(folder).parent_path().string());
    keep_foreign_files(temporary, folder);
    remove_ours(temporary);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS)
    throw std::runtime_error(
        fmt::format("{}: cannot be exchanged with {}: {}", temporary, folder, std::strerror(errno)));
  const std::string old = fmt::format("{}{}", temporary, kReplaced);
  safetensors::rename_durably(folder, old);
  safetensors::rename_durably(temporary, folder);
  keep_foreign_files(old, folder);
  remove_ours(old);
}

// Without a nonce: a folder that was about to be renamed, was replaced, or is empty. Anything else with such a name is
// not touched.
bool is_ours(const fs::path& folder) {
  const fs::directory_iterator entries(folder);
  return fs::is_empty(folder) || std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
           return entry.path().extension() == ".safetensors";
         });
}

bool is_abandoned(const fs::path& folder) {
  const UniqueFd file(::open((folder / kNonceFile).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (file) return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  if (errno != ENOENT || !is_ours(folder)) return false;
  // Keep the only copy of the previous contents, if the names were not exchanged atomically.
  const std::string name = folder.filename().string();
  return !name.ends_with(kReplaced) || fs::exists(folder.parent_path() / base_of(name));
}

}  // namespace

std::vector<std::string> foreign_files_in(const std::string& folder) {
  constexpr std::string_view kTexts[] = {"config.json",   "adapter_config.json", "trainer_state.json",
                                         "metadata.json", "manifest.json",       "machine.json",
                                         kNonceFile};
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_saved = is_tensor_file(name) || is_auxiliary_file(name) ||
                          std::find(std::begin(kTexts), std::end(kTexts), name) != std::end(kTexts);
    if (!is_saved || !fs::is_regular_file(entry.symlink_status())) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string make_nonce() {
  std::random_device device;
  char text[kNonceDigits + 1];
  std::snprintf(text, sizeof text, "%08x%08x", device(), device());
  return text;
}

std::string temporary_folder(const std::string& folder, const std::string& nonce) {
  return fmt::format("{}{}{}", folder, kTemporary, nonce);
}

bool sees_temporary_folder(const std::string& folder, const std::string& nonce) {
  std::string text;
  std::ifstream(temporary_folder(folder, nonce) + "/" + kNonceFile) >> text;
  return is_nonce(nonce) && text == nonce;
}

SaveFolder::SaveFolder(std::string folder, const std::string& nonce)
    : folder_(std::move(folder)), path_(temporary_folder(folder_, nonce)) {
  const fs::path parent = fs::path(folder_).parent_path();
  if (!parent.empty()) fs::create_directories(parent);
  fs::create_directory(path_);
  const std::string file = path_ + "/" + kNonceFile;
  nonce_file_ = UniqueFd(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  int error = nonce_file_ ? 0 : errno;
  if (nonce_file_) ::flock(nonce_file_.get(), LOCK_EX | LOCK_NB);  // without locks no other process can take one either
  if (error == 0) error = write_all(nonce_file_.get(), nonce);
  if (error == 0) return;
  try_to_remove_ours(path_);
  throw std::runtime_error(fmt::format("{}: cannot be written: {}", file, std::strerror(error)));
}

// NFS keeps a deleted open file under another name in the same folder, so it is closed first.
SaveFolder::~SaveFolder() {
  nonce_file_.reset();
  try_to_remove_ours(path_);
}

void SaveFolder::publish() {
  safetensors::sync_folder(path_);
  nonce_file_.reset();
  fs::remove(path_ + "/" + kNonceFile);
  put_in_place(path_, folder_);
}

void remove_saved_folder(const std::string& folder) {
  const std::string nameless = temporary_folder(folder, make_nonce());
  safetensors::rename_durably(folder, nameless);
  if (fs::is_directory(fs::symlink_status(nameless))) {
    remove_ours(nameless);
  } else {
    fs::remove(nameless);
  }
}

std::vector<std::string> remove_abandoned_saves(const std::string& parent) noexcept {
  std::vector<std::string> removed;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(parent.empty() ? "." : parent)) {
      const bool named_so = !base_of(entry.path().filename().string()).empty();
      if (!named_so || entry.symlink_status().type() != fs::file_type::directory) continue;
      if (!is_abandoned(entry.path())) continue;
      const fs::path base = entry.path().parent_path() / base_of(entry.path().filename().string());
      if (!fs::exists(entry.path() / kNonceFile) && fs::is_directory(base)) keep_foreign_files(entry.path(), base);
      try_to_remove_ours(entry.path());
      removed.push_back(entry.path().filename().string());
    }
  } catch (const std::exception&) {  // retried the next time
  }
  return removed;
}

}  // namespace concord
