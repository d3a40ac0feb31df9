#include "core/checkpoint/write/replication.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/mesh/agreement.h"
#include "core/torch/device.h"
#include "platform/cpp/memory.hpp"

namespace concord {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ShardRun, tensor, local, count, offset, run_length, run_stride)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SaveChunk, set, runs, element_size, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WrittenTensors, bytes, shares)

namespace {

using nlohmann::json;

template <class Value>
std::string packed(const Value& value) {
  const std::vector<uint8_t> bytes = json::to_cbor(json(value));
  return {bytes.begin(), bytes.end()};
}

// Returns whether |run| is within a chunk and a tensor of these numbers of elements. No computation overflows, whatever
// the numbers.
bool fits(const ShardRun& run, int64_t in_chunk, int64_t in_tensor) {
  if (run.count <= 0 || run.run_length <= 0 || run.local < 0 || run.offset < 0 || run.run_stride < 0) return false;
  if (run.count > in_chunk || run.local > in_chunk - run.count) return false;
  const auto is_inside = [&](int64_t strides, int64_t length) {
    if (run.offset > in_tensor || length > in_tensor - run.offset) return false;
    return strides == 0 || run.run_stride <= (in_tensor - run.offset - length) / strides;
  };
  const int64_t before_last = (run.count - 1) / run.run_length;
  return is_inside(before_last, run.count - before_last * run.run_length) &&
         (before_last == 0 || is_inside(before_last - 1, run.run_length));
}

// Chunks that are sent as one.
using Group = std::vector<SaveChunk>;

int64_t bytes_of(const Group& group) {
  int64_t bytes = 0;
  for (const SaveChunk& chunk : group) bytes += chunk.bytes;
  return bytes;
}

void check_destinations(const Group& group, const SavePlan& plan, int64_t chunk_bytes) {
  int64_t left = chunk_bytes;
  for (const SaveChunk& chunk : group) {
    if (chunk.bytes < 0 || chunk.bytes > left || chunk.set >= plan.sets.size()) {
      throw std::runtime_error(fmt::format("another rank has a chunk of {} bytes; must be <= {}", chunk.bytes, left));
    }
    left -= chunk.bytes;
    for (const ShardRun& run : chunk.runs) {
      const bool is_known = plan.sets[chunk.set].folder.file_of.contains(run.tensor);
      const safetensors::TensorInfo* tensor = is_known ? plan.find(chunk.set, run.tensor).tensor : nullptr;
      if (is_known && chunk.element_size == size_of(tensor->dtype) &&
          fits(run, chunk.bytes / chunk.element_size, tensor->elements())) {
        continue;
      }
      throw std::runtime_error(
          fmt::format("another rank has a run of {} elements for {} that does not fit", run.count, run.tensor));
    }
  }
}

at::Tensor empty_bytes(int64_t count, ParallelContext& job) {
  return at::empty({count}, at::TensorOptions(job.torch_device()).dtype(at::kByte));
}

// Returns the data of |group| in one tensor on the device.
at::Tensor joined(const Group& group, ParallelContext& job) {
  at::Tensor bytes = empty_bytes(bytes_of(group), job);
  auto* to = static_cast<std::byte*>(bytes.data_ptr());
  for (const SaveChunk& chunk : group) {
    if (bytes.is_cpu()) {
      std::memcpy(to, chunk.data, static_cast<size_t>(chunk.bytes));
    } else {
      copy(torch_stream(job.device()), to, chunk.data, chunk.bytes,
           chunk.on_host ? CopyKind::kHostToDevice : CopyKind::kDeviceToDevice);
    }
    to += chunk.bytes;
  }
  return bytes;
}

// Sends |own| to the rank |backup| and receives tensors of |sizes| bytes, by rank; empty ones are not sent. Returns
// them on the host.
std::map<int64_t, at::Tensor> exchange(const at::Tensor& own, int64_t backup, const std::map<int64_t, int64_t>& sizes,
                                       ParallelContext& job) {
  std::vector<Transfer> transfers;
  if (own.numel() > 0) transfers.push_back(send(own, backup));
  std::map<int64_t, at::Tensor> arriving;
  for (const auto& [rank, bytes] : sizes) {
    if (bytes > 0) transfers.push_back(recv(arriving[rank] = empty_bytes(bytes, job), rank));
  }
  if (!transfers.empty()) job.world_group().batch_p2p(transfers).synchronize();
  for (auto& [rank, tensor] : arriving) tensor = tensor.to(at::kCPU);
  return arriving;
}

// Returns the groups of the ranks that this one backs up, by rank, without data.
std::map<int64_t, std::vector<Group>> exchange_destinations(const std::vector<Group>& own, const SavePlan& plan,
                                                            const Machines& machines, ParallelContext& job,
                                                            int64_t chunk_bytes) {
  const std::string text = destinations_text(own);
  const std::vector<int64_t> lengths = all_gather_scalar(job, static_cast<int64_t>(text.size()));
  std::map<int64_t, int64_t> sizes;
  for (int64_t rank = 0; rank < job.world(); ++rank) {
    if (machines.backup_rank(rank) == job.rank()) sizes[rank] = lengths[static_cast<size_t>(rank)];
  }
  SaveChunk letters;
  letters.data = reinterpret_cast<const std::byte*>(text.data());
  letters.bytes = static_cast<int64_t>(text.size());
  const auto arrived = exchange(joined({letters}, job), machines.backup_rank(job.rank()), sizes, job);
  std::map<int64_t, std::vector<Group>> kept;
  run_and_propagate_errors(job, [&] {
    for (const auto& [rank, bytes] : arrived) {
      const std::string_view theirs(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
      kept[rank] = parse_destinations(theirs, plan, chunk_bytes);
    }
  });
  return kept;
}

// Passes the chunks of |group|, whose data is |bytes|, to |keep|.
void keep_chunks(Group group, const at::Tensor& bytes, const std::function<void(SaveChunk)>& keep) {
  const auto owner = std::make_shared<const at::Tensor>(bytes);
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  for (SaveChunk& chunk : group) {
    chunk.data = data;
    chunk.owner = owner;
    chunk.is_copy = true;
    data += chunk.bytes;
    keep(std::move(chunk));
  }
}

}  // namespace

std::vector<std::vector<SaveChunk>> in_groups(std::span<const SaveChunk> chunks, int64_t chunk_bytes) {
  std::vector<Group> groups;
  int64_t left = 0;
  for (const SaveChunk& chunk : chunks) {
    if (groups.empty() || chunk.bytes > left) {
      groups.emplace_back();
      left = chunk_bytes;
    }
    left -= chunk.bytes;
    groups.back().push_back(chunk);
  }
  return groups;
}

std::string destinations_text(const std::vector<std::vector<SaveChunk>>& groups) { return packed(groups); }

std::vector<std::vector<SaveChunk>> parse_destinations(std::string_view text, const SavePlan& plan,
                                                       int64_t chunk_bytes) {
  auto groups = json::from_cbor(text).get<std::vector<Group>>();
  for (const Group& group : groups) check_destinations(group, plan, chunk_bytes);
  return groups;
}

void replicate_chunks(std::span<const SaveChunk> chunks, const SavePlan& plan, const Machines& machines,
                      ParallelContext& job, int64_t chunk_bytes, const std::function<void(SaveChunk)>& keep) {
  const int64_t backup = machines.backup_rank(job.rank());
  if (backup == job.rank()) return;  // there is only one machine
  const std::vector<Group> own = in_groups(chunks, chunk_bytes);
  const auto kept = exchange_destinations(own, plan, machines, job, chunk_bytes);
  size_t rounds = own.size();
  for (const auto& [rank, groups] : kept) rounds = std::max(rounds, groups.size());
  for (size_t round = 0; round < rounds; ++round) {
    std::map<int64_t, int64_t> sizes;
    for (const auto& [rank, groups] : kept) sizes[rank] = round < groups.size() ? bytes_of(groups[round]) : 0;
    const auto arrived = exchange(joined(round < own.size() ? own[round] : Group(), job), backup, sizes, job);
    for (const auto& [rank, bytes] : arrived) keep_chunks(kept.at(rank)[round], bytes, keep);
  }
}

WrittenTensors sum_over_machines(const WrittenTensors& own, const Machines& machines, ParallelContext& job) {
  WrittenTensors sum;
  for (const int64_t first : machines.first) {
    sum.add(json::from_cbor(broadcast_text(job, packed(own), first)).get<WrittenTensors>());
  }
  return sum;
}

NamedFiles files_of_first_rank(const NamedFiles& files, ParallelContext& job) {
  return json::from_cbor(broadcast_text(job, packed(files), 0)).get<NamedFiles>();
}

}  // namespace concord
