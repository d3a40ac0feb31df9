#include "core/checkpoint/write/replicated_save.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "core/base/files/input_file.h"
#include "core/checkpoint/crc32.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/write/metadata_files.h"
#include "core/checkpoint/write/staging_buffers.h"
#include "core/mesh/agreement.h"
#include "core/torch/device.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using safetensors::FilePart;

constexpr std::string_view kPart = "part-";
constexpr std::string_view kHead = ".head";
constexpr std::string_view kId = "id-";
constexpr std::string_view kPartial = ".partial";
constexpr uint64_t kMaxHeadBytes = 1ULL << 32;

std::string part_name(int64_t rank, int64_t world) { return fmt::format("{}{}-of-{}", kPart, rank, world); }

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

void read_at(const InputFile& file, uint64_t place, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t length = ::pread(file.fd(), to.data(), to.size(), static_cast<off_t>(place));
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) {
      throw std::runtime_error(fmt::format("{}: cannot be read: {}", file.path(),
                                           length == 0 ? "it is shorter than it was" : std::strerror(errno)));
    }
    place += static_cast<uint64_t>(length);
    to = to.subspan(static_cast<size_t>(length));
  }
}

// --- a part: the size of its header, the header, chunks, and a checksum of all that

std::string header_of(const SavePlan& plan, const std::vector<SaveChunk>& chunks) {
  json list = json::array();
  for (const SaveChunk& chunk : chunks) {
    json runs = json::array();
    for (const ShardRun& run : chunk.runs) {
      const SavePlan::Place place = plan.find(chunk.set, run.tensor);
      runs.push_back({plan.sets[chunk.set].folder.files[place.file].name, place.begin, run.local, run.count, run.offset,
                      run.run_length, run.run_stride});
    }
    list.push_back({{"bytes", chunk.bytes}, {"element", chunk.element_size}, {"runs", std::move(runs)}});
  }
  const std::vector<uint8_t> packed = json::to_cbor(list);
  const uint64_t size = packed.size();
  std::string text(reinterpret_cast<const char*>(&size), sizeof size);
  return text.append(packed.begin(), packed.end());
}

uint64_t part_bytes(const std::string& header, const std::vector<SaveChunk>& chunks) {
  uint64_t bytes = header.size() + sizeof(uint32_t);
  for (const SaveChunk& chunk : chunks) bytes += static_cast<uint64_t>(chunk.bytes);
  return bytes;
}

void write_part(FilePart* file, const std::string& header, const std::vector<SaveChunk>& chunks, int64_t chunk_bytes,
                ParallelContext& job) {
  std::optional<Event> copied;  // when the chunks are complete
  std::optional<PinnedStagingBuffers> landing;
  uint64_t place = 0;
  uint32_t sum = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    file->write(place, bytes);
    place += bytes.size();
    sum = crc32(sum, bytes);
  };
  add(bytes_of(header));
  for (const SaveChunk& chunk : chunks) {
    if (!chunk.on_host && !landing) {
      copied.emplace(job.device());
      copied->record(torch_stream(job.device()));
      landing.emplace(job.device(), *copied, chunk_bytes);
    }
    if (!chunk.on_host) landing->begin(chunk);
    add({chunk.on_host ? chunk.data : landing->finish(), static_cast<size_t>(chunk.bytes)});
  }
  file->write(place, std::as_bytes(std::span(&sum, 1)));
}

// A run of a chunk, in elements of |size| bytes: |count| elements starting at |local|, in rows of |row| that are
// |stride| apart in the tensor, which starts at byte |begin| of the file |name|.
struct PartRun {
  std::string name;
  uint64_t size, begin, local, count, offset, row, stride;

  // Returns whether it is within a chunk and a file of these sizes. No computation overflows, whatever the numbers.
  bool fits(uint64_t chunk_bytes, uint64_t file_bytes) const {
    if (size == 0 || row == 0 || count == 0 || begin > file_bytes) return false;
    const uint64_t in_chunk = chunk_bytes / size, in_file = (file_bytes - begin) / size;
    if (count > in_chunk || local > in_chunk - count) return false;
    const auto is_inside = [&](uint64_t strides, uint64_t length) {
      if (offset > in_file || length > in_file - offset) return false;
      return strides == 0 || stride <= (in_file - offset - length) / strides;
    };
    const uint64_t before_last = (count - 1) / row;
    return is_inside(before_last, count - before_last * row) && (before_last == 0 || is_inside(before_last - 1, row));
  }
};

PartRun run_of(const json& run, uint64_t size) {
  const auto number = [&](size_t index) { return run.at(index).get<uint64_t>(); };
  return {run.at(0).get<std::string>(), size, number(1), number(2), number(3), number(4), number(5), number(6)};
}

