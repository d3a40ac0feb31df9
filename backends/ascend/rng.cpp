// Compiled as platform/sdk/philox_fill.hpp asks (see CMakeLists.txt).
#include "backends/ascend/rng.h"

#include "platform/sdk/checks.hpp"
#include "platform/sdk/philox_fill.hpp"

namespace concord::ascend {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr size_t kKept = 4;  // pieces a device: one being computed, the others in flight

}  // namespace

Rng::Piece Rng::take(int32_t device) {
  {
    const std::lock_guard lock(mutex_);
    std::deque<Piece>& own = pieces_[device];
    if (!own.empty() && events_.query(own.front().copied) == 1) {
      const Piece piece = own.front();
      own.pop_front();
      return piece;
    }
  }
  Piece piece{memory_.allocate_host(kPieceBytes), nullptr};
  piece.copied = events_.create(device, 0);
  return piece;
}

void Rng::give(int32_t device, Piece piece) {
  const std::lock_guard lock(mutex_);
  pieces_[device].push_back(piece);
}

void Rng::trim(int32_t device) {
  const std::lock_guard lock(mutex_);
  std::deque<Piece>& own = pieces_[device];
  while (own.size() > kKept && events_.query(own.front().copied) == 1) {
    memory_.release_host(own.front().data);
    events_.destroy(own.front().copied);
    own.pop_front();
  }
}

void Rng::fill(const concord_rng_request* request, concord_stream stream) {
  const concord_rng_request known = sdk::read_rng_request(request);
  const int32_t device = devices_.device_of(stream);
  const DeviceGuard here(devices_, device);
  const int64_t size = sdk::dtype_size(known.dtype);
  const int64_t step = kPieceBytes / size;
  for (int64_t begin = 0; begin < known.count; begin += step) {
    const int64_t count = std::min(step, known.count - begin);
    const Piece piece = take(device);
    try {
      sdk::fill_random(known, begin, begin + count, piece.data, sdk::fill_threads(count));
      memory_.copy_on_stream(static_cast<char*>(known.destination) + begin * size, piece.data, count * size,
                             CONCORD_COPY_HOST_TO_DEVICE, stream);
      events_.record(piece.copied, stream);
    } catch (...) {
      give(device, piece);
      throw;
    }
    give(device, piece);
  }
  trim(device);
}

}  // namespace concord::ascend
