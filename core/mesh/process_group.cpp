#include "core/mesh/process_group.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/mesh/channel.h"
#include "core/torch/device.h"
#include "core/torch/dtype.h"
#include "platform/cpp/memory.hpp"

namespace concord {
namespace {

// Tensors up to this size are worth copying into a common buffer: the copy costs less than a separate call.
constexpr int64_t kFlattenBytes = 256 * 1024;

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void enqueue_copy(const Stream& stream, char* to, const char* from, int64_t bytes) {
  if (bytes > 0) copy(stream, to, from, bytes, CopyKind::kDeviceToDevice);
}

// Copies on the current stream, in a group of one.
Work copy_now(const at::Tensor& output, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  if (output.data_ptr() != input.data_ptr()) output.view({-1}).copy_(input.view({-1}));
  return {};
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------- Work

void Work::wait() const {
  for (const Part& part : parts_) {
    if (part.channel->host_is_current()) {
      part.channel->wait(*part.call);
    } else {
      part.channel->order_after(*part.call, torch_stream(part.channel->device()));
    }
  }
}

void Work::synchronize() const {
  for (const Part& part : parts_) part.channel->wait(*part.call);
}

bool Work::is_completed() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.channel->done(*part.call); });
}

Transfer::Transfer(bool sends, const at::Tensor& tensor, int64_t peer)
    : sends_(sends), peer_(peer), tensor_(std::make_unique<at::Tensor>(tensor)) {}
Transfer::Transfer(const Transfer& other) : Transfer(other.sends_, *other.tensor_, other.peer_) {}
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer::~Transfer() = default;
Transfer send(const at::Tensor& tensor, int64_t to) { return {true, tensor, to}; }
Transfer recv(const at::Tensor& tensor, int64_t from) { return {false, tensor, from}; }

// --------------------------------------------------------------------------------------------------------- operands

// A tensor as the platform sees it.
struct ProcessGroup::Operand {
  char* data;
  int64_t count;
  DType dtype;
  int64_t bytes() const { return count * size_of(dtype); }
};

ProcessGroup::ProcessGroup(std::string name, RankGroup ranks, int64_t rank, Device device,
                           std::shared_ptr<Channel> channel)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      index_(ranks_.index_of(rank).value()),
      device_(device),
      channel_(std::move(channel)) {}

ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::refuse(const char* op, const std::string& why) const {
  throw Error(CONCORD_STATUS_INVALID_ARGUMENT, fmt::format("{} in group {} ({} ranks): {}", op, name_, size(), why));
}

ProcessGroup::Operand ProcessGroup::operand(const char* op, const at::Tensor& tensor, bool moves_only) const {
  if (!tensor.defined()) refuse(op, "a tensor is undefined");
  if (!tensor.is_contiguous()) {
    refuse(op, fmt::format("a tensor of {} with strides [{}] is not contiguous; pass tensor.contiguous()",
                           shape_text(tensor), fmt::join(tensor.strides(), ", ")));
  }
  const c10::Device expected = torch_device(device_.platform(), device_.index());
  const c10::Device given = tensor.device();
  if (given.type() != expected.type() ||
      (given.has_index() && expected.has_index() && given.index() != expected.index())) {
    refuse(op, fmt::format("a tensor of {} is on {}; must be on this rank's device {}", shape_text(tensor), given.str(),
                           expected.str()));
  }
  auto* data = static_cast<char*>(tensor.data_ptr());
  if (const auto dtype = platform_dtype(tensor.scalar_type())) return {data, tensor.numel(), *dtype};
  if (!moves_only)
    refuse(op, fmt::format("a tensor of {}: this dtype cannot be reduced; convert it first", shape_text(tensor)));
  return {data, tensor.numel() * static_cast<int64_t>(tensor.element_size()), DType::kU8};
}

void ProcessGroup::check_root(const char* op, int64_t root) const {
  if (root < 0 || root >= size()) refuse(op, fmt::format("root is {}; must be from 0 to {}", root, size() - 1));
}

