#include "core/checkpoint/read/read_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "core/base/threads.h"
#include "core/checkpoint/read/parallel_load.h"
#include "core/mesh/job_environment.h"
#include "core/torch/device.h"
#include "core/torch/remainder.h"
#include "platform/cpp/memory.hpp"
#include "platform/cpp/stream.hpp"

namespace concord {
namespace {

constexpr int64_t kMaxThreads = 8;

// Sets |values|, a part of |target|, to |wide|.
void convert(const StateTarget& target, const at::Tensor& wide, const at::Tensor& values) {
  if (!target.splits) return void(values.copy_(wide));
  const bool is_low = values.scalar_type() == at::kShort;
  const at::Tensor other = at::empty({wide.numel()}, is_low ? at::kBFloat16 : at::kShort);
  split_remainder(wide, is_low ? other : values, is_low ? values : other);
}

struct Piece {
  const StateTarget* target;
  int64_t begin;
  int64_t end;
};

std::vector<Piece> cut(const std::vector<StateTarget>& targets, int64_t elements) {
  std::vector<Piece> pieces;
  for (const StateTarget& target : targets) {
    for (int64_t begin = 0; begin < target.values.numel(); begin += elements) {
      pieces.push_back({&target, begin, std::min(begin + elements, target.values.numel())});
    }
  }
  return pieces;
}

// The work of one thread.
class Worker {
 public:
  // Pieces have at most |most| elements.
  Worker(const StateSource& source, const Device& device, int64_t most)
      : source_(source), device_(device), most_(most) {}

  void read(const Piece& piece) {
    const StateTarget& target = *piece.target;
    const int64_t count = piece.end - piece.begin;
    const at::Tensor values = target.values.narrow(0, piece.begin, count);
    const std::vector<ShardRun> runs =
        count == target.values.numel() ? target.runs : cut_runs(target.runs, piece.begin, piece.end);
    const auto type = values.scalar_type();
    const bool is_code = values.element_size() == 1 || type == at::kHalf;
    const auto read_as = is_code ? type : at::kFloat;
    if (values.device().is_cpu()) {
      const bool is_low = target.splits && type == at::kShort;
      const at::Tensor wide = is_low ? at::zeros({count}, at::kFloat) : values.to(read_as);  // itself, if it is
      source_.read(target.key, runs, wide);
      if (type != read_as) convert(target, wide, values);
      return;
    }
    if (!stream_) stream_.emplace(device_);
    if (!buffer_) buffer_.emplace(device_.platform(), most_ * static_cast<int64_t>(sizeof(float)));
    const at::Tensor wide = at::from_blob(buffer_->data(), {count}, at::TensorOptions(read_as)).zero_();
    source_.read(target.key, runs, wide);
    if (type != read_as) {
      const at::Tensor narrow = at::empty({count}, values.options().device(at::kCPU));
      convert(target, wide, narrow);
      at::from_blob(buffer_->data(), {count}, narrow.options()).copy_(narrow);
    }
    copy(*stream_, values.data_ptr(), buffer_->data(), static_cast<int64_t>(values.nbytes()), CopyKind::kHostToDevice);
    stream_->synchronize();
  }

 private:
  const StateSource& source_;
  const Device& device_;
  const int64_t most_;
  std::optional<Stream> stream_;
  std::optional<HostBuffer> buffer_;
};

}  // namespace

void read_state(const StateSource& source, const std::vector<StateTarget>& targets, const Device& device,
                int64_t piece_elements) {
  const std::vector<Piece> pieces = cut(targets, piece_elements);
  // Includes work that libtorch has queued and not yet passed to the device.
  if (std::any_of(targets.begin(), targets.end(), [](const StateTarget& t) { return !t.values.device().is_cpu(); })) {
    torch_stream(device).synchronize();
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    try {
      Worker worker(source, device, piece_elements);
      for (size_t i = next++; i < pieces.size(); i = next++) worker.read(pieces[i]);
    } catch (...) {
      next = pieces.size();  // no thread starts another piece
      throw;
    }
  };
  run_on_threads(cores_for_each(read_job_environment().local_world, kMaxThreads), work);
}

std::exception_ptr read_state_shared(const StateSource& source, const std::vector<StateTarget>& targets,
                                     ProcessGroup& group, const Device& device) {
  std::vector<at::Tensor> values;
  for (const StateTarget& target : targets) values.push_back(target.values);
  const c10::Device memory = torch_device(device.platform(), device.index());
  return read_and_all_gather(group, memory, values, [&](std::span<const ReadShard> pieces, std::byte* share) {
    std::vector<StateTarget> own;
    for (const ReadShard& piece : pieces) {
      const StateTarget& target = targets[piece.tensor];
      const int64_t count = piece.end - piece.begin;
      const auto type = target.values.scalar_type();
      own.push_back({target.key, cut_runs(target.runs, piece.begin, piece.end),
                     at::from_blob(share + piece.at, {count}, at::TensorOptions(type)).zero_(), target.splits});
    }
    read_state(source, own, device);
  });
}

}  // namespace concord
