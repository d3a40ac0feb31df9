// The temporary folder of a save: "<folder>.tmp-<nonce>" next to |folder|, until it is renamed. So |folder| is always
// the old one or the new one.
//
// Rank 0 creates and owns it. The other ranks receive only the nonce, derive the name, and check whether the folder
// that they see contains that nonce. Throws std::runtime_error for file system errors. Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "platform/base/unique_fd.hpp"

namespace concord {

std::string make_nonce();  // 16 random hexadecimal digits
std::string temporary_folder(const std::string& folder, const std::string& nonce);

// Returns whether the folder that rank 0 has created for |folder| is visible here. False if |nonce| is not valid.
bool sees_temporary_folder(const std::string& folder, const std::string& nonce);

class SaveFolder {
 public:
  // Creates the folder with its nonce file. A lock on that file marks it as owned; the kernel releases the lock when
  // the process exits, for any reason.
  SaveFolder(std::string folder, const std::string& nonce);
  ~SaveFolder();  // removes the folder, unless it was published
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  // Makes it durable and renames it to |folder|; the previous folder is removed, and one of the two exists at any time
  // if the file system can exchange names. Keeps files that no save writes.
  void publish();

 private:
  std::string folder_;
  std::string path_;
  UniqueFd nonce_file_;
};

// Returns the names of entries in |folder| that saves do not write. Throws std::filesystem::filesystem_error if it is
// not a folder.
std::vector<std::string> foreign_files_in(const std::string& folder);

// Removes a model or a checkpoint. Renames it first, so that a partial folder never has its name, even if the process
// is killed meanwhile; remove_abandoned_saves() then removes the rest.
void remove_saved_folder(const std::string& folder);

// Removes temporary folders in |parent| without an owner, because the process that created them was killed. Keeps those
// of a live process, on any machine whose file system has locks, and all of them if it has none. Returns the names of
// the removed folders. Never throws.
std::vector<std::string> remove_abandoned_saves(const std::string& parent) noexcept;

}  // namespace concord
