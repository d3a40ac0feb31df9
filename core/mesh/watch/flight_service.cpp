#include "core/mesh/watch/flight_service.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/files/new_file.h"
#include "core/base/quoted.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPause{20};
constexpr size_t kPositionBytes = 16 * 1024;  // limit for the positions of one rank in the store
constexpr int64_t kAsked = 1024;              // members of a group to query: the first ones
constexpr size_t kMaxRequest = 2000;          // bytes
constexpr const char* kRequest = "flight/request";

std::string rank_key(int64_t rank) { return fmt::format("flight/rank/{}", rank); }

}  // namespace

std::string p2p_name(const std::string& communicator) { return communicator + ".p2p"; }

FlightService::FlightService(std::shared_ptr<Store> store, Options options)
    : store_(std::move(store)),
      options_(std::move(options)),
      peers_(store_, options_.rank),
      // At most about 2,000 requests per second reach the store.
      period_(std::max(Milliseconds(500), Milliseconds(options_.world / 2))) {}

void FlightService::publish() {
  store_->set(rank_key(options_.rank), pack_positions(recorder_.positions(), kPositionBytes));
}

void FlightService::answer() noexcept {
  try {
    if (answered_ || !store_->has(kRequest) || answered_.exchange(true)) return;
    publish();
    const std::string why =
        fmt::format("asked by another rank: {}", one_line(store_->get(kRequest, Milliseconds(1000)), kMaxRequest));
    const std::lock_guard lock(file_);
    if (!reported_) write_file(why);
  } catch (const std::exception&) {  // the store is gone; other users will report it
  }
}

std::string FlightService::write_file(const std::string& why) const {
  const std::string path =
      (std::filesystem::path(options_.folder) / fmt::format("concord-flight-{}.json", options_.rank)).string();
  // The folder may be shared: follows no link, opens no pipe.
  if (!create_fresh_file(path)) return fmt::format("the calls of this rank could not be written to {}", path);
  std::ofstream file(path, std::ios::trunc);
  file << recorder_.to_json(options_.rank, options_.world, why) << '\n';
  file.close();
  return file ? fmt::format("calls of this rank: {}", path)
              : fmt::format("the calls of this rank could not be written to {}", path);
}

std::vector<MemberPosition> FlightService::positions_of(const Group& group, const std::string& why) {
  answered_ = true;
  publish();
  store_->set(kRequest, fmt::format("rank {}, {}", options_.rank, why));
  const std::string recorded = group.p2p ? p2p_name(group.communicator) : group.communicator;
  const int64_t asked = std::min(group.ranks.size(), kAsked);
  std::vector<MemberPosition> members;
  const Clock::time_point deadline = Clock::now() + 2 * period_ + Milliseconds(500);
  for (int64_t i = 0; i < asked; ++i) {
    const std::string key = rank_key(group.ranks[i]);
    const auto may_come = [&] {
      return Clock::now() < deadline && peers_.state(group.ranks[i]) != Peers::State::ended;
    };
    while (!store_->has(key) && may_come()) std::this_thread::sleep_for(kPause);
    MemberPosition member{group.ranks[i], std::nullopt};
    if (!store_->has(key)) {
      member.trouble = peers_.trouble(group.ranks[i]);
    } else {
      member.position =
          GroupPosition{recorded, 0, 0, {}, {}, CallState::queued};  // replied, but has made no call of the group
      for (const GroupPosition& position : unpack_positions(store_->get(key, Milliseconds(1000)))) {
        if (position.group == recorded) member.position = position;
      }
    }
    members.push_back(std::move(member));
  }
  return members;
}

std::string FlightService::ask(const Group& group, const std::string& why) {
  const std::vector<MemberPosition> members = positions_of(group, why);
  const int64_t answered =
      std::count_if(members.begin(), members.end(), [](const auto& each) { return each.position.has_value(); });
  linger(group, answered);
  const std::string line =
      group.p2p ? describe_positions(group.name, members) : describe_lagging_ranks(group.name, members);
  const bool is_cause = group.p2p ? answered < static_cast<int64_t>(members.size()) : is_any_behind(members);
  return is_cause ? fmt::format("{}; {}", line, why) : fmt::format("{}; {}", why, line);
}

// Called if the store does not reply. If rank 0, which serves it, has failed, that is the cause; a killed process loses
// its connections shortly before it exits.
std::string FlightService::cannot_ask(const std::string& why, const std::string& error) {
  const Clock::time_point deadline = Clock::now() + period_;
  while (peers_.state(0) == Peers::State::running && Clock::now() < deadline) std::this_thread::sleep_for(kPause);
  const std::string trouble = peers_.trouble(0);
  return fmt::format("{}{}; the positions of the other ranks are not available: {}",
                     trouble.empty() ? "" : fmt::format("rank 0 does not answer ({}); ", trouble), why, error);
}

// A process usually exits after its report. Rank 0 serves the store, so it waits until the members that replied have
// received their answers too.
void FlightService::linger(const Group& group, int64_t answered) {
  const std::string key = fmt::format("flight/reported/{}/{}", group.communicator, group.ranks.first());
  int64_t reported = store_->add(key, 1);
  const Clock::time_point deadline = Clock::now() + 2 * period_;
  while (options_.rank == 0 && reported < answered && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    reported = store_->add(key, 0);
  }
}

std::string FlightService::report(const Group& group, const std::string& why) noexcept {
  std::string message;
  try {
    message = ask(group, why);
  } catch (const std::exception& error) {
    message = cannot_ask(why, error.what());
  }
  try {
    const std::lock_guard lock(file_);
    reported_ = true;
    return fmt::format("{}; {}", message, write_file(message));
  } catch (const std::exception&) {
    return message;
  }
}

}  // namespace concord
