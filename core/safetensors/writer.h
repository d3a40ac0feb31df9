// Writes safetensors files: tensors are declared first, then their bytes arrive in pieces, in any order and from any
// number of processes.
//
// A partial file never exists under the final name: Writer writes to a temporary file, and finish() makes the bytes
// durable and renames it. If the file system supports it, the space is reserved before the first byte, so that a full
// disk is detected immediately. Throws ConfigError for invalid declarations, std::runtime_error for file system errors,
// with the file and the bytes. Threads: any for write(), concurrently; otherwise one at a time.
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

// The layout of a file: a value that every process of a job can compute by itself.
struct FilePlan {
  std::string head;  // the first bytes: length and JSON, padded so that the data starts at a multiple of 8
  std::vector<TensorInfo> tensors;  // in the order of their data
  std::vector<size_t> by_name;      // indices in |tensors|, sorted by name
  uint64_t file_bytes = 0;

  const TensorInfo& at(std::string_view name) const;  // throws std::out_of_range
  // Returns the position of byte 0 of |tensor| in the file.
  uint64_t place_of(const TensorInfo& tensor) const { return head.size() + tensor.begin; }
};

// Returns {"format": "pt"}: without it transformers rejects a file.
Metadata pytorch_metadata();

// Orders tensors by descending element size, so that each is aligned to its element's size, then in the given order.
// |file| is used in error messages.
FilePlan plan_file(std::vector<TensorShape> tensors, const Metadata& metadata, const std::string& file);

// A file that is written at given offsets. Closed on destruction; never removed.
class FilePart {
 public:
  // create: must not exist, and is resized to |bytes|; share: may exist already, and is resized to |bytes| if not 0;
  // sparse: like share, without reserving space for its data.
  enum class Mode { create, share, sparse };
  FilePart(std::string path, Mode mode, uint64_t bytes = 0);

  const std::string& path() const { return path_; }
  void write(uint64_t place, std::span<const std::byte> bytes);
  // Starts writing these bytes to disk, so that sync() has less to wait for. Never waits, never fails.
  void start_sync(uint64_t place, uint64_t bytes);
  void sync();  // Waits: until the written bytes are durable

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
  // Writes |bytes| at byte |offset| of the tensor |name|. Throws std::out_of_range if they exceed it.
  void write(std::string_view name, uint64_t offset, std::span<const std::byte> bytes);
  // Requires that all bytes of all tensors were written, in pieces of any size; a piece written twice counts twice.
  // Throws std::logic_error if the count differs.
  void finish();

 private:
  std::string path_;
  FilePlan plan_;
  FilePart file_;
  std::atomic<uint64_t> written_{0};
  bool finished_ = false;
};

// Makes the directory entries of |folder| durable: files that were created or renamed in it.
void sync_folder(const std::string& folder);
// Renames, replacing an existing file, and makes the new name durable.
void rename_durably(const std::string& from, const std::string& to);

}  // namespace concord::safetensors
