#include "backends/shm/channels.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "platform/sdk/dtypes.hpp"

namespace concord::shm {
namespace {

constexpr uint64_t kUnit = 16;  // everything in a ring begins at a multiple of it
constexpr int64_t kPieceBytes = 64 << 10;
constexpr uint32_t kTransferMagic = 0x4d534721;

struct Header {
  uint32_t magic;
  concord_dtype dtype;
  int64_t count;
};
static_assert(sizeof(Header) == kUnit);

uint64_t round_up(uint64_t value) { return (value + kUnit - 1) / kUnit * kUnit; }

int64_t payload_bytes(const concord_p2p_item& item) { return item.count * sdk::dtype_size(item.dtype); }

}  // namespace

// Something can move in one of the lanes.
class Channels::News final : public Awaited {
 public:
  explicit News(const Channels& channels) : Awaited(kAnyNews), channels_(channels) {}

  bool ready() override {
    for (const Lane& lane : channels_.lanes_) {
      if (!lane.done() && channels_.space(lane) > 0) return true;
    }
    return false;
  }
  bool awaits(int32_t rank) const override {
    const auto& lanes = channels_.lanes_;
    return std::any_of(lanes.begin(), lanes.end(), [&](const Lane& lane) { return !lane.done() && lane.peer == rank; });
  }

