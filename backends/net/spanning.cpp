#include "backends/net/spanning.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/net/communicator.h"
#include "backends/net/slice_sum.h"
#include "backends/shm/reduce.h"
#include "backends/shm/split_offers.h"
#include "platform/sdk/checks.hpp"

namespace concord::net {
namespace {

constexpr int64_t kSmallBytes = 64 << 10;   // total over all ranks; less than this goes through the leaders
constexpr int64_t kLeaderBytes = 16 << 20;  // total over all ranks that leaders handle at a time

const std::byte* at(const void* pointer, int64_t offset = 0) {
  return pointer == nullptr ? nullptr : static_cast<const std::byte*>(pointer) + offset;
}
std::byte* at(void* pointer, int64_t offset = 0) {
  return pointer == nullptr ? nullptr : static_cast<std::byte*>(pointer) + offset;
}

void move_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
}

constexpr concord_dtype kBytes = CONCORD_DTYPE_U8;

}  // namespace

Spanning::Spanning(int32_t rank, HostMap map, std::unique_ptr<shm::Communicator> local, std::unique_ptr<Port> port,
                   std::unique_ptr<Line> line, const shm::Options& options)
    : rank_(rank),
      map_(std::move(map)),
      host_(map_.host[static_cast<size_t>(rank)]),
      place_(map_.place[static_cast<size_t>(rank)]),
      local_ranks_(map_.size_of(host_)),
      options_(options),
      local_(std::move(local)),
      queue_(rank, std::move(port), std::move(line), *local_, options_) {
  queue_.line().watch(
      [local = local_.get()](concord_status status, const std::string& detail) { local->record(status, detail); });
}

Spanning::~Spanning() = default;

template <class Work>
void Spanning::run(const shm::Call& call, Lane lane, Work&& work) {
  try {
    queue_.begin(call, lane);
    // Peers on other hosts may need an answer of the engine's before this host's ranks can go on.
    local_->act_for(&call, [this] { queue_.progress(0); });
    work();
    local_->act_for(nullptr);
    queue_.end();
  } catch (const sdk::Failure&) {
    local_->act_for(nullptr);
    std::string detail;
    const concord_status status = local_->error(&detail);
    if (status != CONCORD_STATUS_OK) queue_.line().report(status, detail);
    throw;
  }
}

void Spanning::abort() noexcept {
  local_->abort();
  std::string detail;
  const concord_status status = local_->error(&detail);
  queue_.line().report(status, detail);
}

std::unique_ptr<shm::Engine> Spanning::split(std::span<const int32_t> ranks, const shm::Options& options) {
  sdk::check_split(ranks.data(), static_cast<int32_t>(ranks.size()), rank_, size());
  shm::SplitOffers offers(size());
  offers.write(rank_, ranks, create_id);
  run({shm::kSplit, kBytes, 0, -1, offers.record_bytes()}, Lane::kCollectives, [&] {
    gather(offers.record(rank_), offers.record(0), offers.record_bytes());
    if (const int32_t other = offers.find_other_list(rank_, ranks); other >= 0) {
      queue_.fail(CONCORD_STATUS_INVALID_ARGUMENT, shm::different_lists_text(name(), rank_, other, ranks.size()));
    }
  });
  if (ranks.empty()) return nullptr;
  const auto place = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  return connect(static_cast<int32_t>(ranks.size()), static_cast<int32_t>(place), offers.record(ranks.front()),
                 shm::kUniqueIdBytes, options);
}

// ------------------------------------------------------------------------------------------------------------ reducing

void Spanning::all_reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) {
  sdk::check_all_reduce(send, recv, count, dtype, op);
  run({CONCORD_COMM_ALL_REDUCE, dtype, op, -1, count}, Lane::kCollectives,
      [&] { reduce_pieces({{at(send), at(recv), count, -1}}, dtype, op); });
}

void Spanning::reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op,
                      int32_t root) {
  sdk::check_reduce(send, recv, count, dtype, op, root, rank_, size());
  // As if all wanted it: every host then hears from the others, and sees it if they mean another root.
  run({CONCORD_COMM_REDUCE, dtype, op, root, count}, Lane::kCollectives,
      [&] { reduce_pieces({{at(send), rank_ == root ? at(recv) : nullptr, count, -1}}, dtype, op); });
}

