#include "backends/shm/collectives.h"

#include <algorithm>
#include <cstring>

#include "platform/sdk/dtypes.hpp"

namespace concord::shm {
namespace {

constexpr int64_t kAlign = 64;

int64_t round_up(int64_t value) { return (value + kAlign - 1) / kAlign * kAlign; }
int64_t round_down(int64_t value) { return value / kAlign * kAlign; }
int64_t rounds_for(int64_t bytes, int64_t chunk) { return std::max<int64_t>(1, (bytes + chunk - 1) / chunk); }

// Null, which a rank gives that sends or receives nothing, stays null.
const std::byte* bytes_of(const void* pointer, int64_t offset = 0) {
  return pointer == nullptr ? nullptr : static_cast<const std::byte*>(pointer) + offset;
}
std::byte* bytes_of(void* pointer, int64_t offset = 0) {
  return pointer == nullptr ? nullptr : static_cast<std::byte*>(pointer) + offset;
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// A range of bytes within a buffer.
struct Range {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// The |index|-th range of |chunk| bytes of a buffer of |bytes|; the last one may be short or empty.
Range chunk_of(int64_t bytes, int64_t chunk, int64_t index) {
  const int64_t offset = std::min(index * chunk, bytes);
  return {offset, std::min(chunk, bytes - offset)};
}

}  // namespace

Collectives::Collectives(Team& team)
    : team_(team),
      rank_(team.rank()),
      world_(team.world()),
      slot_bytes_(team.segment().geometry().slot_bytes),
      sources_(static_cast<size_t>(team.world())) {}

// -------------------------------------------------------------------------------------------------------------- rounds

// Runs |rounds| rounds of |call|; consume(0) may still change their number.
template <class Produce, class Consume>
void Collectives::run(const Call& call, const int64_t& rounds, Produce&& produce, Consume&& consume) {
  ++sequence_;
  auto& words = team_.segment().progress(rank_).call[sequence_ & 1];
  const Call& shown = team_.shown(call);
  words[0].store(shown.head(), std::memory_order_relaxed);  // made visible by the first step
  words[1].store(shown.tail(), std::memory_order_relaxed);
  for (int64_t k = 0; k < rounds; ++k) {
    ++step_;
    produce(k);
    team_.publish(step_);
    team_.wait_for_all(step_);
    if (k == 0) compare_calls(shown);
    consume(k);
  }
}

void Collectives::compare_calls(const Call& call) {
  for (int32_t r = 0; r < world_; ++r) {
    const auto& words = team_.segment().progress(r).call[sequence_ & 1];
    const uint64_t head = words[0].load(std::memory_order_relaxed);
    const uint64_t tail = words[1].load(std::memory_order_relaxed);
    if (head == call.head() && tail == call.tail()) continue;
    team_.fail(CONCORD_STATUS_INVALID_ARGUMENT,
               sdk::text("communicator '%s': rank %d called %s where rank %d called %s (operation number %llu)",
                         team_.name().c_str(), team_.number(r), describe(Call::unpack(head, tail)).c_str(),
                         team_.number(rank_), describe(call).c_str(), static_cast<unsigned long long>(sequence_)));
  }
}

std::byte* Collectives::slot(int32_t rank) const { return team_.segment().slot(rank, step_); }
std::byte* Collectives::previous_slot(int32_t rank) const { return team_.segment().slot(rank, step_ - 1); }

void Collectives::barrier(const Call& call) {
  run(call, 1, [](int64_t) {}, [](int64_t) {});
}

void Collectives::round(const Call& call, const Fill& fill, const Read& read) {
  const auto read_all = [&](int64_t) {
    std::vector<const std::byte*> slots;
    for (int32_t r = 0; r < world_; ++r) slots.push_back(slot(r));
    read(slots);
  };
  run(call, 1, [&](int64_t) { fill(slot(rank_)); }, read_all);
}

// ------------------------------------------------------------------------------------------------------------ reducing

void Collectives::all_reduce(const Call& call, const void* send, void* recv) { reduce_to(call, true, send, recv); }

void Collectives::reduce(const Call& call, const void* send, void* recv) {
  reduce_to(call, call.root == rank_, send, recv);
}

void Collectives::reduce_to(const Call& call, bool wanted, const void* send, void* recv) {
  if (call.count * sdk::dtype_size(call.dtype) <= kOnePhaseBytes) {
    reduce_in_one_phase(call, wanted, send, recv);
  } else {
    reduce_in_two_phases(call, wanted, send, recv);
  }
}

// Small: every rank publishes all its data, and each rank that needs the result computes all of it.
void Collectives::reduce_in_one_phase(const Call& call, bool wanted, const void* send, void* recv) {
  const Reduction reduction = find_reduction(call.dtype, call.reduce);
  const auto produce = [&](int64_t) {
    copy_bytes(slot(rank_), bytes_of(send), call.count * sdk::dtype_size(call.dtype));
  };
  const auto consume = [&](int64_t) {
    if (!wanted) return;
    for (int32_t r = 0; r < world_; ++r) sources_[static_cast<size_t>(r)] = slot(r);
    reduction(recv, sources_.data(), world_, call.count);
  };
  run(call, 1, produce, consume);
}

// Large: in chunks, of which every rank computes one part. Round k stages chunk k, reduces chunk k-1, which all have
// staged by then, and hands out the result of chunk k-1 when all have reduced their parts of it.
void Collectives::reduce_in_two_phases(const Call& call, bool wanted, const void* send, void* recv) {
  const Reduction reduction = find_reduction(call.dtype, call.reduce);
  const int64_t element = sdk::dtype_size(call.dtype);
  const int64_t bytes = call.count * element;
  // A slot holds a part for every rank and this rank's results.
  const int64_t chunks = rounds_for(bytes, round_down(slot_bytes_ / (world_ + 1)) * world_);
  const int64_t part = round_up((bytes + chunks * world_ - 1) / (chunks * world_));
  const auto range = [&](int64_t chunk, int32_t rank) { return chunk_of(bytes, part, chunk * world_ + rank); };
  const int64_t results = world_ * part;

  const auto stage = [&](int64_t chunk) {
    for (int32_t r = 0; r < world_; ++r) {
      if (r == rank_) continue;
      const Range theirs = range(chunk, r);
      copy_bytes(slot(rank_) + r * part, bytes_of(send, theirs.offset), theirs.bytes);
    }
  };
  const auto reduce_mine = [&](int64_t chunk) {
    const Range mine = range(chunk, rank_);
    for (int32_t r = 0; r < world_; ++r) sources_[static_cast<size_t>(r)] = previous_slot(r) + rank_ * part;
    sources_[static_cast<size_t>(rank_)] = bytes_of(send, mine.offset);
    reduction(slot(rank_) + results, sources_.data(), world_, mine.bytes / element);
  };
  const auto produce = [&](int64_t k) {
    if (k < chunks) stage(k);
    if (k > 0) reduce_mine(k - 1);
  };
  const auto consume = [&](int64_t k) {
    if (k == 0 || !wanted) return;
    for (int32_t r = 0; r < world_; ++r) {
      const Range theirs = range(k - 1, r);
      copy_bytes(bytes_of(recv, theirs.offset), slot(r) + results, theirs.bytes);
    }
  };
  run(call, chunks + 1, produce, consume);
}

void Collectives::reduce_scatter(const Call& call, const void* send, void* recv) {
  const Reduction reduction = find_reduction(call.dtype, call.reduce);
  const int64_t element = sdk::dtype_size(call.dtype);
  const int64_t block = call.count * element;
  const int64_t part = round_down(slot_bytes_ / world_);
  const auto produce = [&](int64_t k) {
    const Range range = chunk_of(block, part, k);
    for (int32_t r = 0; r < world_; ++r) {
      if (r != rank_) copy_bytes(slot(rank_) + r * part, bytes_of(send, r * block + range.offset), range.bytes);
    }
  };
  const auto consume = [&](int64_t k) {
    const Range range = chunk_of(block, part, k);
    for (int32_t r = 0; r < world_; ++r) sources_[static_cast<size_t>(r)] = slot(r) + rank_ * part;
    sources_[static_cast<size_t>(rank_)] = bytes_of(send, rank_ * block + range.offset);
    reduction(bytes_of(recv, range.offset), sources_.data(), world_, range.bytes / element);
  };
  run(call, rounds_for(block, part), produce, consume);
}

// ------------------------------------------------------------------------------------------------------------- copying

void Collectives::broadcast(const Call& call, const void* send, void* recv) {
  const int64_t bytes = call.count * sdk::dtype_size(call.dtype);
  const auto produce = [&](int64_t k) {
    const Range range = chunk_of(bytes, slot_bytes_, k);
    if (call.root == rank_) copy_bytes(slot(rank_), bytes_of(send, range.offset), range.bytes);
  };
  const auto consume = [&](int64_t k) {
    const Range range = chunk_of(bytes, slot_bytes_, k);
    const std::byte* source = call.root == rank_ ? bytes_of(send, range.offset) : slot(call.root);
    copy_bytes(bytes_of(recv, range.offset), source, range.bytes);
  };
  run(call, rounds_for(bytes, slot_bytes_), produce, consume);
}

void Collectives::all_gather(const Call& call, const void* send, void* recv) {
  const int64_t block = call.count * sdk::dtype_size(call.dtype);
  const auto produce = [&](int64_t k) {
    const Range range = chunk_of(block, slot_bytes_, k);
    copy_bytes(slot(rank_), bytes_of(send, range.offset), range.bytes);
  };
  const auto consume = [&](int64_t k) {
    const Range range = chunk_of(block, slot_bytes_, k);
    for (int32_t r = 0; r < world_; ++r) {
      const std::byte* source = r == rank_ ? bytes_of(send, range.offset) : slot(r);
      copy_bytes(bytes_of(recv, r * block + range.offset), source, range.bytes);
    }
  };
  run(call, rounds_for(block, slot_bytes_), produce, consume);
}

// One side of an exchange: where the bytes for each rank, or from each rank, are.
struct Collectives::Pieces {
  int64_t element;
  int64_t count;                    // for every rank, one piece after the other,
  const int64_t* counts = nullptr;  // unless these are given
  const int64_t* offsets = nullptr;

  int64_t bytes(int32_t rank) const { return element * (counts != nullptr ? counts[rank] : count); }
  int64_t offset(int32_t rank) const { return element * (offsets != nullptr ? offsets[rank] : rank * count); }
};

void Collectives::all_to_all(const Call& call, const void* send, void* recv) {
  const Pieces pieces{sdk::dtype_size(call.dtype), call.count};
  exchange(call, send, pieces, recv, pieces);
}

void Collectives::all_to_all_v(const Call& call, const void* send, const int64_t* send_counts,
                               const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                               const int64_t* recv_offsets) {
  const int64_t element = sdk::dtype_size(call.dtype);
  exchange(call, send, {element, 0, send_counts, send_offsets}, recv, {element, 0, recv_counts, recv_offsets});
}

// A slot has a part for every rank; a rank reads its own part of every slot. If pieces differ, the first round also
// carries the matrix of sizes.
void Collectives::exchange(const Call& call, const void* send, const Pieces& sent, void* recv, const Pieces& received) {
  const bool announce = sent.counts != nullptr;
  const int64_t first = announce ? round_up((world_ + 1) * static_cast<int64_t>(sizeof(int64_t))) : 0;
  const int64_t part = round_down((slot_bytes_ - first) / world_);
  int64_t rounds = announce ? 1 : rounds_for(sent.bytes(rank_), part);
  const auto produce = [&](int64_t k) {
    if (k == 0 && announce) announce_counts(sent);
    for (int32_t r = 0; r < world_; ++r) {
      if (r == rank_) continue;
      const Range range = chunk_of(sent.bytes(r), part, k);
      copy_bytes(slot(rank_) + first + r * part, bytes_of(send, sent.offset(r) + range.offset), range.bytes);
    }
  };
  const auto consume = [&](int64_t k) {
    if (k == 0 && announce) rounds = rounds_for(compare_counts(received), part);
    if (k == 0)
      copy_bytes(bytes_of(recv, received.offset(rank_)), bytes_of(send, sent.offset(rank_)), sent.bytes(rank_));
    for (int32_t r = 0; r < world_; ++r) {
      if (r == rank_) continue;
      const Range range = chunk_of(received.bytes(r), part, k);
      copy_bytes(bytes_of(recv, received.offset(r) + range.offset), slot(r) + first + rank_ * part, range.bytes);
    }
  };
  run(call, rounds, produce, consume);
}

// What goes to each rank, and then the largest of what goes through slots, which decides the number of rounds.
void Collectives::announce_counts(const Pieces& sent) {
  auto* row = reinterpret_cast<int64_t*>(slot(rank_));
  row[world_] = 0;
  for (int32_t r = 0; r < world_; ++r) {
    row[r] = sent.bytes(r);
    if (r != rank_) row[world_] = std::max(row[world_], row[r]);
  }
}

int64_t Collectives::compare_counts(const Pieces& received) {
  int64_t largest = 0;
  for (int32_t r = 0; r < world_; ++r) {
    const auto* row = reinterpret_cast<const int64_t*>(slot(r));
    largest = std::max(largest, row[world_]);
    if (row[rank_] == received.bytes(r)) continue;
    team_.fail(CONCORD_STATUS_INVALID_ARGUMENT,
               sdk::text("communicator '%s': all_to_all_v: rank %d sends %lld elements to rank %d, which receives %lld",
                         team_.name().c_str(), team_.number(r), static_cast<long long>(row[rank_] / received.element),
                         team_.number(rank_), static_cast<long long>(received.counts[r])));
  }
  return largest;
}

}  // namespace concord::shm
