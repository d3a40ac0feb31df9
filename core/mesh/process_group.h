// A named group of ranks with collective operations on tensors.
//
// Every operation is asynchronous and returns a Work. It starts when the work queued on the calling thread's current
// stream is done, and runs in parallel with later work; Work::wait() makes the current stream wait for it, not the
// host. If libtorch computes on the calling thread itself (the cpu), wait() blocks that thread, which then is the
// current stream. Tensors are kept alive until the operation is done, even if it is never waited for, and must not be
// written (outputs: nor read) before wait().
//
// All ranks of a group make the same calls in the same order; CONCORD_LAYERS=validate checks that. Tensors are
// contiguous and on the context's device; a group of one rank copies if necessary. Ranks in arguments are ranks within
// the group. Types that the platform does not know, such as FP8, can be transferred but not reduced. Errors:
// INVALID_ARGUMENT at the call, with the group, the sizes and the type. PEER_LOST, TIMEOUT and similar are thrown by
// synchronize(), by wait() on the cpu, and by every later call, with the lagging ranks. Threads: any thread; calls from
// several threads are serialised, and their order must be the same on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/mesh/rank_layout.h"
#include "platform/cpp/stream.hpp"
#include "platform/cpp/types.hpp"

namespace at {
class Tensor;
}

namespace concord {

class Channel;
class PendingCall;
struct CallSignature;
struct ChannelCall;

// An operation in flight, or several that were issued as one. A value that may be dropped at any time.
class Work {
 public:
  Work() = default;  // nothing to wait for

  // Makes later work of the current stream start after the operation.
  void wait() const;
  // Waits: on the host, until the operation is done. Throws its error.
  void synchronize() const;
  // Never waits. Throws its error.
  bool is_completed() const;

 private:
  friend class ProcessGroup;
  struct Part {
    std::shared_ptr<Channel> channel;
    std::shared_ptr<PendingCall> call;
  };
  std::vector<Part> parts_;
};

// One transfer of a batch: send(tensor, 1), recv(tensor, 0). Keeps its tensor alive.
class Transfer {
 public:
  Transfer(const Transfer&);
  Transfer(Transfer&&) noexcept;
  ~Transfer();

 private:
  friend class ProcessGroup;
  friend Transfer send(const at::Tensor& tensor, int64_t to);
  friend Transfer recv(const at::Tensor& tensor, int64_t from);
  Transfer(bool sends, const at::Tensor& tensor, int64_t peer);
  bool sends_;
  int64_t peer_;
  std::unique_ptr<at::Tensor> tensor_;
};
Transfer send(const at::Tensor& tensor, int64_t to);
Transfer recv(const at::Tensor& tensor, int64_t from);

class ProcessGroup {
 public:
  // |channel| is null for a group of one.
  ProcessGroup(std::string name, RankGroup ranks, int64_t rank, Device device, std::shared_ptr<Channel> channel);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const std::string& name() const { return name_; }
  const RankGroup& ranks() const { return ranks_; }
  int64_t size() const { return ranks_.size(); }
  int64_t rank() const { return index_; }  // rank within the group
  // Returns the communicator shared with other groups of the same ranks; null for a group of one.
  const std::shared_ptr<Channel>& channel() const { return channel_; }

  // Both operate in place, on every rank.
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, int64_t root);
  // |output| has size() times the elements of |input|: the concatenated inputs of all ranks.
  [[nodiscard]] Work all_gather(const at::Tensor& output, const at::Tensor& input);
  // |input| has size() times the elements of |output|, which receives this rank's part of the reduction.
  [[nodiscard]] Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum);
  // Part r of |input| goes to rank r, whose part for this rank becomes part r of |output|.
  [[nodiscard]] Work all_to_all(const at::Tensor& output, const at::Tensor& input);
  // Like all_to_all(), with parts of different sizes in rows (of dimension 0): send_rows[r] to rank r, recv_rows[r]
  // from it.
  [[nodiscard]] Work all_to_all_v(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> recv_rows,
                                  std::span<const int64_t> send_rows);
  [[nodiscard]] Work barrier();
  // Issues all transfers as one operation, so that no order of sends and receives on two ranks can deadlock.
  [[nodiscard]] Work batch_p2p(std::span<const Transfer> transfers);

  // Issue several operations of one kind as one. Small tensors are sent in one buffer, copied on the communication
  // stream; large ones are sent separately, because copying them would cost more than it saves. Return one Work for
  // all.
  [[nodiscard]] Work all_reduce_coalesced(std::span<const at::Tensor> tensors, ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work all_gather_coalesced(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs);
  [[nodiscard]] Work reduce_scatter_coalesced(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs,
                                              ReduceOp op = ReduceOp::kSum);

 private:
  struct Operand;
  struct Flat;

  Operand operand(const char* op, const at::Tensor& tensor, bool moves_only) const;
  [[noreturn]] void refuse(const char* op, const std::string& why) const;
  void check_root(const char* op, int64_t root) const;
  void check_pairs(const char* op, std::span<const at::Tensor> large, std::span<const at::Tensor> small) const;
  template <class Issue>
  Work submit(CallSignature signature, std::vector<at::Tensor> keep, Issue issue);
  Work submit(ChannelCall call);
  Work paired_coalesced(CommOp op, std::span<const at::Tensor> large, std::span<const at::Tensor> small,
                        ReduceOp reduce);

  std::string name_;
  RankGroup ranks_;
  int64_t index_;
  Device device_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace concord