// Throws unless |large| has size() times the elements of |small| in each pair, and the same dtype.
void ProcessGroup::check_pairs(const char* op, std::span<const at::Tensor> large,
                               std::span<const at::Tensor> small) const {
  if (large.size() != small.size())
    refuse(op, fmt::format("{} and {} tensors; the numbers must be equal", large.size(), small.size()));
  for (size_t i = 0; i < large.size(); ++i) {
    if (!large[i].defined() || !small[i].defined()) refuse(op, "a tensor is undefined");
    if (large[i].scalar_type() == small[i].scalar_type() && large[i].numel() == size() * small[i].numel()) continue;
    refuse(op,
           fmt::format(
               "tensors of {} and {}; the dtypes must be equal and the first must have {} x {} = {} elements, not {}",
               shape_text(large[i]), shape_text(small[i]), size(), small[i].numel(), size() * small[i].numel(),
               large[i].numel()));
  }
}

// Issues a call on the channel. |keep| lives until it is done.
template <class Issue>
Work ProcessGroup::submit(CallSignature signature, std::vector<at::Tensor> keep, Issue issue) {
  ChannelCall call{
      std::move(signature), std::move(issue), std::make_shared<std::vector<at::Tensor>>(std::move(keep)), {}};
  return submit(std::move(call));
}

Work ProcessGroup::submit(ChannelCall call) {
  call.signature.group = name_;
  // Evaluated only while a profile is recorded.
  RECORD_USER_SCOPE(fmt::format("{} {}", name_, call.signature.to_string()));
  Work work;
  if (channel_->host_is_current() && channel_->device() == device_) {
    work.parts_.push_back({channel_, channel_->submit(std::move(call), nullptr)});
  } else {
    const Stream current = torch_stream(device_);
    work.parts_.push_back({channel_, channel_->submit(std::move(call), &current)});
  }
  return work;
}

// ------------------------------------------------------------------------------------------------------- operations

Work ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  const Operand x = operand("all_reduce", tensor, false);
  if (size() == 1) return {};
  return submit({CommOp::kAllReduce, x.dtype, x.count, op, {}, {}}, {tensor},
                [=](const Communicator& comm, const Stream& stream) {
                  comm.all_reduce(stream, x.data, x.data, x.count, x.dtype, op);
                });
}

Work ProcessGroup::broadcast(const at::Tensor& tensor, int64_t root) {
  const Operand x = operand("broadcast", tensor, true);
  check_root("broadcast", root);
  if (size() == 1) return {};
  const void* send = index_ == root ? x.data : nullptr;
  return submit({CommOp::kBroadcast, x.dtype, x.count, {}, root, {}}, {tensor},
                [=](const Communicator& comm, const Stream& stream) {
                  comm.broadcast(stream, send, x.data, x.count, x.dtype, static_cast<int32_t>(root));
                });
}

Work ProcessGroup::all_gather(const at::Tensor& output, const at::Tensor& input) {
  check_pairs("all_gather", {&output, 1}, {&input, 1});
  const Operand out = operand("all_gather", output, true);
  const Operand in = operand("all_gather", input, true);
  if (size() == 1) return copy_now(output, input);
  return submit({CommOp::kAllGather, in.dtype, in.count, {}, {}, {}}, {output, input},
                [=](const Communicator& comm, const Stream& stream) {
                  comm.all_gather(stream, in.data, out.data, in.count, in.dtype);
                });
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  check_pairs("reduce_scatter", {&input, 1}, {&output, 1});
  const Operand out = operand("reduce_scatter", output, false);
  const Operand in = operand("reduce_scatter", input, false);
  if (size() == 1) return copy_now(output, input);
  return submit({CommOp::kReduceScatter, out.dtype, out.count, op, {}, {}}, {output, input},
                [=](const Communicator& comm, const Stream& stream) {
                  comm.reduce_scatter(stream, in.data, out.data, out.count, out.dtype, op);
                });
}

