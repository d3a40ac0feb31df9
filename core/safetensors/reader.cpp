#include "core/safetensors/reader.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord::safetensors {
namespace {

std::string names_text(std::span<const TensorInfo> tensors) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(tensors.size(), kShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", quoted(tensors[i].name));
  if (tensors.size() > kShown) text += fmt::format(", ... ({} in all)", tensors.size());
  return text.empty() ? "no tensors" : text;
}

// Bytes that the kernel maps around an accessed page (default of fault_around_bytes).
constexpr uintptr_t kMappedAround = 64 << 10;

}  // namespace

Reader::Reader(std::string path) : file_(std::move(path)) {
  map();
  try {
    parse();
  } catch (...) {
    unmap();
    throw;
  }
}

Reader::~Reader() { unmap(); }

void Reader::map() {
  if (file_.size() < kLengthBytes) (void)header_length({}, file_.size(), path());  // throws
  void* map = ::mmap(nullptr, file_.size(), PROT_READ, MAP_SHARED, file_.fd(), 0);
  if (map == MAP_FAILED)
    throw std::runtime_error(fmt::format("{}: mmap of {} bytes: {}", path(), file_.size(), std::strerror(errno)));
  map_ = static_cast<const std::byte*>(map);
  watch_ = MappingWatch(map_, file_.size(), path());
}

void Reader::unmap() {
  watch_ = {};
  ::munmap(const_cast<std::byte*>(map_), file_.size());
}

void Reader::parse() {
  const std::string_view text(reinterpret_cast<const char*>(map_), file_.size());
  const uint64_t length = header_length(text.substr(0, kLengthBytes), file_.size(), path());
  data_begin_ = kLengthBytes + length;
  header_ = parse_header(text.substr(kLengthBytes, length), file_.size() - data_begin_, path());
  by_name_.reserve(header_.tensors.size());
  for (const TensorInfo& tensor : header_.tensors) by_name_.emplace(tensor.name, &tensor);
}

const TensorInfo* Reader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const TensorInfo& Reader::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr)
    throw ConfigError(
        fmt::format("{}: has no tensor {}; available: {}", path(), quoted(name), names_text(header_.tensors)));
  return *tensor;
}

std::span<const std::byte> Reader::data(const TensorInfo& tensor) const {
  return {map_ + data_begin_ + tensor.begin, tensor.bytes()};
}

void Reader::read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> to) const {
  if (offset > tensor.bytes() || to.size() > tensor.bytes() - offset) {
    throw std::out_of_range(fmt::format("{}: {} bytes from {} of tensor {}, which has {}", path(), to.size(), offset,
                                        quoted(tensor.name), tensor.bytes()));
  }
  uint64_t place = data_begin_ + tensor.begin + offset;
  while (!to.empty()) {
    const ssize_t got = ::pread(file_.fd(), to.data(), to.size(), static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw std::runtime_error(
          fmt::format("{}: reading tensor {}: {}", path(), quoted(tensor.name), std::strerror(errno)));
    if (got == 0) {
      throw std::runtime_error(
          fmt::format("{}: is now shorter than the {} bytes it had when it was opened, while reading tensor {}", path(),
                      file_.size(), quoted(tensor.name)));
    }
    to = to.subspan(static_cast<size_t>(got));
    place += static_cast<uint64_t>(got);
  }
}

std::shared_ptr<std::byte> Reader::map_private(const TensorInfo& tensor, uint64_t offset, uint64_t bytes) const {
  const uint64_t begin = data_begin_ + tensor.begin + offset;
  if (offset > tensor.bytes() || bytes == 0 || bytes > file_.size() - begin) {
    throw std::out_of_range(fmt::format("{}: {} bytes from {} of tensor {}; the file has only {} there", path(), bytes,
                                        offset, quoted(tensor.name), file_.size() - std::min(begin, file_.size())));
  }
  const uint64_t before = begin % static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)), length = before + bytes;
  void* map =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, file_.fd(), static_cast<off_t>(begin - before));
  if (map == MAP_FAILED)
    throw std::runtime_error(fmt::format("{}: private mmap of {} bytes: {}", path(), length, std::strerror(errno)));
  auto watch = std::make_shared<MappingWatch>(map, length, path());
  return {static_cast<std::byte*>(map) + before, [map, length, watch](std::byte*) mutable {
            watch.reset();
            ::munmap(map, length);
          }};
}

void Reader::release(std::span<const std::byte> part) const {
  if (part.empty()) return;
  const auto first = reinterpret_cast<uintptr_t>(map_);
  const auto begin = reinterpret_cast<uintptr_t>(part.data()), end = begin + part.size();
  const uintptr_t from = std::max(first, begin / kMappedAround * kMappedAround);
  const uintptr_t to = std::min(first + file_.size(), (end / kMappedAround + 1) * kMappedAround);
  // Only a hint: failure costs nothing but memory.
  (void)::madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

}  // namespace concord::safetensors
