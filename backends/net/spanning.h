// A communicator whose ranks are on several hosts. See communicator.h; created by net::connect.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/net/chain.h"
#include "backends/net/hosts.h"
#include "backends/net/message_queue.h"
#include "backends/shm/communicator.h"

namespace concord::net {

class Spanning final : public shm::Engine {
 public:
  Spanning(int32_t rank, HostMap map, std::unique_ptr<shm::Communicator> local, std::unique_ptr<Port> port,
           std::unique_ptr<Line> line, const shm::Options& options);
  ~Spanning() override;
  Spanning(const Spanning&) = delete;
  Spanning& operator=(const Spanning&) = delete;

  std::unique_ptr<shm::Engine> split(std::span<const int32_t> ranks, const shm::Options& options) override;

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return static_cast<int32_t>(map_.host.size()); }
  const std::string& name() const override { return options_.name; }

  void all_reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) override;
  void reduce(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op,
              int32_t root) override;
  void broadcast(const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root) override;
  void all_gather(const void* send, void* recv, int64_t count, concord_dtype dtype) override;
  void reduce_scatter(const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op op) override;
  void all_to_all(const void* send, void* recv, int64_t count, concord_dtype dtype) override;
  void all_to_all_v(const void* send, const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                    const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype) override;
  void barrier() override;
  void batch_p2p(std::span<const concord_p2p_item> items) override;

  void abort() noexcept override;
  concord_status error(std::string* out_detail) const override { return local_->error(out_detail); }

 private:
  // Runs |work| as the operation |call|; a failure is reported to all ranks.
  template <class Work>
  void run(const shm::Call& call, Lane lane, Work&& work);

  bool leads() const { return place_ == 0; }
  void reduce_pieces(std::vector<Piece> pieces, concord_dtype dtype, concord_reduce_op op);
  void reduce_at_leaders(const Piece& piece, concord_dtype dtype, concord_reduce_op op);
  void greet_leaders();
  void gather(const std::byte* send, std::byte* recv, int64_t bytes);
  void gather_one_by_one(const std::byte* send, std::byte* recv, int64_t bytes);
  void exchange(const std::byte* send, const int64_t* send_counts, const int64_t* send_offsets, std::byte* recv,
                const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype);
  void check_transfer(const Message& message, const concord_p2p_item& item);

  const int32_t rank_;
  const HostMap map_;
  const int32_t host_;         // of this rank
  const int32_t place_;        // index of this rank on its host
  const int32_t local_ranks_;  // ranks on this host
  const shm::Options options_;
  const std::unique_ptr<shm::Communicator> local_;
  MessageQueue queue_;
  std::vector<std::byte> scratch_;  // kept between calls: allocating it costs more than the sums
};

}  // namespace concord::net
