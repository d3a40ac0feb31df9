// Defects in how failures are reported: wrong codes, no report, no end.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <map>
#include <mutex>

#include "tests/mutants/collective.h"

namespace concord::mutants {
namespace {

// Reports |From| as |To|, wherever a failure of a communicator is returned.
template <concord_status From, concord_status To>
void rename_status(Tables& tables) {
  tables.stream.synchronize = [](void* self, concord_stream stream) -> concord_status {
    const concord_status status = base().stream.synchronize(self, stream);
    return status == From ? To : status;
  };
  tables.comm.all_reduce = [](void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                              concord_dtype dtype, concord_reduce_op reduce, concord_stream stream) -> concord_status {
    const concord_status status = real().all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
    return status == From ? To : status;
  };
  tables.comm.async_error = [](void* self, concord_comm comm, concord_status* out) -> concord_status {
    const concord_status status = real().async_error(self, comm, out);
    if (status == CONCORD_STATUS_OK && *out == From) *out = To;
    return status;
  };
}

concord_status always_ok(void* self, concord_stream stream) {
  base().stream.synchronize(self, stream);
  return CONCORD_STATUS_OK;
}

concord_status silent(void* self, concord_comm comm, concord_status* out) {
  const concord_status status = real().async_error(self, comm, out);
  if (status == CONCORD_STATUS_OK) *out = CONCORD_STATUS_OK;
  return status;
}

concord_status go_on(void* self, concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                     concord_reduce_op reduce, concord_stream stream) {
  const concord_status status = real().all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
  return status == CONCORD_STATUS_TIMEOUT ? CONCORD_STATUS_OK : status;
}

concord_status error_again(void* self, concord_stream stream) {
  static std::mutex mutex;
  static std::map<concord_stream, concord_status> last;
  const concord_status status = base().stream.synchronize(self, stream);
  const std::lock_guard lock(mutex);
  if (status != CONCORD_STATUS_OK) last[stream] = status;
  return last.count(stream) != 0 ? last[stream] : status;
}

concord_status init_for_ever(void* self, int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                             const concord_comm_config* config, concord_comm* out) {
  if (config == nullptr) return real().init(self, device, world, rank, id, id_bytes, config, out);
  concord_comm_config patient = *config;
  patient.timeout_ms = 0;
  return real().init(self, device, world, rank, id, id_bytes, &patient, out);
}

concord_status init_again(void* self, int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                          const concord_comm_config* config, concord_comm* out) {
  concord_status status = CONCORD_STATUS_TIMEOUT;
  while (status == CONCORD_STATUS_TIMEOUT) status = real().init(self, device, world, rank, id, id_bytes, config, out);
  return status;
}

concord_status root_is_zero(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                            concord_dtype dtype, int32_t root, concord_stream stream) {
  const bool good = root >= 0 && root < size_of(comm);
  return real().broadcast(self, comm, send, recv, count, dtype, good ? 0 : root, stream);
}

// ---- one communicator's failure is told of all

std::atomic<concord_status> spread{CONCORD_STATUS_OK};

concord_status note_failure(void* self, concord_stream stream) {
  const concord_status status = base().stream.synchronize(self, stream);
  if (status != CONCORD_STATUS_OK) spread = status;
  return status;
}

concord_status tell_failure(void* self, concord_comm comm, concord_status* out) {
  const concord_status status = real().async_error(self, comm, out);
  if (status == CONCORD_STATUS_OK && spread != CONCORD_STATUS_OK) *out = spread;
  return status;
}

}  // namespace

std::vector<NamedDefect> comm_fault_defects() {
  return {
      {"FailureIsReportedAsSuccess", [](Tables& tables) { tables.stream.synchronize = always_ok; }},
      {"LossIsReportedAsTimeout", rename_status<CONCORD_STATUS_PEER_LOST, CONCORD_STATUS_TIMEOUT>},
      {"DisagreementIsInternal", rename_status<CONCORD_STATUS_INVALID_ARGUMENT, CONCORD_STATUS_INTERNAL>},
      {"AsyncErrorIsSilent", [](Tables& tables) { tables.comm.async_error = silent; }},
      {"FailedCommunicatorGoesOn", [](Tables& tables) { tables.comm.all_reduce = go_on; }},
      {"ErrorSurfacesTwice", [](Tables& tables) { tables.stream.synchronize = error_again; }},
      {"TimeoutIsIgnored", [](Tables& tables) { tables.comm.init = init_for_ever; }},
      {"InitTimeoutIsIgnored", [](Tables& tables) { tables.comm.init = init_again; }},
      {"DisagreementOnTheRootIsNotSeen", [](Tables& tables) { tables.comm.broadcast = root_is_zero; }},
      {"AbortDoesNothing",
       [](Tables& tables) {
         tables.comm.abort = [](void*, concord_comm comm) -> concord_status {
           return comm != nullptr ? CONCORD_STATUS_OK : CONCORD_STATUS_INVALID_ARGUMENT;
         };
       }},
      {"AFailureSpreads",
       [](Tables& tables) {
         tables.stream.synchronize = note_failure;
         tables.comm.async_error = tell_failure;
       }},
      {"Crashes",
       [](Tables& tables) {
         tables.comm.all_reduce = [](void*, concord_comm, const void*, void*, int64_t, concord_dtype, concord_reduce_op,
                                     concord_stream) -> concord_status {
           raise(SIGSEGV);
           return CONCORD_STATUS_OK;
         };
       }},
      {"Exits",
       [](Tables& tables) {
         tables.comm.all_reduce = [](void*, concord_comm, const void*, void*, int64_t, concord_dtype, concord_reduce_op,
                                     concord_stream) -> concord_status { _exit(7); };
       }},
      {"Hangs",
       [](Tables& tables) {
         tables.comm.all_reduce = [](void*, concord_comm, const void*, void*, int64_t, concord_dtype, concord_reduce_op,
                                     concord_stream) -> concord_status {
           while (true) pause();
         };
       }},
  };
}

}  // namespace concord::mutants