Work ProcessGroup::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  const Operand out = operand("all_to_all", output, true);
  const Operand in = operand("all_to_all", input, true);
  if (out.dtype != in.dtype || out.count != in.count || in.count % size() != 0) {
    refuse("all_to_all",
           fmt::format("tensors of {} and {}; both need the same dtype and number of elements, divisible by {}",
                       shape_text(output), shape_text(input), size()));
  }
  if (size() == 1) return copy_now(output, input);
  const int64_t count = in.count / size();
  return submit({CommOp::kAllToAll, in.dtype, count, {}, {}, {}}, {output, input},
                [=](const Communicator& comm, const Stream& stream) {
                  comm.all_to_all(stream, in.data, out.data, count, in.dtype);
                });
}

namespace {

struct SplitParts {
  std::vector<int64_t> counts;
  std::vector<int64_t> offsets;
  int64_t rows = 0;
};

// |unit| elements per row.
SplitParts split_parts(std::span<const int64_t> rows, int64_t unit) {
  SplitParts parts;
  for (const int64_t each : rows) {
    parts.counts.push_back(each * unit);
    parts.offsets.push_back(parts.rows * unit);
    parts.rows += each;
  }
  return parts;
}

bool is_split_of(std::span<const int64_t> rows, int64_t ranks, int64_t sum) {
  if (static_cast<int64_t>(rows.size()) != ranks) return false;
  int64_t total = 0;
  for (const int64_t each : rows) {
    if (each < 0) return false;
    total += each;
  }
  return total == sum;
}

}  // namespace

Work ProcessGroup::all_to_all_v(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> recv_rows,
                                std::span<const int64_t> send_rows) {
  constexpr const char* kOp = "all_to_all_v";
  const Operand out = operand(kOp, output, true);
  const Operand in = operand(kOp, input, true);
  if (output.dim() == 0 || input.dim() == 0 || output.sizes().slice(1) != input.sizes().slice(1) ||
      out.dtype != in.dtype) {
    refuse(kOp, fmt::format("tensors of {} and {}; they may differ only in dimension 0", shape_text(output),
                            shape_text(input)));
  }
  for (const auto& [tensor, rows, what] :
       {std::tuple(&output, recv_rows, "recv_rows"), std::tuple(&input, send_rows, "send_rows")}) {
    if (is_split_of(rows, size(), tensor->size(0))) continue;
    refuse(kOp, fmt::format("{} is {}; must be {} numbers >= 0 that add up to the {} rows of the tensor", what,
                            fmt::join(rows, ", "), size(), tensor->size(0)));
  }
  if (size() == 1) return copy_now(output, input);
  const int64_t unit =
      input.size(0) > 0 ? in.count / input.size(0) : (output.size(0) > 0 ? out.count / output.size(0) : 0);
  auto sends = std::make_shared<const SplitParts>(split_parts(send_rows, unit));
  auto recvs = std::make_shared<const SplitParts>(split_parts(recv_rows, unit));
  ChannelCall call;
  call.signature = {CommOp::kAllToAllV, in.dtype, in.count, {}, {}, {}};
  call.keep = std::make_shared<std::vector<at::Tensor>>(std::vector<at::Tensor>{output, input});
  call.issue = [=](const Communicator& comm, const Stream& stream) {
    comm.all_to_all_v(stream, in.data, sends->counts.data(), sends->offsets.data(), out.data, recvs->counts.data(),
                      recvs->offsets.data(), in.dtype);
  };
  call.check = [sends, recvs](CallChecker& checker, int64_t sequence, const CallSignature& signature) {
    checker.check(sequence, signature, sends->counts, recvs->counts);
  };
  return submit(std::move(call));
}

Work ProcessGroup::barrier() {
  if (size() == 1) return {};
  return submit({CommOp::kBarrier, DType::kU8, 0, {}, {}, {}}, {},
                [](const Communicator& comm, const Stream& stream) { comm.barrier(stream); });
}

