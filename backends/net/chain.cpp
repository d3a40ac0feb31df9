#include "backends/net/chain.h"

#include <algorithm>
#include <cstring>

#include "platform/sdk/dtypes.hpp"

namespace concord::net {
namespace {

constexpr int64_t kSliceBytes = 256 << 10;  // at most
constexpr int64_t kAlign = 64;
constexpr int32_t kMaxLag = 8;

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

// The last host has the result of a step when its round ends, so it shares it in the next one.
Chain::Chain(int32_t rank, const HostMap& map, shm::Communicator& local, MessageQueue& queue, const SliceSum& sum,
             concord_dtype dtype, std::vector<std::byte>& scratch)
    : local_(local),
      queue_(queue),
      sum_(sum),
      dtype_(dtype),
      element_(sdk::dtype_size(dtype)),
      host_(map.host[static_cast<size_t>(rank)]),
      place_(map.place[static_cast<size_t>(rank)]),
      local_ranks_(map.size_of(host_)),
      first_(host_ == 0),
      last_(host_ == map.host_count() - 1),
      lag_(static_cast<size_t>(std::clamp(2 * (map.host_count() - 1 - host_), 1, kMaxLag))),
      before_(first_ ? -1 : map.leader(host_ - 1) + place_),
      after_(last_ ? -1 : map.leader(host_ + 1) + place_),
      scratch_(scratch) {}

void Chain::run(const std::vector<Piece>& pieces) {
  cut(pieces);
  divide_scratch();
  expect_sum(0);
  for (size_t i = 0; i < steps_.size() + lag_; ++i) {
    const Step* const begun = i < steps_.size() ? &steps_[i] : nullptr;
    const Step* const ended = i >= lag_ && comes_by(steps_[i - lag_], host_) ? &steps_[i - lag_] : nullptr;
    expect_sum(i + 1);
    if (ended != nullptr) bring_back(*ended);
    const auto read = [&](Slots slots) {
      if (ended != nullptr) take_results(*ended, slots);
      if (begun != nullptr) pass_on(i, slots);
    };
    if (local_ranks_ == 1) {
      read({});
    } else {
      local_.round([&](std::byte* slot) { stage(begun, ended, slot); }, read);
    }
  }
  queue_.finish();
}

// Steps of about one size: the last one is not much shorter.
void Chain::cut(const std::vector<Piece>& pieces) {
  const int64_t slice = local_ranks_ == 1 ? kSliceBytes : std::min(kSliceBytes, local_.slot_bytes() / local_ranks_);
  const int64_t largest = slice / kAlign * kAlign / element_ * local_ranks_;
  for (const Piece& piece : pieces) {
    const int64_t count = (piece.elements + largest - 1) / largest;
    const int64_t part = count == 0 ? 0 : (piece.elements + count * local_ranks_ - 1) / (count * local_ranks_);
    most_ = std::max(most_, part);
    for (int64_t start = 0; start < piece.elements; start += part * local_ranks_) {
      Step step;
      step.part = part;
      step.piece.send = piece.send + start * element_;
      step.piece.recv = piece.recv == nullptr ? nullptr : piece.recv + start * element_;
      step.piece.elements = std::min(part * local_ranks_, piece.elements - start);
      step.piece.host = piece.host;
      steps_.push_back(step);
    }
  }
  stride_ = (most_ * element_ + kAlign - 1) / kAlign * kAlign;
}

void Chain::divide_scratch() {
  const int64_t travel = sum_.travel_bytes(most_);
  const int64_t widened = sum_.travels_as() == dtype_ ? 0 : travel * local_ranks_;
  const int64_t incoming = first_ ? 0 : 2 * travel;
  const int64_t results = static_cast<int64_t>(lag_ + 1) * most_ * element_;
  scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(widened + incoming + travel + results)));
  widened_ = scratch_.data();
  incoming_ = widened_ + widened;
  sums_ = incoming_ + incoming;
  results_ = sums_ + travel;
}

