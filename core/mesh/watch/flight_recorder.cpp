#include "core/mesh/watch/flight_recorder.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/parse_json.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr size_t kNamedRanks = 8;  // more ranks than this are counted, not listed

int64_t microseconds(FlightRecorder::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

std::optional<CallState> state_from(const std::string& name) {
  for (const CallState state : {CallState::queued, CallState::started, CallState::done, CallState::failed}) {
    if (name == to_string(state)) return state;
  }
  return std::nullopt;
}

}  // namespace

std::string CallSignature::to_string() const {
  if (!action.empty()) return action;
  if (op == CommOp::kBarrier) return "barrier";
  if (!detail.empty()) return fmt::format("{} {} ({})", concord::to_string(op), concord::to_string(dtype), detail);
  return fmt::format("{}{} {} x {}{}", concord::to_string(op),
                     reduce ? fmt::format(" {}", concord::to_string(*reduce)) : "", concord::to_string(dtype), count,
                     root ? fmt::format("{}{}", op == CommOp::kReduce ? " to " : " from ", *root) : "");
}

const char* to_string(CallState state) {
  switch (state) {
    case CallState::queued: return "queued";
    case CallState::started: return "started";
    case CallState::done: return "done";
    case CallState::failed: return "failed";
  }
  return "unknown";
}

size_t FlightRecorder::group_index(const std::string& name) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].name == name) return i;
  }
  groups_.push_back({name, 0, 0});
  return groups_.size() - 1;
}

uint64_t FlightRecorder::record(const std::string& communicator, int64_t sequence, CallSignature signature) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  const size_t index = group_index(communicator);
  groups_[index].made = sequence;
  const uint64_t ticket = next_ticket_++;
  ring_[ticket % kEntries] = {ticket, index, sequence, std::move(signature), CallState::queued, now, {}, {}};
  return ticket;
}

void FlightRecorder::mark(uint64_t ticket, CallState state) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  Entry& entry = ring_[ticket % kEntries];
  if (entry.ticket != ticket) return;
  entry.state = state;
  if (state == CallState::started) {
    entry.started = now;
    return;
  }
  entry.ended = now;
  if (state == CallState::done) groups_[entry.group].finished = std::max(groups_[entry.group].finished, entry.sequence);
}

std::vector<GroupPosition> FlightRecorder::positions() const {
  const std::lock_guard lock(mutex_);
  std::vector<GroupPosition> result;
  for (const Progress& group : groups_) {
    result.push_back({group.name, group.made, group.finished, {}, {}, CallState::queued});
  }
  for (const Entry& entry : ring_) {
    if (entry.ticket == 0) continue;
    GroupPosition& position = result[entry.group];
    if (entry.sequence == position.finished) position.finished_call = entry.signature.to_string();
    if (entry.sequence == position.finished + 1) {
      position.next_call = entry.signature.to_string();
      position.next_state = entry.state;
    }
  }
  return result;
}

std::string FlightRecorder::to_json(int64_t rank, int64_t world, const std::string& why) const {
  const std::lock_guard lock(mutex_);
  json calls = json::array();
  const uint64_t oldest = next_ticket_ > kEntries ? next_ticket_ - kEntries : 1;
  for (uint64_t ticket = oldest; ticket < next_ticket_; ++ticket) {
    const Entry& entry = ring_[ticket % kEntries];
    const std::string& communicator = groups_[entry.group].name;
    json call = {{"group", entry.signature.group.empty() ? communicator : entry.signature.group},
                 {"communicator", communicator},
                 {"sequence", entry.sequence},
                 {"op", to_string(entry.signature.op)},
                 {"dtype", to_string(entry.signature.dtype)},
                 {"count", entry.signature.count},
                 {"call", entry.signature.to_string()},
                 {"state", to_string(entry.state)},
                 {"queued_us", microseconds(entry.queued)}};
    if (entry.started != Clock::time_point()) call["started_us"] = microseconds(entry.started);
    if (entry.ended != Clock::time_point()) call["ended_us"] = microseconds(entry.ended);
    calls.push_back(std::move(call));
  }
  return json{{"rank", rank}, {"world_size", world}, {"why", why}, {"calls", std::move(calls)}}.dump(1);
}