 private:
  const Channels& channels_;
};

Channels::Channels(Team& team)
    : team_(team),
      capacity_(static_cast<uint64_t>(team.segment().geometry().channel_bytes)),
      outgoing_(static_cast<size_t>(team.world())),
      incoming_(static_cast<size_t>(team.world())) {}

void Channels::run(std::span<const concord_p2p_item> items, const std::function<void()>& meanwhile) {
  sort_into_lanes(items);
  copy_to_self(items);
  while (true) {
    bool moved = false;
    bool open = false;
    for (Lane& lane : lanes_) {
      if (lane.done()) continue;
      moved |= advance(lane);
      open |= !lane.done();
    }
    if (!open) return;
    if (moved) continue;
    News news(*this);
    if (meanwhile == nullptr) {
      team_.wait(news);
    } else {
      team_.wait(news, meanwhile);
    }
  }
}

void Channels::sort_into_lanes(std::span<const concord_p2p_item> items) {
  order_.clear();
  lanes_.clear();
  for (const concord_p2p_item& item : items) {
    if (item.peer != team_.rank()) order_.push_back(&item);
  }
  // The address as the last key keeps the items of a lane in order.
  std::sort(order_.begin(), order_.end(),
            [](Item a, Item b) { return std::tie(a->kind, a->peer, a) < std::tie(b->kind, b->peer, b); });
  for (size_t i = 0; i < order_.size(); ++i) {
    const bool sends = order_[i]->kind == CONCORD_P2P_SEND;
    if (lanes_.empty() || lanes_.back().peer != order_[i]->peer || lanes_.back().sends != sends) {
      lanes_.push_back({order_[i]->peer, sends, i, i, false, 0});
    }
    ++lanes_.back().end;
  }
}

// The n-th send of the batch to oneself meets the n-th receive from oneself; their numbers are equal.
void Channels::copy_to_self(std::span<const concord_p2p_item> items) const {
  auto receive = items.begin();
  for (const concord_p2p_item& send : items) {
    if (send.peer != team_.rank() || send.kind != CONCORD_P2P_SEND) continue;
    receive = std::find_if(receive, items.end(), [&](const concord_p2p_item& item) {
      return item.peer == team_.rank() && item.kind == CONCORD_P2P_RECV;
    });
    if (receive->count != send.count || receive->dtype != send.dtype) {
      sdk::invalid(sdk::text("rank %d sends %s x %lld to itself and receives %s x %lld", team_.rank(),
                             sdk::dtype_name(send.dtype), static_cast<long long>(send.count),
                             sdk::dtype_name(receive->dtype), static_cast<long long>(receive->count)));
    }
    if (send.count > 0) std::memmove(receive->buffer, send.buffer, static_cast<size_t>(payload_bytes(send)));
    ++receive;
  }
}

uint64_t Channels::space(const Lane& lane) const {
  const auto peer = static_cast<size_t>(lane.peer);
  uint64_t filled = 0;
  if (lane.sends) {
    filled = outgoing_[peer].position - team_.segment().channel(team_.rank(), lane.peer).taken.load();
  } else {
    filled = team_.segment().channel(lane.peer, team_.rank()).written.load() - incoming_[peer].position;
  }
  if (filled > capacity_ || filled % kUnit != 0) {
    team_.fail(
        CONCORD_STATUS_INTERNAL,
        sdk::text("communicator '%s': the channel between ranks %d and %d is corrupt (%llu of %llu bytes in use)",
                  team_.name().c_str(), team_.number(team_.rank()), team_.number(lane.peer),
                  static_cast<unsigned long long>(filled), static_cast<unsigned long long>(capacity_)));
  }
  return lane.sends ? capacity_ - filled : filled;
}

// One piece at a time, so that the other lanes of the batch get their turn.
bool Channels::advance(Lane& lane) {
  const uint64_t bytes = space(lane);
  if (bytes == 0) return false;
  lane.sends ? send_some(lane, bytes) : receive_some(lane, bytes);
  team_.ring_for_news(lane.peer);
  return true;
}

void Channels::send_some(Lane& lane, uint64_t free) {
  const Segment& segment = team_.segment();
  End& end = outgoing_[static_cast<size_t>(lane.peer)];
  std::byte* ring = segment.ring(team_.rank(), lane.peer);
  const concord_p2p_item& item = *order_[lane.next];
  if (!lane.begun) {
    const Header header{kTransferMagic, item.dtype, item.count};
    std::memcpy(ring + end.position % capacity_, &header, sizeof header);
    end.position += sizeof header;
    free -= sizeof header;
    lane.begun = true;
  }
  const uint64_t place = end.position % capacity_;
  const auto room = static_cast<int64_t>(std::min(free, capacity_ - place));
  const int64_t piece = std::min({payload_bytes(item) - lane.moved, room, kPieceBytes});
  if (piece > 0)
    std::memcpy(ring + place, static_cast<const std::byte*>(item.buffer) + lane.moved, static_cast<size_t>(piece));
  pass(lane, end, piece);
  segment.channel(team_.rank(), lane.peer).written.store(end.position);
}

void Channels::receive_some(Lane& lane, uint64_t filled) {
  const Segment& segment = team_.segment();
  End& end = incoming_[static_cast<size_t>(lane.peer)];
  const std::byte* ring = segment.ring(lane.peer, team_.rank());
  const concord_p2p_item& item = *order_[lane.next];
  if (!lane.begun) {
    check_header(lane, ring + end.position % capacity_, end.messages);
    end.position += sizeof(Header);
    filled -= sizeof(Header);
    lane.begun = true;
  }
  const uint64_t place = end.position % capacity_;
  const auto ready = static_cast<int64_t>(std::min(filled, capacity_ - place));
  const int64_t piece = std::min({payload_bytes(item) - lane.moved, ready, kPieceBytes});
  if (piece > 0)
    std::memcpy(static_cast<std::byte*>(item.buffer) + lane.moved, ring + place, static_cast<size_t>(piece));
  pass(lane, end, piece);
  segment.channel(lane.peer, team_.rank()).taken.store(end.position);
}

void Channels::pass(Lane& lane, End& end, int64_t bytes) {
  lane.moved += bytes;
  end.position = round_up(end.position + static_cast<uint64_t>(bytes));
  if (lane.moved < payload_bytes(*order_[lane.next])) return;
  ++end.messages;
  ++lane.next;
  lane.begun = false;
  lane.moved = 0;
}

void Channels::check_header(const Lane& lane, const std::byte* header, int64_t number) const {
  Header given{};
  std::memcpy(&given, header, sizeof given);
  const concord_p2p_item& item = *order_[lane.next];
  if (given.magic == kTransferMagic && given.dtype == item.dtype && given.count == item.count) return;
  if (given.magic != kTransferMagic) {
    team_.fail(CONCORD_STATUS_INTERNAL,
               sdk::text("communicator '%s': a message from rank %d to rank %d has no header", team_.name().c_str(),
                         team_.number(lane.peer), team_.number(team_.rank())));
  }
  team_.fail(CONCORD_STATUS_INVALID_ARGUMENT,
             sdk::text("communicator '%s': rank %d sent %s x %lld to rank %d, which receives %s x %lld there (message "
                       "number %lld between them)",
                       team_.name().c_str(), team_.number(lane.peer), sdk::dtype_name(given.dtype),
                       static_cast<long long>(given.count), team_.number(team_.rank()), sdk::dtype_name(item.dtype),
                       static_cast<long long>(item.count), static_cast<long long>(number + 1)));
}

}  // namespace concord::shm