// Writes the runs of a chunk to their positions.
void apply_chunk(const json& chunk, std::span<const std::byte> data, const std::string& target,
                 std::map<std::string, FilePart>* files) {
  for (const json& each : chunk.at("runs")) {
    const PartRun run = run_of(each, chunk.at("element").get<uint64_t>());
    const fs::path path = fs::path(target) / run.name;
    if (path.parent_path() != fs::path(target) || !fs::is_regular_file(path) ||
        !run.fits(data.size(), fs::file_size(path))) {
      throw std::runtime_error(
          fmt::format("it has a run of {} elements for {} that does not fit", run.count, run.name));
    }
    const auto [file, is_new] = files->try_emplace(run.name, path.string(), FilePart::Mode::share);
    for (uint64_t i = 0; i < run.count; i += run.row) {
      const uint64_t length = std::min(run.row, run.count - i);
      file->second.write(run.begin + (run.offset + i / run.row * run.stride) * run.size,
                         data.subspan((run.local + i) * run.size, length * run.size));
    }
  }
}

}  // namespace

void apply_part(const std::string& path, const std::string& target) {
  const InputFile file(path);
  const auto damaged = [&](const std::string& why) {
    return std::runtime_error(fmt::format("{} is damaged: {}", path, why));
  };
  uint64_t size = 0;
  read_at(file, 0, std::as_writable_bytes(std::span(&size, 1)));
  if (size > file.size()) {
    throw damaged(fmt::format("it has {} bytes and a header of {}", file.size(), size));
  }
  std::vector<std::byte> buffer(size);
  read_at(file, sizeof size, buffer);
  uint32_t sum = crc32(crc32(std::as_bytes(std::span(&size, 1))), buffer);
  const json chunks = json::from_cbor(reinterpret_cast<const uint8_t*>(buffer.data()),
                                      reinterpret_cast<const uint8_t*>(buffer.data()) + buffer.size());
  uint64_t place = sizeof size + size;
  std::map<std::string, FilePart> files;
  try {
    for (const json& chunk : chunks) {
      const auto bytes = chunk.at("bytes").get<uint64_t>();
      if (bytes > file.size()) throw std::runtime_error(fmt::format("it has a chunk of {} bytes", bytes));
      buffer.resize(bytes);
      read_at(file, place, buffer);
      place += buffer.size();
      sum = crc32(sum, buffer);
      apply_chunk(chunk, buffer, target, &files);
    }
  } catch (const std::exception& error) {
    throw damaged(error.what());
  }
  uint32_t expected = 0;
  read_at(file, place, std::as_writable_bytes(std::span(&expected, 1)));
  if (sum != expected) throw damaged("its checksum is wrong");
}

