#include "trainer/health/faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <set>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr int64_t kPlaces = 1000;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

FaultKind parse_kind(std::string_view text) {
  for (const FaultKind kind : all_fault_kinds()) {
    if (to_string(kind) == text) return kind;
  }
  std::vector<std::string_view> names;
  for (const FaultKind kind : all_fault_kinds()) names.push_back(to_string(kind));
  throw ConfigError(fmt::format("{} is not a kind of fault; choose from {}", quoted(text), fmt::join(names, ", ")));
}

// Removes "<number><end>" from the front of |text|.
int64_t take_number(std::string_view* text, std::string_view whole, std::string_view end) {
  int64_t number = -1;
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  const std::string_view after(rest, text->data() + text->size());
  const bool has_end = end.empty() ? after.empty() : after.starts_with(end);
  if (error != std::errc() || number < 0 || !has_end) {
    throw ConfigError(
        fmt::format("{} is not a fault; it must be kind:rank@step+place or kind:rank@TIMEms+place, e.g. kill:2@37+400",
                    quoted(whole)));
  }
  *text = after.substr(end.size());
  return number;
}

// Its numbers are the same everywhere; those of distributions are not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }
  Fault fault(const std::vector<FaultKind>& kinds, int64_t world) {
    const FaultKind kind = kinds[static_cast<size_t>(below(static_cast<int64_t>(kinds.size())))];
    const int64_t rank = below(world);
    return {.kind = kind, .rank = rank, .step = 0, .where = below(kPlaces)};
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace

std::string_view to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill: return "kill";
    case FaultKind::stop: return "stop";
    case FaultKind::hang: return "hang";
    case FaultKind::delay: return "delay";
    case FaultKind::disconnect: return "disconnect";
    case FaultKind::bitflip: return "bitflip";
    case FaultKind::disk: return "disk";
    case FaultKind::nan: return "nan";
    case FaultKind::slow: return "slow";
  }
  return "?";
}

const std::vector<FaultKind>& all_fault_kinds() {
  static const std::vector<FaultKind> kinds = {FaultKind::kill,  FaultKind::stop,       FaultKind::hang,
                                               FaultKind::delay, FaultKind::disconnect, FaultKind::bitflip,
                                               FaultKind::disk,  FaultKind::nan,        FaultKind::slow};
  return kinds;
}

std::vector<Fault> plan_faults(uint64_t seed, int64_t count, const std::vector<FaultKind>& kinds, int64_t world,
                               int64_t steps) {
  if (count > steps - 1) {
    throw ConfigError(
        fmt::format("{} faults do not fit into {} steps, at most one per step and none in the first", count, steps));
  }
  Dice dice(seed);
  std::set<int64_t> chosen;
  while (static_cast<int64_t>(chosen.size()) < count) chosen.insert(2 + dice.below(steps - 1));
  std::vector<Fault> faults;
  for (const int64_t step : chosen) faults.emplace_back(dice.fault(kinds, world)).step = step;
  return faults;
}

std::vector<Fault> plan_faults_by_time(uint64_t seed, int64_t count, const std::vector<FaultKind>& kinds, int64_t world,
                                       int64_t period) {
  Dice dice(seed);
  std::vector<Fault> faults;
  for (int64_t i = 0; i < count; ++i) {
    faults.emplace_back(dice.fault(kinds, world)).milliseconds = i * period + dice.below(period);
  }
  return faults;
}

std::string to_string(const std::vector<Fault>& faults) {
  std::vector<std::string> texts;
  for (const Fault& fault : faults) {
    const std::string when = fault.step > 0 ? fmt::format("{}", fault.step) : fmt::format("{}ms", fault.milliseconds);
    texts.push_back(fmt::format("{}:{}@{}+{}", to_string(fault.kind), fault.rank, when, fault.where));
  }
  return fmt::format("{}", fmt::join(texts, ","));
}

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  if (text.empty()) return faults;
  for (const std::string_view whole : split(text, ',')) {
    std::string_view rest = whole;
    const size_t colon = std::min(rest.find(':'), rest.size());
    Fault fault{.kind = parse_kind(rest.substr(0, colon))};
    rest.remove_prefix(std::min(colon + 1, rest.size()));
    fault.rank = take_number(&rest, whole, "@");
    const bool is_by_time = rest.find("ms+") != rest.npos;
    (is_by_time ? fault.milliseconds : fault.step) = take_number(&rest, whole, is_by_time ? "ms+" : "+");
    if (is_by_time) fault.step = 0;
    fault.where = take_number(&rest, whole, "");
    faults.push_back(fault);
  }
  return faults;
}

std::vector<FaultKind> parse_fault_kinds(std::string_view text) {
  std::vector<FaultKind> kinds;
  for (const std::string_view name : split(text, ',')) kinds.push_back(parse_kind(name));
  return kinds;
}

}  // namespace concord