std::string pack_positions(std::span<const GroupPosition> positions, size_t limit) {
  json list = json::array();
  size_t used = 2;
  for (const GroupPosition& position : positions) {
    json item = {{"group", position.group},         {"made", position.made},
                 {"finished", position.finished},   {"finished_call", position.finished_call},
                 {"next_call", position.next_call}, {"next_state", to_string(position.next_state)}};
    used += item.dump().size() + 1;
    if (used > limit) break;
    list.push_back(std::move(item));
  }
  return list.dump();
}

static std::string call_in(const json& item, const char* name) {
  constexpr size_t kMaxText = 200;
  return one_line(item.at(name).get<std::string>(), kMaxText);
}

std::vector<GroupPosition> unpack_positions(const std::string& text) {
  std::vector<GroupPosition> result;
  try {
    const json list = json_or_discarded(text);
    if (list.is_discarded()) return {};
    for (const json& item : list) {
      const auto state = state_from(item.at("next_state"));
      if (!state) return {};
      result.push_back({item.at("group"), item.at("made"), item.at("finished"), call_in(item, "finished_call"),
                        call_in(item, "next_call"), *state});
    }
  } catch (const json::exception&) {
    return {};
  }
  return result;
}

namespace {

std::string name_ranks(const std::vector<int64_t>& ranks) {
  const std::vector<int64_t> named(ranks.begin(),
                                   ranks.begin() + static_cast<int64_t>(std::min(ranks.size(), kNamedRanks)));
  const std::string rest = ranks.size() > kNamedRanks ? fmt::format(" and {} more", ranks.size() - kNamedRanks) : "";
  return fmt::format("{}{}{}", ranks.size() == 1 ? "rank " : "ranks ", fmt::join(named, ", "), rest);
}

const char* are(const std::vector<int64_t>& ranks) { return ranks.size() == 1 ? "is" : "are"; }

std::string with_call(int64_t sequence, const std::string& call) {
  return call.empty() ? fmt::format("call {}", sequence) : fmt::format("call {} ({})", sequence, call);
}

// Returns the position of a waiting rank: its first unfinished call.
std::string place_of(const GroupPosition& position) {
  if (position.made > position.finished)
    return fmt::format("at {}", with_call(position.finished + 1, position.next_call));
  return fmt::format("past {}", with_call(position.finished, position.finished_call));
}

// Returns the call a rank is at: its first unfinished one, or the latest if all are done.
int64_t at(const GroupPosition& position) { return position.finished + (position.made > position.finished ? 1 : 0); }

// The members of a group, sorted by progress.
struct Sorted {
  int64_t furthest = 0;                      // the call of the most advanced rank
  std::vector<int64_t> silent;               // did not reply
  std::vector<int64_t> late;                 // have not made the furthest call; only those at the lowest position
  std::vector<int64_t> queued;               // have made it, but their device has not started it
  const GroupPosition* last = nullptr;       // position of the late ranks
  const GroupPosition* reference = nullptr;  // position of a rank in none of these lists
  std::map<std::string, std::vector<int64_t>> calls;  // the furthest call, and the ranks that made it
};

void add_late(Sorted& sorted, int64_t rank, const GroupPosition& position) {
  if (sorted.last == nullptr || position.made < sorted.last->made) {
    sorted.last = &position;
    sorted.late.clear();
  }
  if (position.made == sorted.last->made) sorted.late.push_back(rank);
}

Sorted sort_members(std::span<const MemberPosition> members) {
  Sorted sorted;
  for (const MemberPosition& member : members) {
    if (member.position) sorted.furthest = std::max(sorted.furthest, at(*member.position));
  }
  for (const MemberPosition& member : members) {
    if (!member.position) {
      sorted.silent.push_back(member.rank);
      continue;
    }
    const GroupPosition& position = *member.position;
    if (position.made < sorted.furthest) {
      add_late(sorted, member.rank, position);
      continue;
    }
    const bool waits_there = position.finished + 1 == sorted.furthest;
    if (waits_there) sorted.calls[position.next_call].push_back(member.rank);
    if (waits_there && position.next_state == CallState::queued) {
      sorted.queued.push_back(member.rank);
    } else {
      sorted.reference = &position;
    }
  }
  if (sorted.reference == nullptr && !sorted.queued.empty()) {
    const auto first = std::find_if(members.begin(), members.end(),
                                    [&](const MemberPosition& member) { return member.rank == sorted.queued.front(); });
    sorted.reference = &*first->position;
  }
  return sorted;
}

std::string say_silent(const std::string& group, const std::vector<int64_t>& silent,
                       std::span<const MemberPosition> members) {
  std::vector<std::string> troubles;
  for (const MemberPosition& member : members) {
    if (!member.position && !member.trouble.empty() && troubles.size() < kNamedRanks)
      troubles.push_back(member.trouble);
  }
  return fmt::format("{} {} behind in group {}: no answer{}", name_ranks(silent), are(silent), group,
                     troubles.empty() ? "" : fmt::format(" ({})", fmt::join(troubles, ", ")));
}

std::string others_are(const Sorted& sorted) {
  return sorted.reference != nullptr ? fmt::format("; the others are {}", place_of(*sorted.reference)) : "";
}

std::string say_late(const std::string& group, const Sorted& sorted) {
  const GroupPosition& last = *sorted.last;
  std::string where = "made no call";
  if (last.made > last.finished)
    where = fmt::format("reached {}", with_call(last.finished + 1, last.next_call));
  else if (last.finished > 0)
    where = fmt::format("finished {}", with_call(last.finished, last.finished_call));
  const char* pronoun = sorted.late.size() == 1 ? "it " : "they ";
  return fmt::format("{} {} behind in group {}: {}{} and not call {}{}", name_ranks(sorted.late), are(sorted.late),
                     group, pronoun, where, last.made + 1, others_are(sorted));
}

std::string say_different(const std::string& group, const Sorted& sorted) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> calls(sorted.calls.begin(), sorted.calls.end());
  std::stable_sort(calls.begin(), calls.end(),
                   [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::string text = fmt::format("the calls of group {} differ at call {}: ", group, sorted.furthest);
  for (size_t i = 0; i < calls.size() && i < kNamedRanks; ++i) {
    text += fmt::format("{}{} made {}", i == 0 ? "" : ", ", name_ranks(calls[i].second), calls[i].first);
  }
  return text;
}

}  // namespace

std::string describe_lagging_ranks(const std::string& group, std::span<const MemberPosition> members) {
  const Sorted sorted = sort_members(members);
  if (!sorted.silent.empty()) return fmt::format("{}{}", say_silent(group, sorted.silent, members), others_are(sorted));
  if (!sorted.late.empty()) return say_late(group, sorted);
  if (sorted.calls.size() > 1) return say_different(group, sorted);
  const std::string call = with_call(sorted.furthest, sorted.calls.empty() ? "" : sorted.calls.begin()->first);
  if (!sorted.queued.empty() && sorted.queued.size() < members.size()) {
    return fmt::format("{} {} behind in group {}: {} is queued there after other work; the others have started it",
                       name_ranks(sorted.queued), are(sorted.queued), group, call);
  }
  return fmt::format("all ranks of group {} are at {}", group, call);
}

bool is_any_behind(std::span<const MemberPosition> members) {
  const Sorted sorted = sort_members(members);
  return !sorted.silent.empty() || !sorted.late.empty() ||
         (!sorted.queued.empty() && sorted.queued.size() < members.size());
}

std::string describe_positions(const std::string& group, std::span<const MemberPosition> members) {
  const std::vector<int64_t> silent = sort_members(members).silent;
  std::string text = silent.empty() ? "" : say_silent(group, silent, members) + "; ";
  text += fmt::format("transfers of group {}: ", group);
  for (size_t i = 0; i < members.size() && i < kNamedRanks; ++i) {
    const std::string place = members[i].position ? place_of(*members[i].position) : "does not answer";
    text += fmt::format("{}rank {} {}{}", i == 0 ? "" : ", ", members[i].rank, members[i].position ? "is " : "", place);
  }
  return text;
}

}  // namespace concord
