// A safetensors file opened for reading: its header is checked; its data is mapped and not read until it is used.
//
// data() returns the mapping itself: no copy, and pages come from and stay in the page cache. They count towards the
// process's resident memory until release(). read() copies with pread, without page faults or resident memory except
// for the target. A file must not be truncated while it is open: read() then throws, but accessing data() beyond the
// new end terminates the process with the file's name (core/base/files/mapping_watch.h). Concord's own writers never
// change a file in place; they rename a complete one over it, and a Reader keeps the old one. Threads: any,
// concurrently. Throws ConfigError for an invalid file, std::runtime_error for an I/O error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/base/files/input_file.h"
#include "core/base/files/mapping_watch.h"
#include "core/safetensors/header.h"

namespace concord::safetensors {

class Reader {
 public:
  explicit Reader(std::string path);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const std::string& path() const { return file_.path(); }
  const Metadata& metadata() const { return header_.metadata; }
  std::span<const TensorInfo> tensors() const { return header_.tensors; }  // in the order of their data
  const TensorInfo* find(std::string_view name) const;                     // null if it does not exist
  const TensorInfo& at(std::string_view name) const;                       // throws ConfigError with the existing names

  // Valid as long as the reader. The address is aligned to the element's size only if the file was written that way:
  // copy with memcpy, or check is_aligned().
  std::span<const std::byte> data(const TensorInfo& tensor) const;
  static bool is_aligned(std::span<const std::byte> data, DType dtype) {
    return reinterpret_cast<uintptr_t>(data.data()) % static_cast<uintptr_t>(size_of(dtype)) == 0;
  }
  // Reads |to.size()| bytes starting at byte |offset| of the tensor.
  void read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> to) const;

  // Maps |bytes| starting at byte |offset| of the tensor, possibly into the following tensors, as private memory: pages
  // are loaded from the file when they are accessed and copied when they are written; the file never changes. The
  // mapping outlives the reader. Until a page is written, truncating the file is as fatal as for data().
  std::shared_ptr<std::byte> map_private(const TensorInfo& tensor, uint64_t offset, uint64_t bytes) const;

  // Hints that a part of data() has been used: its pages (and those that the kernel maps around it) no longer count as
  // resident. Their content can still be read.
  void release(std::span<const std::byte> part) const;

 private:
  void map();
  void unmap();
  void parse();

  InputFile file_;
  const std::byte* map_ = nullptr;
  MappingWatch watch_;
  uint64_t data_begin_ = 0;
  Header header_;
  std::unordered_map<std::string_view, const TensorInfo*> by_name_;  // points into header_
};

}  // namespace concord::safetensors
