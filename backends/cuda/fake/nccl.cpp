// An NCCL on backends/shm, as far as the backend calls it. See README.md.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cuda/fake/control.h"
#include "backends/cuda/fake/stream.h"
#include "backends/shm/communicator.h"
#include "platform/sdk/plugin.hpp"

#define EXPORT __attribute__((visibility("default")))

// Two engines, because NCCL's set-up (boot) and its kernels (data) do not wait for each other.
struct ncclComm {
  std::unique_ptr<concord::shm::Engine> boot;
  std::unique_ptr<concord::shm::Engine> data;
  bool blocking = true;
  std::atomic<int> state{ncclInProgress};
  std::atomic<bool> ended{false};   // revoked or aborted: kernels leave
  std::atomic<int> kernels{0};      // on the device now
  std::atomic<int> callers{0};      // threads inside an operation
  std::shared_future<void> newest;  // the end of the newest kernel: they run in the order of the calls on any streams
};

namespace {

using concord::shm::Communicator;
using concord::shm::Engine;
using std::chrono::milliseconds;
using Shared = std::shared_ptr<ncclComm>;

struct Switches {
  std::atomic<int> fail_next{ncclSuccess};
  std::atomic<bool> hold_calls{false};
  std::atomic<bool> hold_destroy{false};
  std::atomic<int> aborts_under_a_caller{0};
};
Switches switches;

std::mutex registry_mutex;
std::map<ncclComm*, Shared>& registry() {
  static auto* map = new std::map<ncclComm*, Shared>;
  return *map;
}

std::string& last_error() {
  static auto* text = new std::string;
  return *text;
}
std::mutex last_error_mutex;

void set_last_error(const std::string& text) {
  const std::lock_guard lock(last_error_mutex);
  last_error() = text;
}

Shared shared(ncclComm* comm) {
  const std::lock_guard lock(registry_mutex);
  const auto found = registry().find(comm);
  return found != registry().end() ? found->second : nullptr;
}

void forget(ncclComm* comm) {
  const std::lock_guard lock(registry_mutex);
  registry().erase(comm);
}

Shared make_comm(bool blocking) {
  auto comm = std::make_shared<ncclComm>();
  comm->blocking = blocking;
  const std::lock_guard lock(registry_mutex);
  registry()[comm.get()] = comm;
  return comm;
}

void nap() { std::this_thread::sleep_for(milliseconds(1)); }

// Runs |setup|, here or on its own thread; |owner|'s state has the result.
template <class Setup>
ncclResult_t run_setup(const Shared& owner, Setup setup) {
  owner->state = ncclInProgress;
  const auto body = [owner, setup] {
    try {
      setup();
      owner->state = ncclSuccess;
    } catch (const std::exception& error) {
      set_last_error(error.what());
      owner->state = ncclSystemError;
    }
  };
  if (!owner->blocking) {
    std::thread(body).detach();
    return ncclInProgress;
  }
  body();
  return static_cast<ncclResult_t>(owner->state.load());
}

std::unique_ptr<Engine> twin(Engine& boot) {
  std::vector<int32_t> all(static_cast<size_t>(boot.size()));
  std::iota(all.begin(), all.end(), 0);
  return boot.split(all);
}

// A thread's stay inside a call.
class Stay {
 public:
  explicit Stay(Shared comm) : comm_(std::move(comm)) {
    ++comm_->callers;
    while (switches.hold_calls && !comm_->ended) nap();
  }
  ~Stay() { --comm_->callers; }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;
  bool cut_short() const { return comm_->ended; }