void Spanning::reduce_scatter(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) {
  sdk::check_reduce_scatter(send, recv, count, dtype, op, rank_, size());
  const int64_t bytes = count * sdk::dtype_size(dtype);
  run({CONCORD_COMM_REDUCE_SCATTER, dtype, op, -1, count}, Lane::kCollectives, [&] {
    std::vector<Piece> pieces;
    for (int32_t r = 0; r < size(); ++r) {
      pieces.push_back(
          {at(send, r * bytes), r == rank_ ? at(recv) : nullptr, count, map_.host[static_cast<size_t>(r)]});
    }
    if (bytes * size() * size() <= kSmallBytes) {  // all blocks at once, of which this rank keeps its own
      std::vector<std::byte> all(static_cast<size_t>(bytes * size()));
      reduce_at_leaders({at(send), all.data(), count * size(), -1}, dtype, op);
      return move_bytes(at(recv), all.data() + rank_ * bytes, bytes);
    }
    reduce_pieces(std::move(pieces), dtype, op);
  });
}

// One rank per host on two hosts: each of the two has all that it needs with one message.
void Spanning::reduce_pieces(std::vector<Piece> pieces, concord_dtype dtype, concord_reduce_op op) {
  const int64_t element = sdk::dtype_size(dtype);
  int64_t all = 0;
  for (const Piece& piece : pieces) all += piece.elements * element * size();
  const bool chain = all > kSmallBytes && size() > 2 && map_.contiguous && map_.even && SliceSum::works(dtype, op);
  if (chain) return Chain(rank_, map_, *local_, queue_, SliceSum(dtype, op, size()), dtype, scratch_).run(pieces);
  const int64_t most = std::max<int64_t>(1, kLeaderBytes / (size() * element));
  for (const Piece& piece : pieces) {
    for (int64_t start = 0; start == 0 || start < piece.elements; start += most) {
      const int64_t offset = start * element;
      const Piece part{at(piece.send, offset), at(piece.recv, offset), std::min(most, piece.elements - start),
                       piece.host};
      reduce_at_leaders(part, dtype, op);
    }
  }
}

// Gathers the values of every host at its leader; leaders exchange them, and each reduces over all ranks in order.
void Spanning::reduce_at_leaders(const Piece& piece, concord_dtype dtype, concord_reduce_op op) {
  const int64_t bytes = piece.elements * sdk::dtype_size(dtype);
  scratch_.resize(std::max(scratch_.size(), static_cast<size_t>((size() + 1) * bytes)));
  std::vector<const std::byte*> blocks;  // one per host
  std::byte* next = scratch_.data();
  for (int32_t h = 0; h < map_.host_count(); next += map_.size_of(h) * bytes, ++h) blocks.push_back(next);
  std::byte* const result = next;
  const auto block_of = [&](int32_t h) { return const_cast<std::byte*>(blocks[static_cast<size_t>(h)]); };
  if (local_ranks_ > 1) {
    local_->all_gather(piece.send, block_of(host_), bytes, kBytes);
  } else {
    blocks[static_cast<size_t>(host_)] = piece.send;
  }
  const auto wanted_at = [&](int32_t h) { return piece.host < 0 || piece.host == h; };
  if (leads()) {
    for (int32_t h = 0; h < map_.host_count(); ++h) {
      if (h == host_) continue;
      if (wanted_at(host_)) queue_.receive(map_.leader(h), block_of(h), map_.size_of(h) * bytes);
      if (wanted_at(h)) queue_.send(map_.leader(h), blocks[static_cast<size_t>(host_)], local_ranks_ * bytes);
    }
    queue_.finish();
  }
  if (!wanted_at(host_)) return;
  std::byte* const out = local_ranks_ == 1 && piece.recv != nullptr ? piece.recv : result;
  if (leads()) {
    std::vector<const void*> sources;
    for (int32_t r = 0; r < size(); ++r) {
      const auto rank = static_cast<size_t>(r);
      sources.push_back(blocks[static_cast<size_t>(map_.host[rank])] + map_.place[rank] * bytes);
    }
    shm::find_reduction(dtype, op)(out, sources.data(), size(), piece.elements);
  }
  if (local_ranks_ > 1) local_->broadcast(result, piece.recv != nullptr ? piece.recv : result, bytes, kBytes, 0);
}

// ------------------------------------------------------------------------------------------------------------- copying

