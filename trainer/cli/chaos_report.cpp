#include "trainer/cli/chaos_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

// In the order of their times.
std::vector<nlohmann::json> recovery_events(const std::string& log) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json event = json_or_discarded(line);
    if (!event.is_object() || !event.contains("event") || !event.contains("time")) {
      throw ConfigError(fmt::format("not a line of a recovery log: {}", quoted(line)));
    }
    events.push_back(std::move(event));
  }
  std::ranges::stable_sort(events, {}, [](const nlohmann::json& event) { return event["time"].get<double>(); });
  return events;
}

// From then on the job does nothing useful. After the other kinds it does, until they are noticed.
bool ends_work_at_once(FaultKind kind) {
  return kind == FaultKind::kill || kind == FaultKind::stop || kind == FaultKind::hang;
}

// Reads event after event. A fault is pending from the moment it happens until the job has recovered from it, or from
// another one with a new process in its place.
class RecoveryReader {
 public:
  explicit RecoveryReader(const std::vector<Fault>& faults) {
    for (const Fault& fault : faults) report_.outcomes.emplace_back().fault = fault;
  }

  void read(const nlohmann::json& event) {
    const std::string kind = event["event"];
    time_ = event["time"];
    last_ = std::max(last_, time_);
    if (kind == "fault") happened(event);
    if (kind == "hung" || kind == "failed" || kind == "wrong" || kind == "repaired") noticed(event);
    if (kind == "hung" || kind == "failed") stopped();
    if (kind == "failed") done_ = std::max(done_, event.value("step", int64_t{0}));
    if (kind == "repaired") repaired();
    if (kind == "training") trains(event);
  }

  ChaosReport report(int64_t steps) {
    report_.seconds = first_ < 0 ? 0 : last_ - first_;
    const auto new_steps = static_cast<double>(steps), all_steps = static_cast<double>(steps + repeated_);
    if (report_.seconds > 0) report_.effective = (1 - down_ / report_.seconds) * new_steps / all_steps;
    return report_;
  }

 private:
  struct Pending {
    FaultOutcome* outcome;
    double time;
    int attempt;
  };

  void happened(const nlohmann::json& event) {
    const auto number = event["fault"].get<size_t>();
    if (number >= report_.outcomes.size()) return;
    FaultOutcome& outcome = report_.outcomes[number];
    outcome.happened = true;
    outcome.fault.step = event.value("step", outcome.fault.step);
    if (outcome.fault.kind == FaultKind::delay) return;
    pending_.push_back({&outcome, time_, event.value("attempt", 0)});
  }

  // The newest fault of the rank that is named; if it has none, and nothing else has been noticed, the newest of all.
  void noticed(const nlohmann::json& event) {
    const int64_t rank = event.value("rank", int64_t{-1});
    const int attempt = event.value("attempt", -1);
    const auto newest = [&](const auto& may_be) {
      const auto found = std::ranges::find_if(pending_.rbegin(), pending_.rend(), [&](const Pending& each) {
        return !is_found(each) && may_be(each.outcome->fault);
      });
      return found == pending_.rend() ? nullptr : &*found;
    };
    const Pending* fault = newest([rank](const Fault& each) { return each.rank == rank; });
    if (fault == nullptr && std::ranges::none_of(pending_, is_found)) {
      fault = newest([](const Fault& each) { return each.kind != FaultKind::slow; });
    }
    const bool is_again = std::ranges::any_of(pending_, [&](const Pending& each) {
      return is_found(each) && each.outcome->named_rank == rank && each.attempt == attempt;
    });
    if (fault != nullptr && !is_again) find(*fault, rank);
  }

  static bool is_found(const Pending& each) { return each.outcome->detected_seconds.has_value(); }

  void find(const Pending& each, int64_t rank) {
    each.outcome->detected_seconds = time_ - each.time;
    if (rank >= 0) each.outcome->named_rank = rank;
  }

  void stopped() {
    if (down_since_ >= 0) return;
    down_since_ = time_;
    for (const Pending& each : pending_) {
      if (ends_work_at_once(each.outcome->fault.kind)) down_since_ = std::min(down_since_, each.time);
    }
  }

  void repaired() {
    ++report_.recoveries;
    for (const Pending& each : pending_) {
      if (!is_found(each)) continue;
      each.outcome->training_seconds = time_ - each.time;
      down_ += time_ - each.time;
    }
    std::erase_if(pending_, is_found);
  }

  void trains(const nlohmann::json& event) {
    if (first_ < 0) first_ = time_;
    if (down_since_ < 0) return;
    ++report_.recoveries;
    down_ += time_ - std::exchange(down_since_, -1);
    const int64_t lost = std::max<int64_t>(0, done_ - event.value("step", int64_t{0}) + 1);
    repeated_ += lost;
    const int attempt = event.value("attempt", 0);
    bool is_first = true;  // steps that are done again count once
    for (const Pending& each : pending_) {
      if (each.attempt >= attempt) continue;
      each.outcome->is_overtaken = !is_found(each);
      if (!is_found(each)) continue;
      each.outcome->training_seconds = time_ - each.time;
      if (std::exchange(is_first, false)) each.outcome->lost_steps = lost;
    }
    std::erase_if(pending_, [attempt](const Pending& each) { return each.attempt < attempt; });
  }

  ChaosReport report_;
  std::vector<Pending> pending_;
  double time_ = 0, first_ = -1, last_ = 0, down_since_ = -1, down_ = 0;
  int64_t done_ = 0, repeated_ = 0;
};

}  // namespace

ChaosReport read_recoveries(const std::vector<Fault>& faults, int64_t steps, const std::string& log) {
  RecoveryReader reader(faults);
  for (const nlohmann::json& event : recovery_events(log)) reader.read(event);
  return reader.report(steps);
}

}  // namespace concord
