#include "core/checkpoint/write/save_files.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <stdexcept>

#include "core/base/files/input_file.h"
#include "core/checkpoint/crc32.h"

namespace concord {
namespace {

using safetensors::FilePart;

constexpr uint64_t kLargeWrite = 1 << 20;       // bytes worth a start_sync()
constexpr uint64_t kMaxPartBytes = 1ULL << 32;  // limit of a rank's list

std::string part_file(const std::string& folder, int64_t rank) {
  return fmt::format("{}/.concord-part-{}", folder, rank);
}

// Removes the next number from |text|, which ends with a space or the line, and returns it.
uint64_t take_number(std::string_view* text, int base, const std::string& file) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number, base);
  if (error != std::errc() || end == text->data() + text->size()) {
    throw std::runtime_error(fmt::format("{}: was changed by another process", file));
  }
  text->remove_prefix(static_cast<size_t>(end - text->data()) + 1);
  return number;
}

}  // namespace

SaveFiles::SaveFiles(std::string folder, const SavePlan& plan)
    : folder_(std::move(folder)), plan_(plan), shares_(plan_.tensor_count) {
  for (const SavePlan::Set& set : plan_.sets) files_.emplace_back(set.folder.files.size());
}

void WrittenTensors::add(const WrittenTensors& more) {
  bytes += more.bytes;
  shares.resize(more.shares.size());
  for (size_t i = 0; i < shares.size(); ++i) shares[i] ^= more.shares[i];
}

void SaveFiles::create(bool reserves) {
  for (size_t set = 0; set < files_.size(); ++set) {
    const HfFolderPlan& folder = plan_.sets[set].folder;
    for (size_t i = 0; i < folder.files.size(); ++i) {
      const safetensors::FilePlan& plan = folder.files[i].plan;
      auto part =
          std::make_unique<FilePart>(folder_ + "/" + folder.files[i].name,
                                     reserves ? FilePart::Mode::share : FilePart::Mode::sparse, plan.file_bytes);
      part->write(0, std::as_bytes(std::span(plan.head)));
      files_[set][i] = std::move(part);
    }
  }
}

FilePart& SaveFiles::file(size_t set, size_t index) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<FilePart>& file = files_[set][index];
  if (!file) {
    const std::string& name = plan_.sets[set].folder.files[index].name;
    file = std::make_unique<FilePart>(folder_ + "/" + name, FilePart::Mode::share);
  }
  return *file;
}

void SaveFiles::write(const SaveChunk& chunk, const std::byte* data) {
  const int64_t size = chunk.element_size;
  for (const ShardRun& run : chunk.runs) {
    const SavePlan::Place place = plan_.find(chunk.set, run.tensor);
    FilePart& to = file(chunk.set, place.file);
    Crc32Pieces checksum(place.tensor->bytes());
    for (int64_t i = 0; i < run.count; i += run.run_length) {  // a row
      const int64_t length = std::min(run.run_length, run.count - i);
      const auto offset = static_cast<uint64_t>((run.offset + i / run.run_length * run.run_stride) * size);
      const std::span<const std::byte> bytes(data + (run.local + i) * size, static_cast<size_t>(length * size));
      if (!chunk.is_copy) checksum.add(offset, bytes);
      to.write(place.begin + offset, bytes);
      if (bytes.size() >= kLargeWrite) to.start_sync(place.begin + offset, bytes.size());
    }
    if (chunk.is_copy) continue;
    shares_[place.number].fetch_xor(checksum.share());
    written_ += static_cast<uint64_t>(run.count * size);
  }
}

void SaveFiles::finish(int64_t rank) {
  for (auto& set : files_) {
    for (std::unique_ptr<FilePart>& file : set) {
      if (file) file->sync();
      file.reset();
    }
  }
  fmt::memory_buffer text;
  fmt::format_to(std::back_inserter(text), "{}\n", written_.load());
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (const uint32_t share = shares_[i].load()) fmt::format_to(std::back_inserter(text), "{} {:08x}\n", i, share);
  }
  FilePart part(part_file(folder_, rank), FilePart::Mode::create, text.size());
  part.write(0, std::as_bytes(std::span(text.data(), text.size())));
}

WrittenTensors SaveFiles::collect(const RankRange& ranks) const {
  WrittenTensors written{.bytes = 0, .shares = std::vector<uint32_t>(plan_.tensor_count)};
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const std::string file = part_file(folder_, rank);
    const std::string text = InputFile(file).read(kMaxPartBytes, "a rank's checksums");
    std::string_view rest = text;
    written.bytes += take_number(&rest, 10, file);
    while (!rest.empty()) {
      const uint64_t number = take_number(&rest, 10, file), share = take_number(&rest, 16, file);
      if (number >= written.shares.size()) {
        throw std::runtime_error(fmt::format("{}: was changed by another process", file));
      }
      written.shares[number] ^= static_cast<uint32_t>(share);
    }
    std::filesystem::remove(file);
  }
  return written;
}

void SaveFiles::describe(const WrittenTensors& written, Manifest* manifest) const {
  if (written.bytes != plan_.total_bytes) {
    throw std::runtime_error(fmt::format("{}: the ranks have written {} bytes of tensors, but it needs {}", folder_,
                                         written.bytes, plan_.total_bytes));
  }
  size_t number = 0;
  for (const SavePlan::Set& set : plan_.sets) {
    for (const HfFolderPlan::File& file : set.folder.files) {
      ManifestFile entry{
          .bytes = file.plan.file_bytes, .by_tensor = true, .crc32 = crc32(std::as_bytes(std::span(file.plan.head)))};
      for (const safetensors::TensorInfo& tensor : file.plan.tensors) {
        entry.tensors[tensor.name] = crc32_of_zeros(tensor.bytes()) ^ written.shares[number++];
      }
      manifest->files[file.name] = std::move(entry);
    }
  }
}

}  // namespace concord
