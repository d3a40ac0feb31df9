// Collectives and point-to-point transfers between the ranks of a communicator (platform/abi/comm.h). Move-only.
//
// Operations enqueue on a stream of the communicator's device. Threads: one at a time per communicator; abort and error
// at any time. Failures after the call are reported by the stream's next synchronize and by error().
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/cpp/stream.hpp"
#include "platform/cpp/types.hpp"

namespace concord {

// Created on one rank, sent to the others by the caller. A secret: any process of the same user that has it can join.
using UniqueId = std::vector<uint8_t>;

inline UniqueId create_unique_id(const Platform& platform) {
  int64_t bytes = 0;
  platform.call<&concord_comm_table::unique_id_size>(&bytes);
  UniqueId id(static_cast<size_t>(bytes));
  platform.call<&concord_comm_table::unique_id_create>(id.data(), bytes);
  return id;
}

struct CommOptions {
  std::string name = "comm";             // for messages and traces
  std::chrono::milliseconds timeout{0};  // how long to wait for peers, in set-up and in an operation; 0: 30 minutes
};

// The transfers of a batch: send_to(1, data, count, dtype), receive_from(0, ...).
inline concord_p2p_item send_to(int32_t peer, const void* buffer, int64_t count, DType dtype) {
  return {CONCORD_P2P_SEND, peer, const_cast<void*>(buffer), count, abi(dtype), 0};
}
inline concord_p2p_item receive_from(int32_t peer, void* buffer, int64_t count, DType dtype) {
  return {CONCORD_P2P_RECV, peer, buffer, count, abi(dtype), 0};
}

class Communicator : public Handle<concord_comm, &concord_comm_table::destroy> {
 public:
  // Joins as |rank| of |world|. Waits: for all ranks, or the timeout.
  Communicator(Device device, int32_t world, int32_t rank, const UniqueId& id, const CommOptions& options = {})
      : Communicator(device, init(device, world, rank, id, options), world, rank) {}

  // A communicator of this one's |ranks|, in that order. Every rank calls it; ranks that are not members pass an empty
  // list and get nothing. Waits: for all ranks of this communicator.
  std::optional<Communicator> split(std::span<const int32_t> ranks, const CommOptions& options = {}) const {
    const concord_comm_config config = abi_config(options);
    concord_comm comm = nullptr;
    platform().call<&concord_comm_table::split>(native(), ranks.data(), static_cast<int32_t>(ranks.size()), &config,
                                                &comm);
    if (comm == nullptr) return std::nullopt;
    return Communicator(device(), comm);
  }

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  static bool supports(const Platform& platform, CommOp operation, DType dtype) {
    return supports(platform, operation, dtype, 0);
  }
  static bool supports(const Platform& platform, CommOp operation, DType dtype, ReduceOp reduce) {
    return supports(platform, operation, dtype, abi(reduce));
  }

  void all_reduce(const Stream& stream, const void* send, void* recv, int64_t count, DType dtype, ReduceOp op) const {
    platform().call<&concord_comm_table::all_reduce>(native(), send, recv, count, abi(dtype), abi(op), stream.native());
  }
  void reduce(const Stream& stream, const void* send, void* recv, int64_t count, DType dtype, ReduceOp op,
              int32_t root) const {
    platform().call<&concord_comm_table::reduce>(native(), send, recv, count, abi(dtype), abi(op), root,
                                                 stream.native());
  }
  void broadcast(const Stream& stream, const void* send, void* recv, int64_t count, DType dtype, int32_t root) const {
    platform().call<&concord_comm_table::broadcast>(native(), send, recv, count, abi(dtype), root, stream.native());
  }
  // |count| is what one rank sends.
  void all_gather(const Stream& stream, const void* send, void* recv, int64_t count, DType dtype) const {
    platform().call<&concord_comm_table::all_gather>(native(), send, recv, count, abi(dtype), stream.native());
  }
  // |count| is what one rank receives.
  void reduce_scatter(const Stream& stream, const void* send, void* recv, int64_t count, DType dtype,
                      ReduceOp op) const {
    platform().call<&concord_comm_table::reduce_scatter>(native(), send, recv, count, abi(dtype), abi(op),
                                                         stream.native());
  }
  // |count| is what goes to one rank.
  void all_to_all(const Stream& stream, const void* send, void* recv, int64_t count, DType dtype) const {
    platform().call<&concord_comm_table::all_to_all>(native(), send, recv, count, abi(dtype), stream.native());
  }
  // Counts and offsets have size() entries each, in elements; they are read before the call returns.
  void all_to_all_v(const Stream& stream, const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                    void* recv, const int64_t* recv_counts, const int64_t* recv_offsets, DType dtype) const {
    platform().call<&concord_comm_table::all_to_all_v>(native(), send, send_counts, send_offsets, recv, recv_counts,
                                                       recv_offsets, abi(dtype), stream.native());
  }
  void barrier(const Stream& stream) const { platform().call<&concord_comm_table::barrier>(native(), stream.native()); }
  // All transfers as one operation: no order of sends and receives on two ranks can deadlock.
  void batch_p2p(const Stream& stream, std::span<const concord_p2p_item> items) const {
    platform().call<&concord_comm_table::batch_p2p>(native(), items.data(), static_cast<int64_t>(items.size()),
                                                    stream.native());
  }

  // Ends operations with ABORTED, here or on every rank, according to the capability comm.abort. Never waits. Threads:
  // any, at any time.
  void abort() const { platform().call<&concord_comm_table::abort>(native()); }

  struct Failure {
    concord_status status;
    std::string detail;
  };
  // The first error of this communicator; nothing while there is none. Never waits. Threads: any, at any time.
  std::optional<Failure> error() const {
    concord_status status = CONCORD_STATUS_OK;
    platform().call<&concord_comm_table::async_error>(native(), &status);
    if (status == CONCORD_STATUS_OK) return std::nullopt;
    return Failure{status, loader::take_error_detail()};
  }

 private:
  Communicator(Device device, concord_comm comm, int32_t size, int32_t rank)
      : Handle(device, comm, true), size_(size), rank_(rank) {}
  Communicator(Device device, concord_comm comm) : Handle(device, comm, true), size_(0), rank_(0) {
    platform().call<&concord_comm_table::size>(native(), &size_);
    platform().call<&concord_comm_table::rank>(native(), &rank_);
  }

  static concord_comm_config abi_config(const CommOptions& options) {
    return {sizeof(concord_comm_config), 0, options.name.c_str(), options.timeout.count()};
  }
  static concord_comm init(const Device& device, int32_t world, int32_t rank, const UniqueId& id,
                           const CommOptions& options) {
    const concord_comm_config config = abi_config(options);
    concord_comm comm = nullptr;
    device.platform().call<&concord_comm_table::init>(device.index(), world, rank, id.data(),
                                                      static_cast<int64_t>(id.size()), &config, &comm);
    return comm;
  }
  static bool supports(const Platform& platform, CommOp operation, DType dtype, concord_reduce_op reduce) {
    int32_t supported = 0;
    platform.call<&concord_comm_table::supports>(abi(operation), abi(dtype), reduce, &supported);
    return supported != 0;
  }

  int32_t size_;
  int32_t rank_;
};

}  // namespace concord