// The ranks of a host compare their calls, then the hosts do, and only then is anything delivered: else a rank could be
// done while another one means another root.
void Spanning::broadcast(const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root) {
  sdk::check_broadcast(send, recv, count, dtype, root, rank_, size());
  const int64_t bytes = count * sdk::dtype_size(dtype);
  const int32_t from = map_.host[static_cast<size_t>(root)];
  run({CONCORD_COMM_BROADCAST, dtype, 0, root, count}, Lane::kCollectives, [&] {
    if (local_ranks_ > 1) local_->barrier();
    if (leads()) greet_leaders();
    for (int32_t h = 0; rank_ == root && h < map_.host_count(); ++h) {
      if (h != host_) queue_.send(map_.leader(h), send, bytes);
    }
    if (leads() && host_ != from) queue_.receive(root, recv, bytes);
    queue_.finish();
    const int32_t source = host_ == from ? map_.place[static_cast<size_t>(root)] : 0;
    const void* const data = host_ == from ? send : recv;
    if (local_ranks_ == 1) return move_bytes(at(recv), at(data), bytes);
    local_->broadcast(data, recv, bytes, kBytes, source);
  });
}

// A message without data to and from every other leader: each sees what the others do.
void Spanning::greet_leaders() {
  for (int32_t h = 0; h < map_.host_count(); ++h) {
    if (h == host_) continue;
    queue_.receive(map_.leader(h), nullptr, 0);
    queue_.send(map_.leader(h), nullptr, 0);
  }
}

void Spanning::all_gather(const void* send, void* recv, int64_t count, concord_dtype dtype) {
  sdk::check_all_gather(send, recv, count, dtype, rank_, size());
  run({CONCORD_COMM_ALL_GATHER, dtype, 0, -1, count}, Lane::kCollectives,
      [&] { gather(at(send), at(recv), count * sdk::dtype_size(dtype)); });
}

// Every rank exchanges its block with those in its place on the other hosts; then the ranks of a host share what each
// has received.
void Spanning::gather(const std::byte* send, std::byte* recv, int64_t bytes) {
  if (!map_.contiguous || !map_.even) return gather_one_by_one(send, recv, bytes);
  for (int32_t h = 0; h < map_.host_count(); ++h) {
    if (h == host_) continue;
    const int32_t peer = map_.leader(h) + place_;
    queue_.receive(peer, at(recv, peer * bytes), bytes);
    queue_.send(peer, send, bytes);
  }
  if (local_ranks_ > 1) local_->all_gather(send, at(recv, map_.leader(host_) * bytes), bytes, kBytes);
  if (local_ranks_ == 1) move_bytes(at(recv, rank_ * bytes), send, bytes);
  queue_.finish();
  for (int32_t h = 0; local_ranks_ > 1 && h < map_.host_count(); ++h) {
    std::byte* const block = at(recv, map_.leader(h) * bytes);
    if (h != host_) local_->all_gather(at(block, place_ * bytes), block, bytes, kBytes);
  }
}

void Spanning::gather_one_by_one(const std::byte* send, std::byte* recv, int64_t bytes) {
  move_bytes(at(recv, rank_ * bytes), send, bytes);
  for (int32_t h = 0; h < map_.host_count(); ++h) {
    if (h == host_) continue;
    queue_.send(map_.leader(h), send, bytes);
    for (const int32_t peer : map_.ranks[static_cast<size_t>(h)]) {
      if (leads()) queue_.receive(peer, at(recv, peer * bytes), bytes);
    }
  }
  queue_.finish();
  for (int32_t r = 0; local_ranks_ > 1 && r < size(); ++r) {
    const auto rank = static_cast<size_t>(r);
    std::byte* const block = at(recv, r * bytes);
    local_->broadcast(block, block, bytes, kBytes, map_.host[rank] == host_ ? map_.place[rank] : 0);
  }
}

void Spanning::all_to_all(const void* send, void* recv, int64_t count, concord_dtype dtype) {
  sdk::check_all_to_all(send, recv, count, dtype, size());
  const std::vector<int64_t> counts(static_cast<size_t>(size()), count);
  std::vector<int64_t> offsets;
  for (int32_t r = 0; r < size(); ++r) offsets.push_back(r * count);
  run({CONCORD_COMM_ALL_TO_ALL, dtype, 0, -1, count}, Lane::kCollectives,
      [&] { exchange(at(send), counts.data(), offsets.data(), at(recv), counts.data(), offsets.data(), dtype); });
}