namespace {

// --- between machines

// Records an error on this rank between collective calls: the rank continues to make them, so that no other rank waits
// for it, and reports the error afterwards.
class Problem {
 public:
  template <class Body>
  void note(const Body& body) {
    if (error_) return;
    try {
      body();
    } catch (const std::exception&) {
      error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

std::span<std::byte> writable(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
}

// Sends the file |own| to its backup rank and receives those |kept| here, by rank, |chunk_bytes| at a time.
void exchange_parts(ParallelContext& job, const std::string& own, int64_t keeper, const std::vector<int64_t>& bytes,
                    int64_t chunk_bytes, std::map<int64_t, FilePart>* kept, Problem* problem) {
  std::optional<InputFile> file;
  problem->note([&] { file.emplace(own); });
  const int64_t longest = *std::max_element(bytes.begin(), bytes.end());
  for (int64_t at = 0; at < longest; at += chunk_bytes) {
    const auto empty_piece = [&](int64_t rank) {
      return at::empty({std::clamp<int64_t>(bytes[static_cast<size_t>(rank)] - at, 0, chunk_bytes)}, at::kByte);
    };
    std::vector<Transfer> transfers;
    std::map<int64_t, at::Tensor> arriving;
    const at::Tensor leaving = empty_piece(job.rank());
    if (keeper != job.rank() && leaving.numel() > 0) {
      problem->note([&] { read_at(*file, static_cast<uint64_t>(at), writable(leaving)); });
      transfers.push_back(send(leaving.to(job.torch_device()), keeper));
    }
    for (const auto& [rank, to] : *kept) {
      const at::Tensor piece = empty_piece(rank).to(job.torch_device());
      if (piece.numel() == 0) continue;
      arriving[rank] = piece;
      transfers.push_back(recv(piece, rank));
    }
    if (transfers.empty()) continue;
    job.world_group().batch_p2p(transfers).synchronize();
    for (const auto& [rank, piece] : arriving) {
      problem->note([&] { kept->at(rank).write(static_cast<uint64_t>(at), writable(piece.to(at::kCPU))); });
    }
  }
}

// Writes everything except parts.
void write_frame(const std::string& folder, const SavePlan& plan, const HfSaveOptions& options) {
  write_metadata_files(folder, plan, options, nullptr);
  for (const SavePlan::Set& set : plan.sets) {
    for (const HfFolderPlan::File& file : set.folder.files) {
      const uint64_t bytes = file.plan.file_bytes;
      const std::string path = fmt::format("{}/{}{}", folder, file.name, kHead);
      FilePart head(path, FilePart::Mode::create, sizeof bytes + file.plan.head.size());
      head.write(0, std::as_bytes(std::span(&bytes, 1)));
      head.write(sizeof bytes, bytes_of(file.plan.head));
    }
  }
}

// Only rank 0 has all of them; it also chooses the id of the save.
void share_texts(HfSaveOptions* options, ParallelContext& job) {
  options->more_files.emplace_back(fmt::format("{}{}", kId, make_nonce()), "");
  const std::vector<uint8_t> packed = json::to_cbor(json(options->more_files));
  const std::string text = broadcast_text(job, {packed.begin(), packed.end()}, 0);
  options->more_files = json::from_cbor(text).get<std::vector<std::pair<std::string, std::string>>>();
}

FolderListing list_folder(const std::string& folder) {
  FolderListing listing;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !name.ends_with(kPartial)) listing[name] = entry.file_size();
  }
  return listing;
}

std::vector<FolderListing> exchange_listings(const FolderListing& own, const Machines& machines, ParallelContext& job) {
  const std::vector<uint8_t> packed = json::to_cbor(json(own));
  std::vector<FolderListing> all;
  for (const int64_t first : machines.first) {
    const std::string text = broadcast_text(job, {packed.begin(), packed.end()}, first);
    all.push_back(json::from_cbor(text).get<FolderListing>());
  }
  return all;
}

// Sends |name| of |bytes| from |root| to the first ranks of the machines that lack it. Renamed when it is complete.
void broadcast_file(const std::string& folder, const std::string& name, uint64_t bytes, int64_t root, bool is_lacking,
                    uint64_t chunk_bytes, ParallelContext& job) {
  const std::string path = folder + "/" + name, partial = fmt::format("{}{}", path, kPartial);
  std::optional<InputFile> from;
  std::optional<FilePart> to;
  run_and_propagate_errors(job, [&] {
    if (job.rank() == root) from.emplace(path);
    if (!is_lacking) return;
    fs::create_directories(folder);
    fs::remove(partial);
    to.emplace(partial, FilePart::Mode::create, bytes);
  });
  Problem problem;
  for (uint64_t at = 0; at < bytes; at += chunk_bytes) {
    at::Tensor piece = at::empty({static_cast<int64_t>(std::min(bytes - at, chunk_bytes))}, at::kByte);
    if (from) problem.note([&] { read_at(*from, at, writable(piece)); });
    piece = piece.to(job.torch_device());
    job.world_group().broadcast(piece, root).synchronize();
    if (to) problem.note([&] { to->write(at, writable(piece.to(at::kCPU))); });
  }
  run_and_propagate_errors(job, [&] {
    problem.rethrow();
    if (is_lacking) fs::rename(partial, path);
  });
}

// Creates the files of a save before parts are written into them, and the metadata files.
void make_frame(const std::string& folder, const std::string& target) {
  fs::remove_all(target);
  fs::create_directories(target);
  for (const auto& [name, bytes] : list_folder(folder)) {
    if (name.starts_with(kPart) || name.starts_with(kId)) continue;
    if (!name.ends_with(kHead)) {
      fs::copy_file(folder + "/" + name, target + "/" + name);
      continue;
    }
    const std::string head = InputFile(folder + "/" + name).read(kMaxHeadBytes, "the head of a file");
    uint64_t file_bytes = 0;
    if (head.size() < sizeof file_bytes) throw std::runtime_error(fmt::format("{}/{} is damaged", folder, name));
    std::memcpy(&file_bytes, head.data(), sizeof file_bytes);
    FilePart file(target + "/" + name.substr(0, name.size() - kHead.size()), FilePart::Mode::create, file_bytes);
    file.write(0, bytes_of(head).subspan(sizeof file_bytes));
  }
}

}  // namespace

std::shared_ptr<const GlobalSavePlan> save_replicated(const std::string& folder, std::span<Parameter* const> parameters,
                                                      ParallelContext& job, HfSaveOptions options,
                                                      std::shared_ptr<const GlobalSavePlan> previous) {
  const Machines machines = machines_of(job);
  const std::string fresh = folder + ".new";
  const bool is_first = machines.is_first(job.rank());
  const auto path_of = [&](int64_t rank) { return fresh + "/" + part_name(rank, job.world()); };
  const auto plan = create_global_plan(parameters, options, job, std::move(previous), [&] {
    if (is_first) fs::remove_all(fresh);  // left by a failed save
    if (is_first) fs::create_directories(fresh);
  });
  const std::vector<SaveChunk> chunks = own_chunks(*plan, parameters, options, job);
  const std::string header = header_of(plan->plan, chunks);
  const std::vector<int64_t> bytes = all_gather_scalar(job, static_cast<int64_t>(part_bytes(header, chunks)));
  const auto bytes_of_rank = [&](int64_t rank) { return static_cast<uint64_t>(bytes[static_cast<size_t>(rank)]); };
  std::map<int64_t, FilePart> kept;
  run_and_propagate_errors(job, [&] {
    FilePart own(path_of(job.rank()), FilePart::Mode::create, bytes_of_rank(job.rank()));
    write_part(&own, header, chunks, options.chunk_bytes, job);
    for (int64_t rank = 0; rank < job.world(); ++rank) {
      if (rank == job.rank() || machines.backup_rank(rank) != job.rank()) continue;
      kept.try_emplace(rank, path_of(rank), FilePart::Mode::create, bytes_of_rank(rank));
    }
  });
  Problem problem;
  exchange_parts(job, path_of(job.rank()), machines.backup_rank(job.rank()), bytes, options.chunk_bytes, &kept,
                 &problem);
  share_texts(&options, job);
  run_and_propagate_errors(job, [&] {
    problem.rethrow();
    if (is_first) write_frame(fresh, plan->plan, options);
  });
  run_and_propagate_errors(job, [&] {
    if (!is_first) return;
    fs::remove_all(folder);  // left by an attempt that resumed from an older one
    fs::rename(fresh, folder);
  });
  return plan;
}

std::optional<std::string> find_complete_save(std::span<const FolderListing> machines) {
  std::map<std::string, FolderListing> saves;
  for (const FolderListing& machine : machines) {
    for (const auto& [name, bytes] : machine) {
      if (name.starts_with(kId)) saves[name].insert(machine.begin(), machine.end());
    }
  }
  for (const auto& [id, files] : saves) {
    const auto part = files.lower_bound(std::string(kPart));
    if (part == files.end() || !part->first.starts_with(kPart)) continue;
    const int64_t world = std::atoll(part->first.substr(part->first.rfind('-') + 1).c_str());
    int64_t rank = 0;
    while (rank < world && files.contains(part_name(rank, world))) ++rank;
    if (world > 0 && rank == world) return id;
  }
  return std::nullopt;
}

bool fetch_missing_shards(const std::string& folder, ParallelContext& job, int64_t chunk_bytes) {
  const Machines machines = machines_of(job);
  std::vector<FolderListing> listings = exchange_listings(list_folder(folder), machines, job);
  const std::optional<std::string> id = find_complete_save(listings);
  if (!id) return false;
  const bool is_first = machines.is_first(job.rank());
  FolderListing& own = listings[machines.machine_of(job.rank())];
  run_and_propagate_errors(job, [&] {
    if (is_first && !own.contains(*id)) fs::remove_all(folder);  // a different save of the same step
  });
  FolderListing all;
  for (FolderListing& each : listings) {
    if (!each.contains(*id)) each.clear();
    all.insert(each.begin(), each.end());
  }
  for (const auto& [name, bytes] : all) {
    const auto has_it = [&](const FolderListing& listing) { return listing.contains(name); };
    if (std::ranges::all_of(listings, has_it)) continue;
    const auto holder = static_cast<size_t>(std::ranges::find_if(listings, has_it) - listings.begin());
    broadcast_file(folder, name, bytes, machines.first[holder], is_first && !has_it(own),
                   static_cast<uint64_t>(chunk_bytes), job);
  }
  return true;
}

void assemble_parts(const std::string& folder, const std::string& target, ParallelContext& job) {
  const Machines machines = machines_of(job);
  const size_t machine = machines.machine_of(job.rank());
  const int64_t ranks = machines.ranks_of(machine).size(), own = job.rank() - machines.first[machine];
  run_and_propagate_errors(job, [&] {
    if (own == 0) make_frame(folder, target);
  });
  run_and_propagate_errors(job, [&] {
    int64_t number = 0;
    for (const auto& [name, bytes] : list_folder(folder)) {
      if (name.starts_with(kPart) && number++ % ranks == own) apply_part(folder + "/" + name, target);
    }
  });
}

}  // namespace concord
