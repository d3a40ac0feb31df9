// Writing safetensors files: tensors are declared first, then their bytes come in pieces, in any order and from any
// number of processes.
//
// Nothing half-written ever exists under the final name: Writer writes to a temporary file, and finish() makes the
// bytes durable and renames. If the file system can, the space is reserved before the first byte, so a full disk is an
// error immediately. Errors: ConfigError for declarations that are invalid; std::runtime_error for what the file system
// says, with the file and the bytes. Threads: write() any, at the same time; everything else one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors/header.h"
#include "platform/base/unique_fd.hpp"

namespace concord::safetensors {

// What a file will be: a value that every process of a job can compute on its own.
struct FilePlan {
  std::string head;  // the first bytes: length and JSON, padded so that the data begins at a multiple of 8
  std::vector<TensorInfo> tensors;  // in the order of their data
  std::vector<size_t> by_name;      // places in |tensors|, in the order of the names
  uint64_t file_bytes = 0;

  const TensorInfo& at(std::string_view name) const;  // throws std::out_of_range
  // The position of byte 0 of |tensor| in the file.
  uint64_t place_of(const TensorInfo& tensor) const { return head.size() + tensor.begin; }
};

// {"format": "pt"}: without it transformers refuses a file.
Metadata pytorch_metadata();

// Tensors of larger elements first, so that each is at a multiple of its element's size; within that in the order
// given. |file| is for errors.
FilePlan plan_file(std::vector<TensorShape> tensors, const Metadata& metadata, const std::string& file);

// A file that is being written at given places. Closes it when it goes away; removes nothing.
class FilePart {
 public:
  // create: must not exist, and gets |bytes|; share: may exist already, and gets |bytes| if that is not 0.
  enum class Mode { create, share };
  FilePart(std::string path, Mode mode, uint64_t bytes = 0);

  const std::string& path() const { return path_; }
  void write(uint64_t place, std::span<const std::byte> bytes);
  // Lets the disk begin with these bytes, so that sync() has less to wait for. Never waits, never fails.
  void start_sync(uint64_t place, uint64_t bytes);
  void sync();  // Waits: until what was written is durable

 private:
  std::string path_;
  UniqueFd fd_;
};

class Writer {
 public:
  // Replaces |path| at finish(), if it exists. Until then the file is called |path| followed by
  // ".tmp-<process>-<number>".
  Writer(std::string path, std::vector<TensorShape> tensors, const Metadata& metadata = pytorch_metadata());
  ~Writer();  // removes the unfinished file

  const FilePlan& plan() const { return plan_; }
  // |bytes| at byte |offset| of the tensor |name|. Throws std::out_of_range if they do not belong there.
  void write(std::string_view name, uint64_t offset, std::span<const std::byte> bytes);
  // All bytes of all tensors have to be written; which pieces they came in does not matter, and a piece written twice
  // counts twice. Throws std::logic_error if the count differs.
  void finish();

 private:
  std::string path_;
  FilePlan plan_;
  FilePart file_;
  std::atomic<uint64_t> written_{0};
  bool finished_ = false;
};

// Makes the names of files in |folder| durable: what was created or renamed in it.
void sync_folder(const std::string& folder);
// Renames, replacing an existing file, and makes the new name durable.
void rename_durably(const std::string& from, const std::string& to);

}  // namespace concord::safetensors
