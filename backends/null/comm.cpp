#include "comm.h"

#include "status.h"

namespace concord::null {

int64_t Communicators::unique_id_size() { unimplemented("comm.unique_id_size"); }

void Communicators::unique_id_create(void*, int64_t) { unimplemented("comm.unique_id_create"); }

concord_comm Communicators::init(int32_t, int32_t, int32_t, const void*, int64_t, const concord_comm_config*) {
  unimplemented("comm.init");
}

void Communicators::destroy(concord_comm) { unimplemented("comm.destroy"); }

concord_status Communicators::async_error(concord_comm) { unimplemented("comm.async_error"); }

int32_t Communicators::rank(concord_comm) { unimplemented("comm.rank"); }

int32_t Communicators::size(concord_comm) { unimplemented("comm.size"); }

int32_t Communicators::supports(concord_comm_op, concord_dtype, concord_reduce_op) { unimplemented("comm.supports"); }

void Communicators::all_reduce(concord_comm, const void*, void*, int64_t, concord_dtype, concord_reduce_op,
                               concord_stream) {
  unimplemented("comm.all_reduce");
}

void Communicators::reduce(concord_comm, const void*, void*, int64_t, concord_dtype, concord_reduce_op, int32_t,
                           concord_stream) {
  unimplemented("comm.reduce");
}

void Communicators::broadcast(concord_comm, const void*, void*, int64_t, concord_dtype, int32_t, concord_stream) {
  unimplemented("comm.broadcast");
}

void Communicators::all_gather(concord_comm, const void*, void*, int64_t, concord_dtype, concord_stream) {
  unimplemented("comm.all_gather");
}

void Communicators::reduce_scatter(concord_comm, const void*, void*, int64_t, concord_dtype, concord_reduce_op,
                                   concord_stream) {
  unimplemented("comm.reduce_scatter");
}

void Communicators::all_to_all(concord_comm, const void*, void*, int64_t, concord_dtype, concord_stream) {
  unimplemented("comm.all_to_all");
}

void Communicators::all_to_all_v(concord_comm, const void*, const int64_t*, const int64_t*, void*, const int64_t*,
                                 const int64_t*, concord_dtype, concord_stream) {
  unimplemented("comm.all_to_all_v");
}

void Communicators::barrier(concord_comm, concord_stream) { unimplemented("comm.barrier"); }

void Communicators::batch_p2p(concord_comm, const concord_p2p_item*, int64_t, concord_stream) {
  unimplemented("comm.batch_p2p");
}

}  // namespace concord::null