void Spanning::all_to_all_v(const void* send, const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                            const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype) {
  sdk::check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, size());
  if (send_counts[rank_] != recv_counts[rank_]) {
    sdk::invalid(sdk::text("rank %d sends %lld elements to itself and receives %lld", rank_,
                           static_cast<long long>(send_counts[rank_]), static_cast<long long>(recv_counts[rank_])));
  }
  run({CONCORD_COMM_ALL_TO_ALL_V, dtype, 0, -1, 0}, Lane::kCollectives,
      [&] { exchange(at(send), send_counts, send_offsets, at(recv), recv_counts, recv_offsets, dtype); });
}

void Spanning::exchange(const std::byte* send, const int64_t* send_counts, const int64_t* send_offsets, std::byte* recv,
                        const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype) {
  const int64_t element = sdk::dtype_size(dtype);
  for (int32_t r = 0; r < size(); ++r) {
    if (map_.host[static_cast<size_t>(r)] == host_) continue;
    queue_.receive(r, at(recv, recv_offsets[r] * element), recv_counts[r] * element);
    queue_.send(r, at(send, send_offsets[r] * element), send_counts[r] * element);
  }
  const auto here = [&](const int64_t* numbers) {  // entries of the ranks on this host
    std::vector<int64_t> some;
    for (const int32_t r : map_.ranks[static_cast<size_t>(host_)]) some.push_back(numbers[r]);
    return some;
  };
  local_->all_to_all_v(send, here(send_counts).data(), here(send_offsets).data(), recv, here(recv_counts).data(),
                       here(recv_offsets).data(), dtype);
  queue_.finish();
}

void Spanning::barrier() {
  run({CONCORD_COMM_BARRIER, 0, 0, -1, 0}, Lane::kCollectives, [&] {
    if (local_ranks_ > 1) local_->barrier();
    if (leads()) greet_leaders();
    queue_.finish();
    if (local_ranks_ > 1) local_->barrier();
  });
}

// ------------------------------------------------------------------------------------------------------ point to point

// Transfers inside the host wait in shared memory; what crosses hosts moves meanwhile.
void Spanning::batch_p2p(std::span<const concord_p2p_item> items) {
  sdk::check_batch_p2p(items.data(), static_cast<int64_t>(items.size()), rank_, size());
  run({CONCORD_COMM_P2P, 0, 0, -1, 0}, Lane::kPointToPoint, [&] {
    std::vector<concord_p2p_item> inside;
    std::vector<std::pair<Message*, const concord_p2p_item*>> messages;
    for (const concord_p2p_item& item : items) {
      const auto peer = static_cast<size_t>(item.peer);
      const int64_t bytes = item.count * sdk::dtype_size(item.dtype);
      if (map_.host[peer] == host_) {
        inside.push_back(item);
        inside.back().peer = map_.place[peer];
      } else if (item.kind == CONCORD_P2P_SEND) {
        const Header header{{static_cast<uint64_t>(item.dtype), static_cast<uint64_t>(item.count)}};
        messages.emplace_back(&queue_.send(item.peer, item.buffer, bytes, header), &item);
      } else {
        messages.emplace_back(&queue_.receive(item.peer, item.buffer, bytes), &item);
      }
    }
    if (!inside.empty()) local_->batch_p2p(inside, [&] { queue_.progress(1); });
    for (const auto& [message, item] : messages) {
      queue_.await_any(*message);
      if (message->incoming) check_transfer(*message, *item);
    }
    queue_.settle();
  });
}

void Spanning::check_transfer(const Message& message, const concord_p2p_item& item) {
  const auto dtype = static_cast<concord_dtype>(message.transfer.header.words[0]);
  const auto count = static_cast<int64_t>(message.transfer.header.words[1]);
  if (dtype == item.dtype && count == item.count && message.transfer.bytes == message.bytes) return;
  const bool known = dtype >= CONCORD_DTYPE_F32 && dtype <= CONCORD_DTYPE_BOOL;
  queue_.fail(
      CONCORD_STATUS_INVALID_ARGUMENT,
      sdk::text("communicator '%s': rank %d sent %s x %lld to rank %d, which receives %s x %lld there", name().c_str(),
                item.peer, known ? sdk::dtype_name(dtype) : "unknown elements", static_cast<long long>(count), rank_,
                sdk::dtype_name(item.dtype), static_cast<long long>(item.count)));
}

}  // namespace concord::net
