#include "core/checkpoint/read/parallel_load.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace concord {
namespace {

// A round in flight: first this rank's share, then the shares of all ranks.
class Round {
 public:
  Round(ProcessGroup& group, int64_t share, c10::Device device)
      : group_(group),
        share_(share),
        all_(at::empty({share * group.size()}, at::TensorOptions(device).dtype(at::kByte))),
        own_(all_.narrow(0, group.rank() * share, share)),
        host_(device.is_cpu() ? own_ : at::empty({share}, at::kByte)) {}

  void read(const SharedRound& round, const ReadPieces& read) {
    std::vector<ReadShard> own;
    std::ranges::copy_if(round.pieces, std::back_inserter(own),
                         [&](const ReadShard& piece) { return piece.reader == group_.rank(); });
    if (!own.empty()) read(own, static_cast<std::byte*>(host_.data_ptr()));
  }
  void send() {
    if (!host_.is_same(own_)) own_.copy_(host_);
    gathering_ = group_.all_gather(all_, own_);
  }
  void finish(const SharedRound& round, std::span<const at::Tensor> values) {
    gathering_.wait();
    for (const ReadShard& piece : round.pieces) {
      const at::Tensor to = values[piece.tensor].narrow(0, piece.begin, piece.end - piece.begin);
      const auto bytes = static_cast<int64_t>(to.nbytes());
      to.copy_(all_.narrow(0, piece.reader * share_ + piece.at, bytes).view(to.scalar_type()));
    }
  }

 private:
  ProcessGroup& group_;
  int64_t share_;
  at::Tensor all_;
  at::Tensor own_;
  at::Tensor host_;
  Work gathering_;
};

}  // namespace

std::exception_ptr read_and_all_gather(ProcessGroup& group, c10::Device device, std::span<const at::Tensor> values,
                                       const ReadPieces& read, int64_t round_bytes) {
  const at::NoGradGuard no_grad;
  std::vector<SharedTensor> sizes;
  for (const at::Tensor& value : values) sizes.push_back({value.numel(), value.element_size()});
  const ParallelLoadPlan plan = plan_parallel_load(sizes, group.size(), round_bytes);
  if (plan.rounds.empty()) return nullptr;
  std::array<Round, 2> slots{Round(group, plan.share, device), Round(group, plan.share, device)};
  std::exception_ptr error;
  for (size_t i = 0; i < plan.rounds.size(); ++i) {
    Round& round = slots[i % 2];
    try {
      if (!error) round.read(plan.rounds[i], read);  // while the previous one is gathered
    } catch (...) {
      error = std::current_exception();
    }
    if (i > 0) slots[(i - 1) % 2].finish(plan.rounds[i - 1], values);
    round.send();
  }
  slots[(plan.rounds.size() - 1) % 2].finish(plan.rounds.back(), values);
  return error;
}

}  // namespace concord
