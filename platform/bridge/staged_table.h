// The comm table of the bridge: divides operations into chunks and passes them to StagedComm.
#pragma once

#include <memory>
#include <span>

#include "platform/bridge/staged_comm.h"
#include "platform/sdk/communicators.hpp"
#include "platform/sdk/handles.hpp"

namespace concord::bridge {

// Runs |body|, which calls another platform; its Error becomes a Failure of this one.
template <class Body>
auto translated(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    sdk::fail(error.status(), error.detail().empty() ? error.what() : error.detail());
  }
}

class StagedTable : public sdk::CommTable<StagedTable> {
 public:
  StagedTable(Device device, Platform host) : device_(device), host_(host, 0) {}

  int64_t unique_id_size();
  void unique_id_create(void* out_id, int64_t bytes);
  concord_comm init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                    const concord_comm_config* config);
  concord_comm split_off(StagedComm& parent, std::span<const int32_t> ranks, const sdk::CommConfig& config);
  void destroy(concord_comm comm);
  StagedComm& find(concord_comm comm) const;
  StagedComm& find(concord_comm comm, concord_stream /*the host platform checks it*/) const { return find(comm); }
  bool can_reduce(concord_dtype dtype, concord_reduce_op reduce) const;

  void run(StagedComm& comm, const sdk::AllReduce& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::Reduce& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::Broadcast& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::AllGather& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::ReduceScatter& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::AllToAll& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::AllToAllV& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::Barrier& call, concord_stream stream);
  void run(StagedComm& comm, const sdk::BatchP2p& call, concord_stream stream);

 private:
  // |call|(communicator, queue, count, send, recv) for every chunk.
  template <class Call>
  void submit(StagedComm& comm, const sdk::Transfer& transfer, const Sides& sides, concord_stream stream, Call call);
  concord_comm adopt(Communicator comm);

  const Device device_;
  const Device host_;
  sdk::Handles<concord_comm, std::shared_ptr<StagedComm>> live_{"communicator"};
};

}  // namespace concord::bridge
