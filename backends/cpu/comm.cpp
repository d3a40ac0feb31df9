#include "backends/cpu/comm.h"

#include <vector>

#include "backends/cpu/device.h"
#include "backends/cpu/status.h"
#include "backends/cpu/stream.h"
#include "backends/net/communicator.h"
#include "backends/net/control.h"

namespace concord::cpu {

// -------------------------------------------------------------------------------------------------- one communicator

// Throws the communicator's failure, if it has one.
uint64_t Comm::begin_turn() {
  if (failed_.load() || engine_->error(nullptr) != CONCORD_STATUS_OK) throw *failure();
  return begun_.fetch_add(1);
}

// Earlier turns all run on streams, so they end: by themselves, by a failure, or by this deadline where the streams
// wait for each other in a circle.
void Comm::await_turn(uint64_t turn) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  if (!turns_.wait_until(deadline, [&] { return ended_.load() == turn || failed_.load(); })) {
    sdk::fail(CONCORD_STATUS_TIMEOUT,
              sdk::text("communicator '%s', rank %d: an operation waited %lld ms for an earlier one queued on "
                        "another stream that does not run; do the streams wait for each other?",
                        engine_->name().c_str(), rank(), static_cast<long long>(timeout_.count())));
  }
  if (failed_.load()) throw *failure();
}

// Ends a turn, whatever happens in it. A turn that ended out of order ended by a failure, which all waiting turns see.
class Comm::Turn {
 public:
  explicit Turn(Comm& comm) : comm_(comm) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    comm_.ended_.fetch_add(1);
    comm_.turns_.notify_all();
  }

 private:
  Comm& comm_;
};

template <class Work>
auto Comm::run_turn(uint64_t turn, Work&& work) {
  const Turn current(*this);
  try {
    await_turn(turn);
    return work(*engine_);
  } catch (...) {
    throw keep(sdk::current_failure());
  }
}

template <class Work>
void Comm::submit(Streams& streams, concord_stream stream, Work&& work) {
  if (stream == nullptr) return run(work);
  const uint64_t turn = begin_turn();
  try {
    streams.submit(stream, [self = shared_from_this(), turn, work = std::forward<Work>(work)]() mutable {
      self->run_turn(turn, work);
    });
  } catch (...) {
    begun_.fetch_sub(1);  // nothing was queued, and calls come one at a time: the turn was the last one
    throw;
  }
}

sdk::Failure Comm::keep(sdk::Failure failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  failed_.store(true);
  turns_.notify_all();
  return *failure_;
}

std::optional<sdk::Failure> Comm::failure() const {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
  }
  std::string detail;
  const concord_status status = engine_->error(&detail);
  return status == CONCORD_STATUS_OK ? std::nullopt : std::optional(sdk::Failure(status, detail));
}

void Comm::abort() {
  engine_->abort();
  keep(failure().value_or(sdk::Failure(CONCORD_STATUS_ABORTED, "the communicator was aborted")));
}

void Comm::close() {
  turns_.wait([this] { return ended_.load() == begun_.load(); });
  engine_.reset();
}

// --------------------------------------------------------------------------------------------------------- the table

Comm& Communicators::find(concord_comm comm, concord_stream stream) const {
  Comm& found = comms_.find(comm);
  streams_.check_device(stream, found.device());
  return found;
}

bool Communicators::can_reduce(concord_dtype dtype, concord_reduce_op reduce) const {
  return shm::supports(CONCORD_COMM_ALL_REDUCE, dtype, reduce);
}

void Communicators::create_id(void* out_id) {
  several_hosts_ ? net::create_id(out_id) : shm::create_unique_id(out_id, kUniqueIdBytes);
}

concord_comm Communicators::join(int32_t device, int32_t world, int32_t rank, const void* id,
                                 const sdk::CommConfig& config) {
  devices_.check(device);
  const shm::Options options{config.name, std::chrono::milliseconds(config.timeout_ms), {}};
  auto engine = net::connect(world, rank, id, kUniqueIdBytes, options);
  return comms_.insert(std::make_shared<Comm>(std::move(engine), device, options.timeout));
}

concord_comm Communicators::split_off(Comm& parent, std::span<const int32_t> ranks, const sdk::CommConfig& config) {
  const shm::Options options{config.name, std::chrono::milliseconds(config.timeout_ms), {}};
  auto engine = parent.run([&](shm::Engine& whole) { return whole.split(ranks, options); });
  if (engine == nullptr) return nullptr;
  return comms_.insert(std::make_shared<Comm>(std::move(engine), parent.device(), options.timeout));
}

concord_status Communicators::async_error(concord_comm comm) {
  const auto failure = comms_.share(comm)->failure();
  if (!failure) return CONCORD_STATUS_OK;
  sdk::set_error_detail(failure->what());
  return failure->status();
}

void Communicators::run(Comm& comm, const sdk::AllReduce& call, concord_stream stream) {
  comm.submit(streams_, stream, [call](shm::Engine& engine) {
    engine.all_reduce(call.send, call.recv, call.count, call.dtype, call.reduce);
  });
}

void Communicators::run(Comm& comm, const sdk::Reduce& call, concord_stream stream) {
  comm.submit(streams_, stream, [call](shm::Engine& engine) {
    engine.reduce(call.send, call.recv, call.count, call.dtype, call.reduce, call.root);
  });
}

void Communicators::run(Comm& comm, const sdk::Broadcast& call, concord_stream stream) {
  comm.submit(streams_, stream, [call](shm::Engine& engine) {
    engine.broadcast(call.send, call.recv, call.count, call.dtype, call.root);
  });
}

void Communicators::run(Comm& comm, const sdk::AllGather& call, concord_stream stream) {
  comm.submit(streams_, stream,
              [call](shm::Engine& engine) { engine.all_gather(call.send, call.recv, call.count, call.dtype); });
}

void Communicators::run(Comm& comm, const sdk::ReduceScatter& call, concord_stream stream) {
  comm.submit(streams_, stream, [call](shm::Engine& engine) {
    engine.reduce_scatter(call.send, call.recv, call.count, call.dtype, call.reduce);
  });
}

void Communicators::run(Comm& comm, const sdk::AllToAll& call, concord_stream stream) {
  comm.submit(streams_, stream,
              [call](shm::Engine& engine) { engine.all_to_all(call.send, call.recv, call.count, call.dtype); });
}

void Communicators::run(Comm& comm, const sdk::AllToAllV& call, concord_stream stream) {
  const auto size = static_cast<size_t>(comm.size());
  std::vector<int64_t> numbers;  // the four arrays, concatenated: the caller may free them when this call returns
  for (const int64_t* array : {call.send_counts, call.send_offsets, call.recv_counts, call.recv_offsets}) {
    numbers.insert(numbers.end(), array, array + size);
  }
  comm.submit(streams_, stream,
              [send = call.send, recv = call.recv, dtype = call.dtype, size,
               numbers = std::move(numbers)](shm::Engine& engine) {
                const int64_t* at = numbers.data();
                engine.all_to_all_v(send, at, at + size, recv, at + 2 * size, at + 3 * size, dtype);
              });
}

void Communicators::run(Comm& comm, const sdk::Barrier&, concord_stream stream) {
  comm.submit(streams_, stream, [](shm::Engine& engine) { engine.barrier(); });
}

void Communicators::run(Comm& comm, const sdk::BatchP2p& call, concord_stream stream) {
  comm.submit(streams_, stream, [items = std::vector(call.items.begin(), call.items.end())](shm::Engine& engine) {
    engine.batch_p2p(items);
  });
}

}  // namespace concord::cpu
