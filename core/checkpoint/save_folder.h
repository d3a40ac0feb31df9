// The folder that a save writes into: "<folder>.tmp-<nonce>" next to the one it is for, until it takes its name. So
// |folder| is always the old one or the new one.
//
// Rank 0 makes it and owns it. The other ranks get only the nonce, derive the name themselves, and check whether the
// folder that they see contains that nonce. Errors: std::runtime_error for what the file system says. Threads: one at a
// time.
#pragma once

#include <string>
#include <vector>

#include "platform/base/unique_fd.hpp"

namespace concord {

std::string make_nonce();  // 16 random hexadecimal digits
std::string temporary_folder(const std::string& folder, const std::string& nonce);

// Whether the folder that rank 0 has made for |folder| is the one that is seen here. False for what is not a nonce.
bool sees_temporary_folder(const std::string& folder, const std::string& nonce);

class SaveFolder {
 public:
  // Makes it, with its nonce in it. A lock on that file shows that it has an owner; the kernel releases it when the
  // process ends, for whatever reason.
  SaveFolder(std::string folder, const std::string& nonce);
  ~SaveFolder();  // removes it, unless it was published
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  // Makes it durable and gives it its name; what was there before is removed, and one of the two exists at any time if
  // the file system can exchange names. Files that no save writes are kept.
  void publish();

 private:
  std::string folder_;
  std::string path_;
  UniqueFd nonce_file_;
};

// The names of what is in |folder| and is not a file that saves write: put there by others. Throws
// std::filesystem::filesystem_error if it is not a folder.
std::vector<std::string> foreign_files_in(const std::string& folder);

// Removes a model or a checkpoint. It loses its name first, so that what has the name is never a part of it, even if
// the process is killed meanwhile; then remove_abandoned_saves() removes the rest.
void remove_saved_folder(const std::string& folder);

// Removes temporary folders in |parent| that have no owner, because the process that made them was killed. Those of a
// live process stay, on any machine whose file system has locks, and so do all where it has none. Returns the names of
// those that it removed. Never throws.
std::vector<std::string> remove_abandoned_saves(const std::string& parent) noexcept;

}  // namespace concord
