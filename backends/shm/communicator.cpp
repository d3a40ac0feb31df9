#include "backends/shm/communicator.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/shm/channels.h"
#include "backends/shm/collectives.h"
#include "backends/shm/reduce.h"
#include "backends/shm/rendezvous.h"
#include "backends/shm/split_offers.h"
#include "backends/shm/team.h"
#include "platform/sdk/checks.hpp"

namespace concord::shm {

void create_unique_id(void* out_id, int64_t bytes) {
  sdk::check_unique_id(out_id, bytes, kUniqueIdBytes);
  auto* next = static_cast<std::byte*>(out_id);
  for (int64_t left = bytes; left > 0;) {
    const ssize_t got = ::getrandom(next, static_cast<size_t>(left), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      sdk::fail(CONCORD_STATUS_UNAVAILABLE, sdk::text("cannot get random numbers: %s", std::strerror(errno)));
    next += got;
    left -= got;
  }
  const uint64_t host = this_host();
  static_assert(sizeof host == kHostBytes);
  std::memcpy(next - kHostBytes, &host, sizeof host);
}

bool supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce) {
  switch (operation) {
    case CONCORD_COMM_ALL_REDUCE:
    case CONCORD_COMM_REDUCE:
    case CONCORD_COMM_REDUCE_SCATTER: return find_reduction(dtype, reduce) != nullptr;
    case CONCORD_COMM_BROADCAST:
    case CONCORD_COMM_ALL_GATHER:
    case CONCORD_COMM_ALL_TO_ALL:
    case CONCORD_COMM_ALL_TO_ALL_V:
    case CONCORD_COMM_P2P: return dtype >= CONCORD_DTYPE_F32 && dtype <= CONCORD_DTYPE_BOOL;
    case CONCORD_COMM_BARRIER: return true;
    default: return false;
  }
}

int64_t bytes_per_rank(int32_t world) {
  sdk::check_rank(0, world);
  return (Geometry(world).total_bytes + world - 1) / world;
}

// -------------------------------------------------------------------------------------------------------------- set-up

struct Communicator::State {
  State(std::shared_ptr<Segment> segment, const Meeting& meeting, const std::vector<int32_t>& numbers)
      : team(std::move(segment), meeting.rank, meeting.name, meeting.timeout, numbers),
        collectives(team),
        channels(team) {}

  bool alone() const { return team.world() == 1; }

  Team team;
  Collectives collectives;
  Channels channels;
};

namespace {

// The time that a rank spends inside an operation.
class Operation {
 public:
  Operation(Team& team, const Call& call) : team_(team) { team_.begin(call); }
  ~Operation() { team_.end(); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  Team& team_;
};

constexpr auto kMaxTimeout = std::chrono::hours(24 * 365);  // far from where clocks overflow

// What every collective amounts to with one rank.
void copy_alone(void* recv, const void* send, int64_t bytes) {
  if (bytes > 0 && recv != send) std::memcpy(recv, send, static_cast<size_t>(bytes));
}

}  // namespace

std::unique_ptr<Communicator> Communicator::join(const Meeting& meeting, const std::vector<int32_t>& numbers) {
  if (meeting.world > kMaxWorld) {
    sdk::fail(CONCORD_STATUS_UNIMPLEMENTED,
              sdk::text("communicator '%s' of %d ranks on one host; at most %d are supported", meeting.name.c_str(),
                        meeting.world, kMaxWorld));
  }
  if (meeting.timeout.count() <= 0) {
    sdk::invalid(sdk::text("the timeout of communicator '%s' is %lld ms; it must be > 0", meeting.name.c_str(),
                           static_cast<long long>(meeting.timeout.count())));
  }
  Meeting limited = meeting;
  limited.timeout = std::min<std::chrono::milliseconds>(meeting.timeout, kMaxTimeout);
  return std::unique_ptr<Communicator>(new Communicator(std::make_unique<State>(meet(limited), limited, numbers)));
}

std::unique_ptr<Communicator> Communicator::connect(int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                                    const Options& options) {
  sdk::check_init(world, rank, id, id_bytes, kUniqueIdBytes);
  return join({world, rank, id, options.name, options.timeout, nullptr}, options.numbers);
}

std::unique_ptr<Engine> Communicator::split(std::span<const int32_t> ranks, const Options& options) {
  sdk::check_split(ranks.data(), static_cast<int32_t>(ranks.size()), rank(), size());
  Team& team = state_->team;
  SplitOffers offers(size());
  offers.write(rank(), ranks, [](void* place) { create_unique_id(place, kUniqueIdBytes); });
  const Call call{kSplit, 0, 0, -1, offers.record_bytes()};
  const Operation operation(team, call);
  if (!state_->alone()) {
    const Call gather{kSplit, CONCORD_DTYPE_U8, 0, -1, offers.record_bytes()};
    state_->collectives.all_gather(gather, offers.record(rank()), offers.record(0));
  }
  if (ranks.empty()) return nullptr;
  if (const int32_t other = offers.find_other_list(rank(), ranks); other >= 0) {
    team.fail(CONCORD_STATUS_INVALID_ARGUMENT, different_lists_text(name(), rank(), other, ranks.size()));
  }
  const auto place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  return join({static_cast<int32_t>(ranks.size()), static_cast<int32_t>(place), offers.record(ranks.front()),
               options.name, options.timeout, [&team] { team.throw_if_failed(); }},
              options.numbers);
}

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Communicator::~Communicator() = default;

int32_t Communicator::rank() const { return state_->team.rank(); }
int32_t Communicator::size() const { return state_->team.world(); }
const std::string& Communicator::name() const { return state_->team.name(); }
void Communicator::abort() noexcept { state_->team.abort(); }
concord_status Communicator::error(std::string* out_detail) const { return state_->team.error(out_detail); }
void Communicator::record(concord_status status, const std::string& detail) noexcept {
  state_->team.record(status, detail);
}
void Communicator::throw_if_failed() const { state_->team.throw_if_failed(); }
void Communicator::act_for(const Call* call, std::function<void()> meanwhile) {
  state_->team.act_for(call, std::move(meanwhile));
}

int64_t Communicator::slot_bytes() const { return state_->team.segment().geometry().slot_bytes; }

void Communicator::round(const std::function<void(std::byte*)>& fill,
                         const std::function<void(std::span<const std::byte* const>)>& read) {
  const Call call{CONCORD_COMM_BARRIER, 0, 0, -1, 0};
  const Operation operation(state_->team, call);
  state_->collectives.round(call, fill, read);
}

// ---------------------------------------------------------------------------------------------------------- operations

void Communicator::all_reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) {
  sdk::check_all_reduce(send, recv, count, dtype, op);
  const Call call{CONCORD_COMM_ALL_REDUCE, dtype, op, -1, count};
  const Operation operation(state_->team, call);
  if (state_->alone()) return copy_alone(recv, send, sdk::element_bytes(count, dtype));
  state_->collectives.all_reduce(call, send, recv);
}

void Communicator::reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op,
                          int32_t root) {
  sdk::check_reduce(send, recv, count, dtype, op, root, rank(), size());
  const Call call{CONCORD_COMM_REDUCE, dtype, op, root, count};
  const Operation operation(state_->team, call);
  if (state_->alone()) return copy_alone(recv, send, sdk::element_bytes(count, dtype));
  state_->collectives.reduce(call, send, recv);
}

