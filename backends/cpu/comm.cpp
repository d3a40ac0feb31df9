#include "backends/cpu/comm.h"

#include <span>
#include <vector>

#include "backends/cpu/device.h"
#include "backends/cpu/status.h"
#include "backends/cpu/stream.h"
#include "backends/net/communicator.h"
#include "backends/net/control.h"
#include "backends/shm/communicator.h"
#include "platform/sdk/checks.hpp"

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
    throw keep(current_failure());
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

// The communicator for an operation on |stream|.
Comm& Communicators::find(concord_comm comm, concord_stream stream) {
  Comm& found = comms_.find(comm);
  streams_.check_device(stream, found.device());
  return found;
}

int64_t Communicators::unique_id_size() { return shm::kUniqueIdBytes; }

void Communicators::unique_id_create(void* out_id, int64_t bytes) {
  sdk::check_unique_id(out_id, bytes, shm::kUniqueIdBytes);
  several_hosts_ ? net::create_id(out_id) : shm::create_unique_id(out_id, bytes);
}

concord_comm Communicators::init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                                 const concord_comm_config* config) {
  devices_.check(device);
  sdk::check_init(world, rank, id, id_bytes, shm::kUniqueIdBytes);
  const sdk::CommConfig settings = sdk::read_comm_config(config);
  const shm::Options options{settings.name, std::chrono::milliseconds(settings.timeout_ms), {}};
  auto engine = net::connect(world, rank, id, id_bytes, options);
  return comms_.insert(std::make_shared<Comm>(std::move(engine), device, options.timeout));
}

concord_comm Communicators::split(concord_comm parent, const int32_t* ranks, int32_t count,
                                  const concord_comm_config* config) {
  Comm& from = comms_.find(parent);
  sdk::check_split(ranks, count, from.rank(), from.size());
  const sdk::CommConfig settings = sdk::read_comm_config(config);
  const shm::Options options{settings.name, std::chrono::milliseconds(settings.timeout_ms), {}};
  auto engine =
      from.run([&](shm::Engine& whole) { return whole.split(std::span(ranks, static_cast<size_t>(count)), options); });
  if (engine == nullptr) return nullptr;
  return comms_.insert(std::make_shared<Comm>(std::move(engine), from.device(), options.timeout));
}

void Communicators::destroy(concord_comm comm) { comms_.remove(comm)->close(); }

void Communicators::abort(concord_comm comm) { comms_.share(comm)->abort(); }

concord_status Communicators::async_error(concord_comm comm) {
  const auto failure = comms_.share(comm)->failure();
  if (!failure) return CONCORD_STATUS_OK;
  sdk::set_error_detail(failure->what());
  return failure->status();
}

int32_t Communicators::rank(concord_comm comm) { return comms_.find(comm).rank(); }

int32_t Communicators::size(concord_comm comm) { return comms_.find(comm).size(); }

int32_t Communicators::supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce) {
  return shm::supports(operation, dtype, reduce) ? 1 : 0;
}

void Communicators::all_reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_reduce_op reduce, concord_stream stream) {
  Comm& found = find(comm, stream);
  sdk::check_all_reduce(send, recv, count, dtype, reduce);
  found.submit(streams_, stream, [=](shm::Engine& engine) { engine.all_reduce(send, recv, count, dtype, reduce); });
}

void Communicators::reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                           concord_reduce_op reduce, int32_t root, concord_stream stream) {
  Comm& found = find(comm, stream);
  sdk::check_reduce(send, recv, count, dtype, reduce, root, found.rank(), found.size());
  found.submit(streams_, stream, [=](shm::Engine& engine) { engine.reduce(send, recv, count, dtype, reduce, root); });
}

void Communicators::broadcast(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                              int32_t root, concord_stream stream) {
  Comm& found = find(comm, stream);
  sdk::check_broadcast(send, recv, count, dtype, root, found.rank(), found.size());
  found.submit(streams_, stream, [=](shm::Engine& engine) { engine.broadcast(send, recv, count, dtype, root); });
}

void Communicators::all_gather(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_stream stream) {
  Comm& found = find(comm, stream);
  sdk::check_all_gather(send, recv, count, dtype, found.rank(), found.size());
  found.submit(streams_, stream, [=](shm::Engine& engine) { engine.all_gather(send, recv, count, dtype); });
}

void Communicators::reduce_scatter(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                                   concord_reduce_op reduce, concord_stream stream) {
  Comm& found = find(comm, stream);
  sdk::check_reduce_scatter(send, recv, count, dtype, reduce, found.rank(), found.size());
  found.submit(streams_, stream, [=](shm::Engine& engine) { engine.reduce_scatter(send, recv, count, dtype, reduce); });
}

void Communicators::all_to_all(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                               concord_stream stream) {
  Comm& found = find(comm, stream);
  sdk::check_all_to_all(send, recv, count, dtype, found.size());
  found.submit(streams_, stream, [=](shm::Engine& engine) { engine.all_to_all(send, recv, count, dtype); });
}

void Communicators::all_to_all_v(concord_comm comm, const void* send, const int64_t* send_counts,
                                 const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                                 const int64_t* recv_offsets, concord_dtype dtype, concord_stream stream) {
  Comm& found = find(comm, stream);
  const auto size = static_cast<size_t>(found.size());
  sdk::check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, found.size());
  std::vector<int64_t> numbers;  // the four arrays one after another: the caller's may go when this call returns
  for (const int64_t* array : {send_counts, send_offsets, recv_counts, recv_offsets}) {
    numbers.insert(numbers.end(), array, array + size);
  }
  found.submit(streams_, stream, [=, numbers = std::move(numbers)](shm::Engine& engine) {
    const int64_t* at = numbers.data();
    engine.all_to_all_v(send, at, at + size, recv, at + 2 * size, at + 3 * size, dtype);
  });
}

void Communicators::barrier(concord_comm comm, concord_stream stream) {
  find(comm, stream).submit(streams_, stream, [](shm::Engine& engine) { engine.barrier(); });
}

void Communicators::batch_p2p(concord_comm comm, const concord_p2p_item* items, int64_t count, concord_stream stream) {
  Comm& found = find(comm, stream);
  sdk::check_batch_p2p(items, count, found.rank(), found.size());
  found.submit(streams_, stream,
               [copy = std::vector(items, items + count)](shm::Engine& engine) { engine.batch_p2p(copy); });
}

}  // namespace concord::cpu
