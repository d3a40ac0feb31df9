#include "platform/bridge/staged_comm.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "platform/bridge/host_work.h"
#include "platform/loader/text.h"

namespace concord::bridge {
namespace {

constexpr int64_t kMinStaging = int64_t{64} << 10;
constexpr int64_t kUnknownSize = -1;

// Pieces of transfers have the address of their buffer as offset; their base is null.
char* address(const void* base, int64_t offset) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(offset));
}

}  // namespace

HostBuffer StagingPool::take(int64_t bytes) {
  const auto wanted = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kMinStaging))));
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(spare_, [&](const HostBuffer& each) { return each.bytes() == wanted; });
  if (found == spare_.end()) return {platform_, wanted};
  HostBuffer taken = std::move(*found);
  spare_.erase(found);
  return taken;
}

void StagingPool::give_back(HostBuffer buffer) {
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(buffer));
}

// The steps of an operation. Chunks alternate between two staging buffers per side.
class StagedComm::Operation {
 public:
  Operation(StagedComm& comm, const void* send, void* recv, std::vector<Chunk> chunks)
      : comm_(comm), from_(send), to_(recv), chunks_(std::move(chunks)) {
    int64_t down = 0;
    int64_t up = 0;
    for (const Chunk& chunk : chunks_) {
      down = std::max(down, staged_bytes(chunk.down));
      up = std::max(up, staged_bytes(chunk.up));
    }
    for (size_t i = 0; i < std::min<size_t>(chunks_.size(), 2); ++i) {
      send_.push_back(comm.staging_.take(down));
      recv_.push_back(comm.staging_.take(up));
    }
  }
  ~Operation() {
    for (auto* side : {&send_, &recv_}) {
      for (HostBuffer& buffer : *side) comm_.staging_.give_back(std::move(buffer));
    }
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  const std::vector<Chunk>& chunks() const { return chunks_; }
  int64_t elements() const {
    return std::accumulate(chunks_.begin(), chunks_.end(), int64_t{0},
                           [](int64_t sum, const Chunk& chunk) { return sum + chunk.count; });
  }
  void* send(size_t chunk) const { return send_[chunk % 2].data(); }
  void* recv(size_t chunk) const { return recv_[chunk % 2].data(); }

  // Call when the chunks before |index| have been exchanged. Waits for the copy of its data, and until the result of
  // two chunks earlier has left the buffer that it will use.
  void before(size_t index) {
    step([&] {
      if (index == 0) copy_down(0);
      if (index + 1 < chunks_.size()) copy_down(index + 1);
      comm_.copied_down_[index % 2].synchronize();
      comm_.copied_up_[index % 2].synchronize();
    });
  }

  void after(size_t index) {
    step([&] {
      copy_up(index);
      if (index + 1 == chunks_.size()) comm_.up_.synchronize();
    });
  }

 private:
  template <class Body>
  void step(Body&& body) {
    try {
      if (comm_.error(nullptr) != CONCORD_STATUS_OK) return;
      comm_.device_.make_current();
      body();
    } catch (const Error& error) {
      comm_.fail(error);
    }
  }

  void copy_down(size_t index) {
    for (const Piece& piece : chunks_[index].down) {
      copy(comm_.down_, address(send(index), piece.staged), address(from_, piece.offset), piece.bytes,
           CopyKind::kDeviceToHost);
    }
    comm_.copied_down_[index % 2].record(comm_.down_);
  }

  void copy_up(size_t index) {
    for (const Piece& piece : chunks_[index].up) {
      copy(comm_.up_, address(to_, piece.offset), address(recv(index), piece.staged), piece.bytes,
           CopyKind::kHostToDevice);
    }
    comm_.copied_up_[index % 2].record(comm_.up_);
  }

  StagedComm& comm_;
  const void* from_;
  void* to_;
  const std::vector<Chunk> chunks_;
  std::vector<HostBuffer> send_;
  std::vector<HostBuffer> recv_;
};

StagedComm::StagedComm(Device device, Communicator comm)
    : device_(device),
      comm_(std::move(comm)),
      staging_(device.platform()),
      sizes_(static_cast<size_t>(comm_.size()) + 1),
      down_(device),
      up_(device),
      copied_down_{Event(device), Event(device)},
      copied_up_{Event(device), Event(device)},
      last_(comm_.device()) {}

void StagedComm::submit(const Stream& queue, const void* send, void* recv, std::vector<Chunk> chunks,
                        const HostCall& call) {
  std::string detail;
  if (const concord_status status = error(&detail); status != CONCORD_STATUS_OK) throw Error(status, detail);
  last_.make_wait(queue);  // an operation on another queue uses the same streams and events
  const auto operation = std::make_shared<Operation>(*this, send, recv, std::move(chunks));
  std::optional<Error> rejected;
  try {
    if (operation->chunks().size() > 1) exchange_sizes(queue, operation->elements());
    for (size_t i = 0; i < operation->chunks().size(); ++i) {
      launch(queue, [operation, i] { operation->before(i); });
      call(queue, operation->chunks()[i].count, operation->send(i), operation->recv(i));
      launch(queue, [operation, i] { operation->after(i); });
    }
  } catch (const Error& error) {
    rejected = error;
  }
  last_.record(queue);
  if (rejected) throw *rejected;
}

// The first rank that sees a difference fails; the others get INVALID_ARGUMENT, too, or ABORTED from it.
void StagedComm::exchange_sizes(const Stream& queue, int64_t size) {
  launch(queue, [this, size] {
    std::ranges::fill(sizes_, kUnknownSize);
    sizes_.back() = size;
  });
  comm_.all_gather(queue, &sizes_.back(), sizes_.data(), 1, DType::kI64);
  launch(queue, [this, size] {
    const auto other = std::ranges::find_if(sizes_, [&](int64_t each) { return each != size && each != kUnknownSize; });
    if (other == sizes_.end()) return;
    fail({CONCORD_STATUS_INVALID_ARGUMENT, loader::cat("the ranks' calls differ: rank ", rank(), " calls with ", size,
                                                       " elements, rank ", other - sizes_.begin(), " with ", *other)});
  });
}

concord_status StagedComm::error(std::string* out_detail) const {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      if (out_detail != nullptr) *out_detail = failure_->what();
      return failure_->status();
    }
  }
  const std::optional<Communicator::Failure> failure = comm_.error();
  if (!failure) return CONCORD_STATUS_OK;
  if (out_detail != nullptr) *out_detail = failure->detail;
  return failure->status;
}

void StagedComm::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  comm_.platform().call_or_log<&concord_comm_table::abort>(comm_.native());
}

}  // namespace concord::bridge