void Communicator::broadcast(const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root) {
  sdk::check_broadcast(send, recv, count, dtype, root, rank(), size());
  const Call call{CONCORD_COMM_BROADCAST, dtype, 0, root, count};
  const Operation operation(state_->team, call);
  if (state_->alone()) return copy_alone(recv, send, sdk::element_bytes(count, dtype));
  state_->collectives.broadcast(call, send, recv);
}

void Communicator::all_gather(const void* send, void* recv, int64_t count, concord_dtype dtype) {
  sdk::check_all_gather(send, recv, count, dtype, rank(), size());
  const Call call{CONCORD_COMM_ALL_GATHER, dtype, 0, -1, count};
  const Operation operation(state_->team, call);
  if (state_->alone()) return copy_alone(recv, send, sdk::element_bytes(count, dtype));
  state_->collectives.all_gather(call, send, recv);
}

void Communicator::reduce_scatter(const void* send, void* recv, int64_t count, concord_dtype dtype,
                                  concord_reduce_op op) {
  sdk::check_reduce_scatter(send, recv, count, dtype, op, rank(), size());
  const Call call{CONCORD_COMM_REDUCE_SCATTER, dtype, op, -1, count};
  const Operation operation(state_->team, call);
  if (state_->alone()) return copy_alone(recv, send, sdk::element_bytes(count, dtype));
  state_->collectives.reduce_scatter(call, send, recv);
}

void Communicator::all_to_all(const void* send, void* recv, int64_t count, concord_dtype dtype) {
  sdk::check_all_to_all(send, recv, count, dtype, size());
  const Call call{CONCORD_COMM_ALL_TO_ALL, dtype, 0, -1, count};
  const Operation operation(state_->team, call);
  if (state_->alone()) return copy_alone(recv, send, sdk::element_bytes(count, dtype));
  state_->collectives.all_to_all(call, send, recv);
}

void Communicator::all_to_all_v(const void* send, const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                                const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype) {
  sdk::check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, size());
  if (send_counts[rank()] != recv_counts[rank()]) {
    sdk::invalid(sdk::text("rank %d sends %lld elements to itself and receives %lld", rank(),
                           static_cast<long long>(send_counts[rank()]), static_cast<long long>(recv_counts[rank()])));
  }
  const Call call{CONCORD_COMM_ALL_TO_ALL_V, dtype, 0, -1, 0};
  const Operation operation(state_->team, call);
  if (state_->alone()) {
    const int64_t element = sdk::dtype_size(dtype);
    return copy_alone(static_cast<std::byte*>(recv) + recv_offsets[0] * element,
                      static_cast<const std::byte*>(send) + send_offsets[0] * element, send_counts[0] * element);
  }
  state_->collectives.all_to_all_v(call, send, send_counts, send_offsets, recv, recv_counts, recv_offsets);
}

void Communicator::barrier() {
  const Call call{CONCORD_COMM_BARRIER, 0, 0, -1, 0};
  const Operation operation(state_->team, call);
  if (!state_->alone()) state_->collectives.barrier(call);
}

void Communicator::batch_p2p(std::span<const concord_p2p_item> items, const std::function<void()>& meanwhile) {
  sdk::check_batch_p2p(items.data(), static_cast<int64_t>(items.size()), rank(), size());
  const Operation operation(state_->team, {CONCORD_COMM_P2P, 0, 0, -1, 0});
  state_->channels.run(items, meanwhile);
}

}  // namespace concord::shm
