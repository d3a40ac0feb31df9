// A rank of a simulated HCCL communicator, on backends/shm.
//
// An operation is a task of its stream: it blocks the stream's thread until it is done on this rank. Operations of a
// communicator run one at a time, in the order in which the streams reach them. Reductions add in rank order, so every
// rank gets the same bits in every run.
//
// Like HCCL's, a send is done when its receive is. The engine's own sends are done earlier, so each transfer is
// followed by a word of receipt on a second engine. Two ranks that both send first wait for each other, until
// HCCL_EXEC_TIMEOUT.
//
// Threads: any. Shared by its handle and its queued operations.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/ascend/hccl_abi.h"
#include "backends/shm/communicator.h"

namespace concord::ascend::sim {

// A violation of a rule of HCCL, with HCCL's code.
class HcclError : public std::exception {
 public:
  HcclError(abi::HcclResult code, std::string text) : code_(code), text_(std::move(text)) {}
  abi::HcclResult code() const { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  abi::HcclResult code_;
  std::string text_;
};

[[noreturn]] void refuse(abi::HcclResult code, std::string sentence);

// Options from HcclCommConfig and the environment.
struct RankOptions {
  std::string name;
  uint64_t buffer_bytes = 0;  // size of a buffer; a rank allocates two on the device
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds execute_timeout{};
};

// Reads the options; |config| may be null. Throws HCCL_E_PARA for invalid values.
RankOptions read_options(const abi::HcclCommConfig* config);

// The bytes of this rank's buffers that an operation reads and writes, for the report of work.
struct Traffic {
  int64_t read = 0, written = 0;
};

class Rank : public std::enable_shared_from_this<Rank> {
 public:
  using Id = std::array<std::byte, shm::kUniqueIdBytes>;

  // Joins as |rank| of |world|. |members|: the ranks of a sub-communicator within the world's, compared between ranks;
  // empty for the world. Waits: for all ranks, at most the connect timeout.
  static std::shared_ptr<Rank> join(int32_t device, uint32_t world, uint32_t rank, const Id& id,
                                    const std::vector<uint32_t>& members, const RankOptions& options);
  // Releases the device's memory.
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  uint32_t rank() const { return static_cast<uint32_t>(engine_->rank()); }
  uint32_t size() const { return static_cast<uint32_t>(engine_->size()); }
  int32_t device() const { return device_; }
  const std::string& name() const { return options_.name; }
  bool is_world() const { return is_world_; }
  const Id& id() const { return id_; }
  const RankOptions& options() const { return options_; }

  // Queues |work| on |stream|, a stream of this device, under |name|. Throws on invalid arguments.
  void submit(const char* name, void* stream, const Traffic& traffic, std::function<void(shm::Engine& engine)> work);

  // Runs transfers to completion, including receipts. Call on the stream's thread.
  void transfer(std::span<const concord_p2p_item> items);

  // Returns HCCL_SUCCESS, or the first failure of an operation on any rank.
  abi::HcclResult failure() const;
  bool busy() const { return pending_.load() > 0; }
  void set_suspended(bool suspended) { suspended_.store(suspended); }

 private:
  Rank(int32_t device, const Id& id, bool is_world, const RankOptions& options)
      : device_(device), id_(id), is_world_(is_world), options_(options) {}
  void connect(uint32_t world, uint32_t rank);
  void compare_ranks(const std::vector<uint32_t>& members);
  int32_t run(const std::function<void(shm::Engine&)>& work);
  int32_t note_failure(abi::HcclResult code, const std::string& text);
  void stop();

  const int32_t device_;
  const Id id_;
  const bool is_world_;
  const RankOptions options_;
  bool charged_ = false;
  std::unique_ptr<shm::Engine> engine_;
  std::unique_ptr<shm::Engine> receipts_;
  std::atomic<int64_t> pending_{0};  // operations that are queued or run
  std::atomic<bool> suspended_{false};
  std::atomic<abi::HcclResult> failure_{abi::kHcclSuccess};
  std::mutex turn_;  // one operation at a time
};

}  // namespace concord::ascend::sim
