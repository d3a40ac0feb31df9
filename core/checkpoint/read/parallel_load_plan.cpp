#include "core/checkpoint/read/parallel_load_plan.h"

#include <algorithm>

namespace concord {
namespace {

constexpr int64_t kAlignment = 64;  // bytes, for tensors and shares

int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t aligned(int64_t bytes) { return divided_up(bytes, kAlignment) * kAlignment; }

// Assigns elements to shares, one after another.
class Cursor {
 public:
  explicit Cursor(ParallelLoadPlan* plan, int64_t readers) : plan_(*plan), readers_(readers) {}

  void place(size_t tensor, const SharedTensor& size) {
    at_ = aligned(at_);
    for (int64_t begin = 0, end = 0; begin < size.elements; begin = end) {
      if (at_ >= plan_.share) next_share();
      end = std::min(size.elements, begin + (plan_.share - at_) / size.element_size);
      plan_.rounds.back().pieces.push_back({tensor, begin, end, reader_, at_});
      at_ += (end - begin) * size.element_size;
    }
  }

 private:
  void next_share() {
    at_ = 0;
    if (++reader_ < readers_ && !plan_.rounds.empty()) return;
    reader_ = 0;
    plan_.rounds.emplace_back();
  }

  ParallelLoadPlan& plan_;
  int64_t readers_;
  int64_t reader_ = -1;
  int64_t at_ = plan_.share;  // the first piece starts the first share
};

}  // namespace

ParallelLoadPlan plan_parallel_load(std::span<const SharedTensor> tensors, int64_t readers, int64_t round_bytes) {
  int64_t bytes = 0;
  for (const SharedTensor& tensor : tensors) bytes += aligned(tensor.elements * tensor.element_size);
  const int64_t rounds = std::max<int64_t>(1, divided_up(bytes, round_bytes));
  ParallelLoadPlan plan{.share = aligned(divided_up(bytes, rounds * readers)), .rounds = {}};
  Cursor cursor(&plan, readers);
  for (size_t i = 0; i < tensors.size(); ++i) cursor.place(i, tensors[i]);
  return plan;
}

}  // namespace concord