int64_t Chain::slice_elements(const Step& step, int32_t place) const {
  return std::clamp<int64_t>(step.piece.elements - place * step.part, 0, step.part);
}

std::byte* Chain::place_for_sum(size_t index) {
  return incoming_ + static_cast<int64_t>(index % 2) * sum_.travel_bytes(most_);
}

// Receives a step ahead: a message without a receive is buffered and copied once more.
void Chain::expect_sum(size_t index) {
  if (first_ || index >= steps_.size()) return;
  Step& step = steps_[index];
  const int64_t bytes = sum_.travel_bytes(slice_elements(step, place_));
  step.sum_before = &queue_.receive(before_, place_for_sum(index), bytes);
}

std::byte* Chain::place_for_slice(const Step& step, size_t index) {
  if (step.piece.recv != nullptr) return step.piece.recv + place_ * step.part * element_;
  return results_ + static_cast<int64_t>(index % (lag_ + 1)) * most_ * element_;
}

// The result of this rank's slice, which came from the host after this one, goes on to the one before.
void Chain::bring_back(const Step& step) {
  if (last_) return;
  queue_.await(*step.result);
  if (!first_ && comes_by(step, host_ - 1)) {
    queue_.send(before_, step.slice, slice_elements(step, place_) * element_);
    queue_.settle();
  }
}

// Fills this rank's slot: its values for the slices of the others, and the result of its own slice.
void Chain::stage(const Step* begun, const Step* ended, std::byte* slot) const {
  for (int32_t r = 0; begun != nullptr && r < local_ranks_; ++r) {
    if (r == place_) continue;
    copy_bytes(slot + part_offset(place_, r), begun->piece.send + r * begun->part * element_,
               slice_elements(*begun, r) * element_);
  }
  if (ended != nullptr && stays_at(*ended, host_)) {
    copy_bytes(slot + result_offset(), ended->slice, slice_elements(*ended, place_) * element_);
  }
}

void Chain::take_results(const Step& step, Slots slots) const {
  if (step.piece.recv == nullptr || !stays_at(step, host_)) return;
  for (int32_t r = 0; r < local_ranks_; ++r) {
    if (r == place_) continue;
    copy_bytes(step.piece.recv + r * step.part * element_, slots[static_cast<size_t>(r)] + result_offset(),
               slice_elements(step, r) * element_);
  }
}

// In place the result of the slice is written over this rank's own values, which are part of it.
void Chain::pass_on(size_t index, Slots slots) {
  Step& step = steps_[index];
  const int64_t elements = slice_elements(step, place_);
  step.slice = place_for_slice(step, index);
  std::vector<const void*> sources;
  if (!first_) {
    queue_.await(*step.sum_before);
    sources.push_back(place_for_sum(index));
  }
  for (int32_t r = 0; r < local_ranks_; ++r) sources.push_back(values_of(step, r, slots));
  void* const sum = last_ && sum_.travels_as() == dtype_ ? step.slice : sums_;
  sum_.add(sum, sources.data(), static_cast<int32_t>(sources.size()), elements);
  if (!last_) {
    if (comes_by(step, host_)) step.result = &queue_.receive(after_, step.slice, elements * element_);
    queue_.send(after_, sum, sum_.travel_bytes(elements));
  } else {
    sum_.finish(step.slice, sum, elements);
    if (comes_by(step, host_ - 1)) queue_.send(before_, step.slice, elements * element_);
  }
  queue_.settle();
}

// What the rank in |place| has for this rank's slice, in the travelling type.
const void* Chain::values_of(const Step& step, int32_t place, Slots slots) {
  const std::byte* const stored = place == place_ ? step.piece.send + place_ * step.part * element_
                                                  : slots[static_cast<size_t>(place)] + part_offset(place, place_);
  if (sum_.travels_as() == dtype_) return stored;
  const int64_t elements = slice_elements(step, place_);
  std::byte* const wide = widened_ + place * sum_.travel_bytes(step.part);
  sum_.widen(wide, stored, elements);
  return wide;
}

}  // namespace concord::net
