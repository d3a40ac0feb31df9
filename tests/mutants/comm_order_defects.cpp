// Defects in the order of collectives, and in the creation and lifetime of communicators.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "tests/mutants/collective.h"

namespace concord::mutants {
namespace {

concord_status real_all_reduce(ALL_REDUCE_ARGUMENTS) {
  return real().all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
}

concord_status ignore_stream(ALL_REDUCE_ARGUMENTS) {
  (void)stream;
  const concord_status status = real_all_reduce(self, comm, send, recv, count, dtype, reduce, aside());
  wait_for(aside());
  return status;
}

concord_status wait_for_result(ALL_REDUCE_ARGUMENTS) {
  const concord_status status = real_all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
  if (status == CONCORD_STATUS_OK) wait_for(stream);
  return status;
}

// Issues all operations in one queue that waits for the caller's stream, and vice versa.
concord_status share_queue(ALL_REDUCE_ARGUMENTS) {
  static concord_stream queue = nullptr;
  const concord_stream_table& s = base().stream;
  const concord_event_table& e = base().event;
  int32_t device = 0;
  base().device.get_current(base().device.self, &device);
  if (queue == nullptr) s.create(s.self, device, 0, &queue);
  concord_event event = nullptr;
  e.create(e.self, device, 0, &event);
  e.record(e.self, event, stream);
  s.wait_event(s.self, queue, event);
  const concord_status status = real_all_reduce(self, comm, send, recv, count, dtype, reduce, queue);
  e.record(e.self, event, queue);
  s.wait_event(s.self, stream, event);
  e.destroy(e.self, event);
  return status;
}

// ---- rank 1 keeps a call back until the next one, which then overtakes it

struct KeptCall {
  void* self;
  concord_comm comm;
  const void* send;
  void* recv;
  int64_t count;
  concord_dtype dtype;
  concord_reduce_op reduce;
  concord_stream stream;
};

std::mutex kept_mutex;
std::vector<KeptCall> kept;

void call_kept() {
  for (const KeptCall& k : kept) real_all_reduce(k.self, k.comm, k.send, k.recv, k.count, k.dtype, k.reduce, k.stream);
  kept.clear();
}

concord_status overtake(ALL_REDUCE_ARGUMENTS) {
  const std::lock_guard lock(kept_mutex);
  if (kept.empty() && rank_of(comm) == 1 && is_good(send, recv, count)) {
    kept.push_back({self, comm, send, recv, count, dtype, reduce, stream});
    return CONCORD_STATUS_OK;
  }
  const concord_status status = real_all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
  call_kept();
  return status;
}

concord_status synchronize_with_kept(void* self, concord_stream stream) {
  {
    const std::lock_guard lock(kept_mutex);
    call_kept();
  }
  return base().stream.synchronize(self, stream);
}

// Uses one unguarded buffer for everything.
concord_status reduce_by_shared_buffer(ALL_REDUCE_ARGUMENTS) {
  constexpr int64_t kShared = 1 << 20;
  static void* shared = nullptr;
  const int64_t bytes = count * element_size(dtype);
  if (!is_good(send, recv, count) || bytes > kShared)
    return real_all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
  int32_t device = 0;
  base().device.get_current(base().device.self, &device);
  if (shared == nullptr) base().memory.allocate(base().memory.self, device, kShared, &shared);
  wait_for(stream);
  write_device(shared, read_device(send, bytes));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const concord_status status = real_all_reduce(self, comm, shared, recv, count, dtype, reduce, stream);
  wait_for(stream);
  return status;
}

// ---- collectives that run at once, on a stream aside, whatever stream was asked for

concord_status finish_now(concord_status status) {
  wait_for(aside());
  return status;
}

std::vector<NamedDefect> stream_ignoring_defects() {
  return {
      {"ReduceIgnoresItsStream",
       [](Tables& tables) {
         tables.comm.reduce = [](void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                 concord_dtype dtype, concord_reduce_op reduce, int32_t root,
                                 concord_stream) -> concord_status {
           return finish_now(real().reduce(self, comm, send, recv, count, dtype, reduce, root, aside()));
         };
       }},
      {"BroadcastIgnoresItsStream",
       [](Tables& tables) {
         tables.comm.broadcast = [](void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                    concord_dtype dtype, int32_t root, concord_stream) -> concord_status {
           return finish_now(real().broadcast(self, comm, send, recv, count, dtype, root, aside()));
         };
       }},
      {"ReduceScatterIgnoresItsStream",
       [](Tables& tables) {
         tables.comm.reduce_scatter = [](void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                         concord_dtype dtype, concord_reduce_op reduce,
                                         concord_stream) -> concord_status {
           return finish_now(real().reduce_scatter(self, comm, send, recv, count, dtype, reduce, aside()));
         };
       }},
      {"AllGatherIgnoresItsStream",
       [](Tables& tables) {
         tables.comm.all_gather = [](void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                     concord_dtype dtype, concord_stream) -> concord_status {
           return finish_now(real().all_gather(self, comm, send, recv, count, dtype, aside()));
         };
       }},
      {"AllToAllIgnoresItsStream",
       [](Tables& tables) {
         tables.comm.all_to_all = [](void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                     concord_dtype dtype, concord_stream) -> concord_status {
           return finish_now(real().all_to_all(self, comm, send, recv, count, dtype, aside()));
         };
       }},
  };
}

// ---- set-up

std::mutex parents_mutex;
std::map<concord_comm, concord_comm> parents;

concord_status split_noted(void* self, concord_comm parent, const int32_t* ranks, int32_t count,
                           const concord_comm_config* config, concord_comm* out) {
  const concord_status status = real().split(self, parent, ranks, count, config, out);
  const std::lock_guard lock(parents_mutex);
  if (status == CONCORD_STATUS_OK && *out != nullptr) parents[*out] = parent;
  return status;
}

concord_status reduce_over_parent(ALL_REDUCE_ARGUMENTS) {
  const std::lock_guard lock(parents_mutex);
  const auto found = parents.find(comm);
  return real_all_reduce(self, found != parents.end() ? found->second : comm, send, recv, count, dtype, reduce, stream);
}

concord_status split_sorted(void* self, concord_comm parent, const int32_t* ranks, int32_t count,
                            const concord_comm_config* config, concord_comm* out) {
  if (ranks == nullptr || count <= 0) return real().split(self, parent, ranks, count, config, out);
  std::vector<int32_t> sorted(ranks, ranks + count);
  std::sort(sorted.begin(), sorted.end());
  return real().split(self, parent, sorted.data(), count, config, out);
}

concord_status split_for_all(void* self, concord_comm parent, const int32_t* ranks, int32_t count,
                             const concord_comm_config* config, concord_comm* out) {
  const concord_status status = real().split(self, parent, ranks, count, config, out);
  if (status == CONCORD_STATUS_OK && count == 0) *out = parent;
  return status;
}

concord_status rank_plus_one(void* self, concord_comm comm, int32_t* out) {
  const concord_status status = real().rank(self, comm, out);
  if (status == CONCORD_STATUS_OK) ++*out;
  return status;
}

concord_status same_id(void* self, void* out, int64_t bytes) {
  static Bytes first;
  const concord_status status = real().unique_id_create(self, out, bytes);
  if (status != CONCORD_STATUS_OK) return status;
  const auto* made = static_cast<const uint8_t*>(out);
  if (first.empty()) first.assign(made, made + bytes);
  std::memcpy(out, first.data(), first.size());
  return status;
}

concord_status destroy_later(void* self, concord_comm comm) {
  std::thread([self, comm] { real().destroy(self, comm); }).detach();
  return CONCORD_STATUS_OK;
}

concord_status no_barrier(void*, concord_comm, concord_stream) { return CONCORD_STATUS_OK; }
concord_status no_destroy(void*, concord_comm) { return CONCORD_STATUS_OK; }

}  // namespace

std::vector<NamedDefect> comm_order_defects() {
  std::vector<NamedDefect> list = {
      {"AllReduceIgnoresItsStream", replace_all_reduce<ignore_stream>},
      {"CallsWaitForTheResult", replace_all_reduce<wait_for_result>},
      {"CommunicatorsShareAQueue", replace_all_reduce<share_queue>},
      {"CommunicatorsShareABuffer", replace_all_reduce<reduce_by_shared_buffer>},
      {"CallsAreReordered",
       [](Tables& tables) {
         tables.comm.all_reduce = overtake;
         tables.stream.synchronize = synchronize_with_kept;
       }},
      {"BarrierDoesNothing", [](Tables& tables) { tables.comm.barrier = no_barrier; }},
      {"CommunicatorsShareState",
       [](Tables& tables) {
         tables.comm.split = split_noted;
         tables.comm.all_reduce = reduce_over_parent;
       }},
      {"SplitSortsTheRanks", [](Tables& tables) { tables.comm.split = split_sorted; }},
      {"SplitGivesEverybodyACommunicator", [](Tables& tables) { tables.comm.split = split_for_all; }},
      {"RankIsOffByOne", [](Tables& tables) { tables.comm.rank = rank_plus_one; }},
      {"UniqueIdIsNotUnique", [](Tables& tables) { tables.comm.unique_id_create = same_id; }},
      {"DestroyDoesNotWait", [](Tables& tables) { tables.comm.destroy = destroy_later; }},
      {"CommunicatorsLeak", [](Tables& tables) { tables.comm.destroy = no_destroy; }},
  };
  for (const NamedDefect& defect : stream_ignoring_defects()) list.push_back(defect);
  return list;
}

}  // namespace concord::mutants
