#include "core/safetensors/writer.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <unordered_set>

#include "core/base/config_error.h"
#include "core/base/files/new_file.h"
#include "core/base/quoted.h"

namespace concord::safetensors {
namespace {

constexpr size_t kAlignment = 8;  // size of the largest element

[[noreturn]] void fail(const std::string& path, const std::string& what, int code) {
  throw std::runtime_error(fmt::format("{}: {}: {}", path, what, std::strerror(code)));
}

std::string head_of(const std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::string text = json.dump();
  text.pop_back();  // removes the brace; adding many names to a JSON object would be quadratic
  bool first = metadata.empty();
  for (const TensorInfo& tensor : tensors) {
    const nlohmann::ordered_json entry = {
        {"dtype", to_string(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
    text += fmt::format("{}{}:{}", first ? "" : ",", nlohmann::json(tensor.name).dump(), entry.dump());
    first = false;
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string head;
  for (size_t i = 0; i < kLengthBytes; ++i) head.push_back(static_cast<char>(text.size() >> (8 * i)));
  return head + text;
}

void check_names(const std::vector<TensorShape>& tensors, const std::string& file) {
  std::unordered_set<std::string_view> names;
  for (const TensorShape& tensor : tensors) {
    if (tensor.name == "__metadata__")
      throw ConfigError(fmt::format("{}: a tensor cannot be named __metadata__", file));
    if (!names.insert(tensor.name).second)
      throw ConfigError(fmt::format("{}: duplicate tensor name {}", file, quoted(tensor.name)));
    if (tensor.shape.size() > kMaxDims)
      throw ConfigError(fmt::format("{}: tensor {} has {} dimensions; must be <= {}", file, quoted(tensor.name),
                                    tensor.shape.size(), kMaxDims));
  }
}

std::string temporary_name(const std::string& path) {
  static std::atomic<int> number{0};
  return fmt::format("{}.tmp-{}-{}", path, ::getpid(), number++);
}

}  // namespace

const TensorInfo& FilePlan::at(std::string_view name) const {
  const auto found = std::lower_bound(by_name.begin(), by_name.end(), name, [&](size_t place, std::string_view wanted) {
    return tensors[place].name < wanted;
  });
  if (found == by_name.end() || tensors[*found].name != name)
    throw std::out_of_range(fmt::format("the file has no tensor {}", quoted(name)));
  return tensors[*found];
}

Metadata pytorch_metadata() { return {{"format", "pt"}}; }

FilePlan plan_file(std::vector<TensorShape> tensors, const Metadata& metadata, const std::string& file) {
  check_names(tensors, file);
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorShape& a, const TensorShape& b) { return size_of(a.dtype) > size_of(b.dtype); });
  FilePlan plan;
  uint64_t end = 0;
  for (TensorShape& tensor : tensors) {
    const uint64_t bytes = tensor_bytes(tensor, file);
    if (bytes > INT64_MAX - end) throw ConfigError(fmt::format("{}: the file size overflows 63 bits", file));
    plan.tensors.push_back({std::move(tensor), end, end + bytes});
    end += bytes;
  }
  plan.by_name.resize(plan.tensors.size());
  std::iota(plan.by_name.begin(), plan.by_name.end(), size_t{0});
  std::sort(plan.by_name.begin(), plan.by_name.end(),
            [&](size_t a, size_t b) { return plan.tensors[a].name < plan.tensors[b].name; });
  plan.head = head_of(plan.tensors, metadata);
  if (plan.head.size() - kLengthBytes > kMaxHeaderBytes) {
    throw ConfigError(fmt::format("{}: the header of {} tensors takes {} bytes; must be <= {}; write several files",
                                  file, plan.tensors.size(), plan.head.size(), kMaxHeaderBytes));
  }
  plan.file_bytes = plan.head.size() + end;
  return plan;
}

FilePart::FilePart(std::string path, Mode mode, uint64_t bytes) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CLOEXEC | O_CREAT | (mode == Mode::create ? O_EXCL : 0);
  fd_.reset(::open(path_.c_str(), flags, 0666));
  if (!fd_) fail(path_, mode == Mode::create ? "cannot be created" : "cannot be opened for writing", errno);
  const bool reserves = bytes > 0 && mode != Mode::sparse;
  int code = !reserves || ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  // Some file systems cannot preallocate space; a full disk is then detected by write().
  if (mode == Mode::sparse || code == EOPNOTSUPP || code == ENOSYS || code == EINVAL)
    code = ::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0
               ? 0
               : errno;  // the other processes write only within |bytes|
  if (code != 0) {
    ::unlink(path_.c_str());
    throw std::runtime_error(fmt::format("{} (it needs {} bytes)", write_error_text(path_, code), bytes));
  }
}

void FilePart::write(uint64_t place, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(place));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw std::runtime_error(write_error_text(path_, errno));
    place += static_cast<uint64_t>(done);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

void FilePart::start_sync(uint64_t place, uint64_t bytes) {
  ::sync_file_range(fd_.get(), static_cast<off_t>(place), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void FilePart::sync() {
  if (::fsync(fd_.get()) != 0) fail(path_, "fsync", errno);
}

Writer::Writer(std::string path, std::vector<TensorShape> tensors, const Metadata& metadata)
    : path_(std::move(path)),
      plan_(plan_file(std::move(tensors), metadata, path_)),
      file_(temporary_name(path_), FilePart::Mode::create, plan_.file_bytes) {
  try {
    file_.write(0, std::as_bytes(std::span(plan_.head)));
  } catch (...) {
    ::unlink(file_.path().c_str());
    throw;
  }
}

Writer::~Writer() {
  if (!finished_) ::unlink(file_.path().c_str());
}

void Writer::write(std::string_view name, uint64_t offset, std::span<const std::byte> bytes) {
  const TensorInfo& tensor = plan_.at(name);
  if (offset > tensor.bytes() || bytes.size() > tensor.bytes() - offset) {
    throw std::out_of_range(fmt::format("{}: {} bytes at {} of tensor {}, which has {}", path_, bytes.size(), offset,
                                        quoted(name), tensor.bytes()));
  }
  file_.write(plan_.place_of(tensor) + offset, bytes);
  written_ += bytes.size();
}

void Writer::finish() {
  const uint64_t wanted = plan_.file_bytes - plan_.head.size();
  if (written_ != wanted)
    throw std::logic_error(
        fmt::format("{}: {} bytes were written, but its tensors have {}", path_, written_.load(), wanted));
  file_.sync();
  rename_durably(file_.path(), path_);
  finished_ = true;
}

void sync_folder(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) fail(folder, "cannot be opened", errno);
  const int code = ::fsync(fd.get()) == 0 ? 0 : errno;
  if (code != 0 && code != EINVAL) fail(folder, "fsync", code);  // EINVAL: this file system has nothing to sync
}

void rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(from, fmt::format("cannot be renamed to {}", to), errno);
  const std::string folder = std::filesystem::path(to).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

}  // namespace concord::safetensors
