#include "backends/net/chain.h"

#include <algorithm>
#include <cstring>

#include "platform/sdk/dtypes.hpp"

namespace concord::net {
namespace {

constexpr int64_t kSliceBytes = 256 << 10;
constexpr int32_t kMostLag = 8;

}  // namespace

Chain::Chain(int32_t rank, const HostMap& map, shm::Communicator& local, Mail& mail, const SliceSum& sum,
             concord_dtype dtype)
    : map_(map),
      local_(local),
      mail_(mail),
      sum_(sum),
      dtype_(dtype),
      element_(sdk::dtype_size(dtype)),
      host_(map.host[static_cast<size_t>(rank)]),
      place_(map.place[static_cast<size_t>(rank)]),
      beside_(map.size_of(host_)),
      first_(host_ == 0),
      last_(host_ == map.host_count() - 1),
      lag_(static_cast<size_t>(std::min(2 * (map.host_count() - 1 - host_), kMostLag))),
      before_(first_ ? -1 : map.leader(host_ - 1) + place_),
      after_(last_ ? -1 : map.leader(host_ + 1) + place_) {}

void Chain::run(const std::vector<Piece>& pieces) {
  cut(pieces);
  const auto most = static_cast<size_t>(most_);
  const auto travel = static_cast<size_t>(sum_.travel_bytes(most_));
  values_.resize(beside_ > 1 ? most * static_cast<size_t>(beside_ * element_) : 0);
  widened_.resize(sum_.travels_as() == dtype_ ? 0 : travel * static_cast<size_t>(beside_));
  incoming_.resize(first_ ? 0 : travel);
  sums_.resize(travel);
  results_.resize((lag_ + 1) * most * static_cast<size_t>(element_));
  for (size_t i = 0; i < steps_.size() + lag_; ++i) {
    if (i < steps_.size()) pass_on(i);
    if (i >= lag_) bring_back(i - lag_);
  }
  mail_.finish();
}

// Steps of about one size: the last one is not much shorter.
void Chain::cut(const std::vector<Piece>& pieces) {
  const int64_t largest = kSliceBytes / element_ * beside_;
  for (const Piece& piece : pieces) {
    const int64_t count = (piece.elements + largest - 1) / largest;
    const int64_t part = count == 0 ? 0 : (piece.elements + count * beside_ - 1) / (count * beside_);
    most_ = std::max(most_, part);
    for (int64_t start = 0; start < piece.elements; start += part * beside_) {
      Step step;
      step.part = part;
      step.piece.send = piece.send + start * element_;
      step.piece.recv = piece.recv == nullptr ? nullptr : piece.recv + start * element_;
      step.piece.elements = std::min(part * beside_, piece.elements - start);
      step.piece.host = piece.host;
      steps_.push_back(step);
    }
  }
}

int64_t Chain::slice_elements(const Step& step, int32_t place) const {
  return std::clamp<int64_t>(step.piece.elements - place * step.part, 0, step.part);
}

// Where it belongs, if the ranks of this host can then share it in place.
std::byte* Chain::place_for_slice(const Step& step, size_t index) {
  const bool whole = step.piece.elements == step.part * beside_;
  if (step.piece.recv != nullptr && whole) return step.piece.recv + place_ * step.part * element_;
  return results_.data() + (index % (lag_ + 1)) * static_cast<size_t>(most_ * element_);
}

void Chain::pass_on(size_t index) {
  Step& step = steps_[index];
  const int64_t elements = slice_elements(step, place_);
  const int64_t travel = sum_.travel_bytes(elements);
  Letter* sum_before = first_ ? nullptr : &mail_.receive(before_, incoming_.data(), travel);
  const std::byte* values = collect_values(step);
  // In place the result may only be written where the values have been read.
  step.slice = place_for_slice(step, index);
  if (!last_ && comes_by(step, host_)) step.result = &mail_.receive(after_, step.slice, elements * element_);
  std::vector<const void*> sources;
  if (!first_) {
    mail_.await(*sum_before);
    sources.push_back(incoming_.data());
  }
  const int64_t stride = sum_.travels_as() == dtype_ ? elements * element_ : travel;
  for (int32_t r = 0; r < beside_; ++r) sources.push_back(values + r * stride);
  sum_.add(sums_.data(), sources.data(), static_cast<int32_t>(sources.size()), elements);
  if (!last_) {
    mail_.send(after_, sums_.data(), travel);
  } else {
    sum_.finish(step.slice, sums_.data(), elements);
    if (comes_by(step, host_ - 1)) mail_.send(before_, step.slice, elements * element_);
  }
  mail_.settle();
}

// The values of all ranks of this host for this rank's slice, in the travelling type, one rank after the other.
const std::byte* Chain::collect_values(const Step& step) {
  const int64_t elements = slice_elements(step, place_);
  const std::byte* values = step.piece.send;
  if (beside_ > 1) {
    std::vector<int64_t> send_counts;
    std::vector<int64_t> send_offsets;
    std::vector<int64_t> offsets;
    for (int32_t r = 0; r < beside_; ++r) {
      send_counts.push_back(slice_elements(step, r));
      send_offsets.push_back(r * step.part);
      offsets.push_back(r * elements);
    }
    const std::vector<int64_t> counts(static_cast<size_t>(beside_), elements);
    local_.all_to_all_v(values, send_counts.data(), send_offsets.data(), values_.data(), counts.data(), offsets.data(),
                        dtype_);
    values = values_.data();
  }
  if (sum_.travels_as() == dtype_) return values;
  sum_.widen(widened_.data(), values, beside_ * elements);
  return widened_.data();
}

void Chain::bring_back(size_t index) {
  const Step& step = steps_[index];
  if (!comes_by(step, host_)) return;
  const int64_t elements = slice_elements(step, place_);
  if (!last_) {
    mail_.await(*step.result);
    if (!first_ && comes_by(step, host_ - 1)) mail_.send(before_, step.slice, elements * element_);
    mail_.settle();
  }
  if (!stays_at(step, host_)) return;
  const bool whole = step.piece.elements == step.part * beside_;
  std::byte* out = step.piece.recv;
  if (beside_ == 1) {
    if (out != nullptr && out != step.slice) std::memcpy(out, step.slice, static_cast<size_t>(elements * element_));
    return;
  }
  if (out == nullptr || !whole) {
    shared_.resize(static_cast<size_t>(most_ * beside_ * element_));
    local_.all_gather(step.slice, shared_.data(), step.part, dtype_);
    if (out != nullptr) std::memcpy(out, shared_.data(), static_cast<size_t>(step.piece.elements * element_));
  } else {
    local_.all_gather(step.slice, out, step.part, dtype_);
  }
}

}  // namespace concord::net