 private:
  Shared comm_;
};

// A kernel: does |work| with the peers. A kernel that cannot finish stays on the device until it is stopped.
template <class Work>
ncclResult_t launch(ncclComm* handle, cudaStream_t stream, Work work) {
  const Shared comm = shared(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (const int code = switches.fail_next.exchange(ncclSuccess); code != ncclSuccess) {
    set_last_error("the test asked for this");
    return static_cast<ncclResult_t>(code);
  }
  const Stay inside(comm);
  if (inside.cut_short()) return ncclInternalError;
  const auto end = std::make_shared<std::promise<void>>();
  const std::shared_future<void> before = std::exchange(comm->newest, end->get_future().share());
  const cudaError_t error = fake::push_work(stream, [comm, work, before, end] {
    if (before.valid()) before.wait();
    ++comm->kernels;
    try {
      if (!comm->ended) work(*comm->data);
    } catch (const std::exception& failure) {
      set_last_error(failure.what());
      if (!comm->ended) comm->state = ncclRemoteError;
      while (!comm->ended) nap();
    }
    --comm->kernels;
    try {
      end->set_value();
    } catch (const std::future_error&) {  // a graph that runs once more
    }
  });
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

concord_dtype dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: return CONCORD_DTYPE_I8;
    case ncclUint8: return CONCORD_DTYPE_U8;
    case ncclInt32: return CONCORD_DTYPE_I32;
    case ncclInt64: return CONCORD_DTYPE_I64;
    case ncclFloat16: return CONCORD_DTYPE_F16;
    case ncclFloat32: return CONCORD_DTYPE_F32;
    case ncclFloat64: return CONCORD_DTYPE_F64;
    case ncclBfloat16: return CONCORD_DTYPE_BF16;
    default: return 0;
  }
}

concord_reduce_op reduction_of(ncclRedOp_t op) {
  switch (op) {
    case ncclSum: return CONCORD_REDUCE_SUM;
    case ncclProd: return CONCORD_REDUCE_PROD;
    case ncclMin: return CONCORD_REDUCE_MIN;
    case ncclMax: return CONCORD_REDUCE_MAX;
    default: return CONCORD_REDUCE_AVG;
  }
}

// The real one drops NaN here, which the contract forbids: a backend that asks for it is wrong.
bool drops_nan(ncclDataType_t type, ncclRedOp_t op) {
  const bool real = type == ncclFloat16 || type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16;
  return real && (op == ncclMin || op == ncclMax);
}

struct Transfers {
  ncclComm* comm;
  cudaStream_t stream;
  std::vector<concord_p2p_item> items;
};
thread_local int group_depth = 0;
thread_local std::vector<Transfers> group;

ncclResult_t add_transfer(concord_p2p_kind kind, const void* data, size_t count, ncclDataType_t type, int peer,
                          ncclComm* comm, cudaStream_t stream) {
  auto found = std::find_if(group.begin(), group.end(), [&](const Transfers& t) { return t.comm == comm; });
  if (found == group.end()) found = group.insert(found, {comm, stream, {}});
  found->items.push_back({kind, peer, const_cast<void*>(data), static_cast<int64_t>(count), dtype_of(type), 0});
  return ncclSuccess;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- for the tests

extern "C" {

EXPORT void fake_nccl_fail_next_call(int result) { switches.fail_next = result; }
EXPORT void fake_nccl_hold_calls(int on) { switches.hold_calls = on != 0; }
EXPORT void fake_nccl_hold_destroy(int on) { switches.hold_destroy = on != 0; }
EXPORT int fake_nccl_aborts_under_a_caller() { return switches.aborts_under_a_caller; }
EXPORT int fake_nccl_live() {
  const std::lock_guard lock(registry_mutex);
  return static_cast<int>(registry().size());
}
EXPORT void fake_nccl_set_async_error(int result) {
  const std::lock_guard lock(registry_mutex);
  for (const auto& [key, comm] : registry()) comm->state = result;
}

// ------------------------------------------------------------------------------------------------------ communicators

EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

EXPORT const char* ncclGetErrorString(ncclResult_t) { return "the fake's words"; }

EXPORT const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string copy;
  const std::lock_guard lock(last_error_mutex);
  copy = last_error();
  return copy.c_str();
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  concord::shm::create_unique_id(id->internal, sizeof id->internal);
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int world, ncclUniqueId id, int rank,
                                           ncclConfig_t* config) {
  const Shared comm = make_comm(config->blocking != 0);
  *out = comm.get();
  return run_setup(comm, [comm, world, id, rank] {
    comm->boot = Communicator::connect(world, rank, id.internal, sizeof id.internal);
    comm->data = twin(*comm->boot);
  });
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
  const Shared parent = shared(handle);
  const bool blocking = config->blocking != 0;
  *out = nullptr;
  const Stay inside(parent);
  if (inside.cut_short()) return ncclInternalError;
  return run_setup(parent, [parent, color, key, out, blocking] {
    const int32_t mine[2] = {color, key};
    std::vector<int32_t> all(static_cast<size_t>(2 * parent->boot->size()));
    parent->boot->all_gather(mine, all.data(), 2, CONCORD_DTYPE_I32);
    std::vector<int32_t> ranks;
    for (int32_t rank = 0; rank < parent->boot->size(); ++rank) {
      if (color != NCCL_SPLIT_NOCOLOR && all[static_cast<size_t>(2 * rank)] == color) ranks.push_back(rank);
    }
    std::sort(ranks.begin(), ranks.end(), [&](int32_t a, int32_t b) {
      return all[static_cast<size_t>(2 * a + 1)] < all[static_cast<size_t>(2 * b + 1)];
    });
    auto boot = parent->boot->split(ranks);
    if (boot == nullptr) return;
    const Shared child = make_comm(blocking);
    child->boot = std::move(boot);
    child->data = twin(*child->boot);
    child->state = ncclSuccess;
    *out = child.get();
  });
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const Shared comm = shared(handle);
  while (switches.hold_destroy || comm->kernels > 0) nap();
  forget(handle);
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t handle, int) {
  const Shared comm = shared(handle);
  comm->ended = true;
  comm->boot->abort();
  comm->data->abort();
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const Shared comm = shared(handle);
  if (comm->callers > 0) ++switches.aborts_under_a_caller;
  comm->ended = true;
  if (comm->state != ncclInProgress && comm->data != nullptr) comm->data->abort();
  while (comm->kernels > 0) nap();
  forget(handle);
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const Shared comm = shared(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  *state = static_cast<ncclResult_t>(comm->state.load());
  return ncclSuccess;
}

// --------------------------------------------------------------------------------------------------------- operations

EXPORT ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream) {
  if (drops_nan(type, op)) return ncclInvalidUsage;
  return launch(comm, stream, [=](Engine& ranks) {
    ranks.all_reduce(send, recv, static_cast<int64_t>(count), dtype_of(type), reduction_of(op));
  });
}

EXPORT ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               int root, ncclComm_t comm, cudaStream_t stream) {
  if (drops_nan(type, op)) return ncclInvalidUsage;
  return launch(comm, stream, [=](Engine& ranks) {
    ranks.reduce(send, recv, static_cast<int64_t>(count), dtype_of(type), reduction_of(op), root);
  });
}

EXPORT ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream) {
  if (drops_nan(type, op)) return ncclInvalidUsage;
  return launch(comm, stream, [=](Engine& ranks) {
    ranks.reduce_scatter(send, recv, static_cast<int64_t>(count), dtype_of(type), reduction_of(op));
  });
}

EXPORT ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
  return launch(comm, stream,
                [=](Engine& ranks) { ranks.broadcast(send, recv, static_cast<int64_t>(count), dtype_of(type), root); });
}

EXPORT ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream) {
  return launch(comm, stream,
                [=](Engine& ranks) { ranks.all_gather(send, recv, static_cast<int64_t>(count), dtype_of(type)); });
}

EXPORT ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  const std::vector<Transfers> transfers = std::exchange(group, {});
  for (const Transfers& each : transfers) {
    const ncclResult_t result =
        launch(each.comm, each.stream, [items = each.items](Engine& ranks) { ranks.batch_p2p(items); });
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

EXPORT ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  return add_transfer(CONCORD_P2P_SEND, data, count, type, peer, comm, stream);
}

EXPORT ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  return add_transfer(CONCORD_P2P_RECV, data, count, type, peer, comm, stream);
}

}  // extern "C"