Work ProcessGroup::batch_p2p(std::span<const Transfer> transfers) {
  constexpr const char* kOp = "batch_p2p";
  if (transfers.empty()) return {};
  auto items = std::make_shared<std::vector<concord_p2p_item>>();
  std::vector<at::Tensor> keep;
  std::string detail;
  int64_t total = 0;
  for (const Transfer& transfer : transfers) {
    const Operand x = operand(kOp, *transfer.tensor_, true);
    if (transfer.peer_ < 0 || transfer.peer_ >= size() || transfer.peer_ == index_) {
      refuse(kOp, fmt::format("a transfer between rank {} and rank {}; the peer must be another rank, 0 to {}", index_,
                              transfer.peer_, size() - 1));
    }
    const auto peer = static_cast<int32_t>(transfer.peer_);
    items->push_back(transfer.sends_ ? send_to(peer, x.data, x.count, x.dtype)
                                     : receive_from(peer, x.data, x.count, x.dtype));
    keep.push_back(*transfer.tensor_);
    total += x.count;
    if (items->size() <= 4) {
      detail += fmt::format("{}{}{}{}{}", detail.empty() ? "" : ", ", transfer.sends_ ? "send " : "recv ", x.count,
                            transfer.sends_ ? " to " : " from ", peer);
    }
  }
  if (items->size() > 4) detail += fmt::format(", {} more", items->size() - 4);
  ChannelCall call;
  call.signature = {CommOp::kP2p, static_cast<DType>(items->front().dtype), total, {}, {}, detail};
  call.keep = std::make_shared<std::vector<at::Tensor>>(std::move(keep));
  call.issue = [items](const Communicator& comm, const Stream& stream) { comm.batch_p2p(stream, *items); };
  call.check = [items](CallChecker& checker, int64_t, const CallSignature& signature) {
    checker.check(signature, *items);
  };
  return submit(std::move(call));
}

// -------------------------------------------------------------------------------------------------------- coalescing

namespace {

// The groups of coalesced tensors: the small ones of each dtype, if there are at least two; all others separately.
struct Coalescing {
  std::vector<std::vector<size_t>> together;
  std::vector<size_t> alone;
};

Coalescing coalesce(std::span<const at::Tensor> tensors) {
  std::map<c10::ScalarType, std::vector<size_t>> small;
  Coalescing result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (static_cast<int64_t>(tensors[i].nbytes()) <= kFlattenBytes) {
      small[tensors[i].scalar_type()].push_back(i);
    } else {
      result.alone.push_back(i);
    }
  }
  for (auto& [type, indices] : small) {
    if (indices.size() > 1) {
      result.together.push_back(std::move(indices));
    } else {
      result.alone.push_back(indices.front());
    }
  }
  return result;
}

}  // namespace

// Small tensors concatenated in a buffer.
struct ProcessGroup::Flat {
  struct Piece {
    char* large;
    char* small;
    int64_t bytes;   // size of |small|
    int64_t offset;  // in the buffer, in bytes
  };
  std::vector<Piece> pieces;
  int64_t bytes = 0;
  int64_t count = 0;
  DType dtype{};

  void add(const Operand& large, const Operand& small) {
    pieces.push_back({large.data, small.data, small.bytes(), bytes});
    bytes += small.bytes();
    count += small.count;
    dtype = small.dtype;
  }
  // Copies between the small tensors and |buffer|.
  void move_small(const Stream& stream, char* buffer, bool in) const {
    for (const Piece& p : pieces) {
      enqueue_copy(stream, in ? buffer + p.offset : p.small, in ? p.small : buffer + p.offset, p.bytes);
    }
  }
  // Copies between the large tensors, which hold a part for each rank, and |buffer|, which holds each rank's parts
  // together.
  void move_large(const Stream& stream, char* buffer, int64_t ranks, bool in) const {
    for (int64_t r = 0; r < ranks; ++r) {
      for (const Piece& p : pieces) {
        char* place = buffer + r * bytes + p.offset;
        char* part = p.large + r * p.bytes;
        enqueue_copy(stream, in ? place : part, in ? part : place, p.bytes);
      }
    }
  }
};

