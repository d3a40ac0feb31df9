#include "core/mesh/parallel_context.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/job_board.h"
#include "core/torch/device.h"
#include "platform/bridge/bridge.h"

namespace concord {
namespace {

constexpr const char* kWorld = "world";
constexpr std::chrono::milliseconds kLauncherPeriod{50};

RankGroup all_ranks(int64_t world) {
  const RankGroup::Axis axis[] = {{world, 1}};
  return RankGroup(0, axis);
}

std::unique_ptr<JobBoard> launchers_board() {
  std::optional<JobBoard> board = JobBoard::of_launcher();
  return board ? std::make_unique<JobBoard>(std::move(*board)) : nullptr;
}

}  // namespace

ParallelContext::ParallelContext(Options options)
    : options_(std::move(options)),
      torch_device_(concord::torch_device(platform(), device().index())),
      coordinates_(layout().coordinates(rank())),
      rng_(options_.seeds),
      flight_(options_.store, {rank(), world(), options_.flight_folder}),
      board_(launchers_board()) {
  if (world() == 1) return;
  flight_.peers().await_process(0, options_.timeout);
  watchdog_.add(this, flight_.period(), [this] { flight_.answer(); });
  if (board_) watchdog_.add(this, kLauncherPeriod, [this] { answer_launcher(); });
}

// Replies to the launcher's request for this rank's position, which it sends if a rank is silent for too long
// (core/launch/watch/job_watch.h).
void ParallelContext::answer_launcher() noexcept {
  const auto index = static_cast<int>(options_.local_rank);
  if (index < 0 || index >= board_->ranks()) return;
  RankStatus& notes = board_->rank(index);
  const int64_t asked = notes.asked;
  if (asked == notes.answered) return;
  const std::string text = pack_positions(flight_.recorder().positions(), RankStatus::kTextBytes - 1);
  std::copy_n(text.c_str(), text.size() + 1, notes.answer.begin());
  notes.answered = asked;
}

ParallelContext::~ParallelContext() {
  watchdog_.remove(this);
  groups_.clear();
  for (const std::shared_ptr<Channel>& channel : channels_) channel->close();  // a Work may keep it alive longer
  flush_torch(device());
}

// Uses the first kind in the fixed order that has these ranks, so that all ranks use the same name whatever they use
// first.
std::string ParallelContext::channel_name(const RankGroup& ranks) const {
  if (ranks.size() == world()) return kWorld;
  for (const GroupKind kind : all_group_kinds()) {
    if (layout().group_of(kind, rank()) == ranks) return std::string(to_string(kind));
  }
  throw Error(CONCORD_STATUS_INTERNAL, fmt::format("no group kind has the ranks {}", ranks.to_string()));
}

std::shared_ptr<Channel> ParallelContext::channel_for(const RankGroup& ranks, const std::string& name) {
  if (ranks.size() == 1) return nullptr;
  for (const std::shared_ptr<Channel>& known : channels_) {
    if (known->ranks() == ranks && known->name() == name) return known;
  }
  // No stream of the device can wait for the bridge, so the host does.
  const bool crosses = platforms().crosses(ranks);
  const ChannelServices services{crosses ? bridge::bridge_device(device()) : device(),
                                 options_.store,
                                 flight_,
                                 watchdog_,
                                 options_.timeout,
                                 options_.check_calls,
                                 crosses || platform().capability(CONCORD_CAP_STREAM_HOST_IS_CURRENT) != 0,
                                 communication_time_};
  channels_.push_back(std::make_shared<Channel>(name, ranks, rank(), services));
  return channels_.back();
}

ProcessGroup& ParallelContext::make_group(const std::string& name, const RankGroup& ranks) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<ProcessGroup>& group = groups_[name];
  if (group == nullptr) {
    group = std::make_unique<ProcessGroup>(name, ranks, rank(), device(), channel_for(ranks, channel_name(ranks)));
  }
  return *group;
}

ProcessGroup& ParallelContext::group(GroupKind kind) {
  const std::optional<RankGroup> ranks = layout().group_of(kind, rank());
  if (!ranks) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
                fmt::format("rank {} is not in any {} group: its pipeline stage is {} of {}, and only the first and "
                            "the last hold embeddings; check has_group first",
                            rank(), to_string(kind), coordinates_.pp, layout().pp()));
  }
  return make_group(std::string(to_string(kind)), *ranks);
}

ProcessGroup& ParallelContext::world_group() { return make_group(kWorld, all_ranks(world())); }

bool ParallelContext::failed() {
  const std::lock_guard lock(mutex_);
  return std::any_of(channels_.begin(), channels_.end(), [](const auto& channel) { return channel->failed(); });
}

void ParallelContext::abandon() noexcept {
  flight_.peers().leave(Peers::LeaveReason::gives_up);
  stop_watching();
  flight_.peers().wait_for_culprit_exit();
}

void ParallelContext::create_groups(std::span<const GroupKind> kinds) {
  std::vector<GroupKind> wanted = kinds_to_create(kinds);
  if (wanted.empty()) return;
  if (platform().capability(CONCORD_CAP_COMM_SPLIT) != 0 && !platforms().is_mixed()) {
    split_from_world(wanted);
    return;
  }
  std::erase_if(wanted, [&](GroupKind kind) { return !has_group(kind); });
  for (const GroupKind kind : wanted) group(kind).channel()->begin_create();
  for (const GroupKind kind : wanted) group(kind).channel()->create();
}

// Returns the |kinds| that need their own communicator, in the fixed order. Rank 0 represents all ranks: it is in a
// group of every kind, and whether two kinds have the same ranks depends only on strides and counts, which all ranks
// share.
std::vector<GroupKind> ParallelContext::kinds_to_create(std::span<const GroupKind> kinds) const {
  std::vector<GroupKind> result;
  std::vector<RankGroup> seen;
  for (const GroupKind kind : all_group_kinds()) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) continue;
    const RankGroup ranks = layout().group_of(kind, 0).value();
    if (ranks.size() == 1 || std::find(seen.begin(), seen.end(), ranks) != seen.end()) continue;
    seen.push_back(ranks);
    result.push_back(kind);
  }
  return result;
}

void ParallelContext::split_from_world(std::span<const GroupKind> kinds) {
  Channel& parent = *world_group().channel();
  parent.create();
  for (const GroupKind kind : kinds) {
    if (layout().group_of(kind, 0)->size() == world()) continue;  // the parent itself
    const std::shared_ptr<Channel> channel = has_group(kind) ? group(kind).channel() : nullptr;
    std::vector<int32_t> members;
    if (channel != nullptr) {
      for (const int64_t rank : channel->ranks().members()) members.push_back(static_cast<int32_t>(rank));
    }
    auto communicator = parent.split(members, std::string(to_string(kind)));
    if (communicator) channel->adopt(std::move(*communicator));
  }
}

}  // namespace concord