Work ProcessGroup::all_reduce_coalesced(std::span<const at::Tensor> tensors, ReduceOp op) {
  for (const at::Tensor& tensor : tensors) operand("all_reduce", tensor, false);
  if (size() == 1) return {};
  Work all;
  const Coalescing plan = coalesce(tensors);
  for (const std::vector<size_t>& group : plan.together) {
    Flat flat;
    std::vector<at::Tensor> keep;
    for (const size_t i : group) {
      const Operand x = operand("all_reduce", tensors[i], false);
      flat.add(x, x);
      keep.push_back(tensors[i]);
    }
    const at::Tensor buffer = at::empty({flat.bytes}, tensors[group.front()].options().dtype(c10::kByte));
    keep.push_back(buffer);
    auto* data = static_cast<char*>(buffer.data_ptr());
    Work work = submit({CommOp::kAllReduce, flat.dtype, flat.count, op, {}, {}}, std::move(keep),
                       [=](const Communicator& comm, const Stream& stream) {
                         flat.move_small(stream, data, true);
                         comm.all_reduce(stream, data, data, flat.count, flat.dtype, op);
                         flat.move_small(stream, data, false);
                       });
    all.parts_.insert(all.parts_.end(), work.parts_.begin(), work.parts_.end());
  }
  for (const size_t i : plan.alone) {
    const Work work = all_reduce(tensors[i], op);
    all.parts_.insert(all.parts_.end(), work.parts_.begin(), work.parts_.end());
  }
  return all;
}

Work ProcessGroup::paired_coalesced(CommOp op, std::span<const at::Tensor> large, std::span<const at::Tensor> small,
                                    ReduceOp reduce) {
  const bool gathers = op == CommOp::kAllGather;
  check_pairs(to_string(op), large, small);
  const auto alone = [&](size_t i) {
    return gathers ? all_gather(large[i], small[i]) : reduce_scatter(small[i], large[i], reduce);
  };
  Work all;
  Coalescing plan = coalesce(large);
  if (size() == 1) {
    for (size_t i = 0; i < large.size(); ++i) alone(i).wait();
    return {};
  }
  for (const std::vector<size_t>& group : plan.together) {
    Flat flat;
    std::vector<at::Tensor> keep;
    for (const size_t i : group) {
      flat.add(operand(to_string(op), large[i], gathers), operand(to_string(op), small[i], gathers));
      keep.insert(keep.end(), {large[i], small[i]});
    }
    const at::Tensor buffer = at::empty({flat.bytes * (size() + 1)}, large[group.front()].options().dtype(c10::kByte));
    keep.push_back(buffer);
    auto* one = static_cast<char*>(buffer.data_ptr());
    char* each = one + flat.bytes;
    CallSignature signature{op, flat.dtype, flat.count, {}, {}, {}};
    if (!gathers) signature.reduce = reduce;
    Work work = submit(std::move(signature), std::move(keep),
                       [=, ranks = size()](const Communicator& comm, const Stream& stream) {
                         if (gathers) {
                           flat.move_small(stream, one, true);
                           comm.all_gather(stream, one, each, flat.count, flat.dtype);
                           flat.move_large(stream, each, ranks, false);
                         } else {
                           flat.move_large(stream, each, ranks, true);
                           comm.reduce_scatter(stream, each, one, flat.count, flat.dtype, reduce);
                           flat.move_small(stream, one, false);
                         }
                       });
    all.parts_.insert(all.parts_.end(), work.parts_.begin(), work.parts_.end());
  }
  for (const size_t i : plan.alone) {
    const Work work = alone(i);
    all.parts_.insert(all.parts_.end(), work.parts_.begin(), work.parts_.end());
  }
  return all;
}

Work ProcessGroup::all_gather_coalesced(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs) {
  return paired_coalesced(CommOp::kAllGather, outputs, inputs, ReduceOp::kSum);
}

Work ProcessGroup::reduce_scatter_coalesced(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs,
                                            ReduceOp op) {
  return paired_coalesced(CommOp::kReduceScatter, inputs, outputs, op);
}

}  // namespace concord
