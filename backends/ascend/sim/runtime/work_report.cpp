#include "backends/ascend/sim/runtime/work_report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "backends/ascend/sim/runtime/settings.h"
#include "platform/sdk/failure.hpp"

namespace concord::ascend::sim {

using sdk::text;

namespace {

// Public figures of a 910B: HBM2e at 1.6 TB/s; a launch that is not hidden behind the one before it takes some
// microseconds. Products of matrices are counted by their bytes too, so times are lower bounds.
constexpr double kBytesPerMicrosecond = 1.6e6, kLaunchMicroseconds = 5;
constexpr const char* kDevice = "910B: 1.6 TB/s, 5 us per launch";

WorkReport::Entry& operator+=(WorkReport::Entry& sum, const WorkReport::Entry& more) {
  sum.launches += more.launches;
  sum.read += more.read;
  sum.written += more.written;
  sum.microseconds += more.microseconds;
  return sum;
}

WorkReport::Entry total_of(const std::map<std::string, WorkReport::Entry>& entries) {
  WorkReport::Entry total;
  for (const auto& [name, entry] : entries) total += entry;
  return total;
}

std::string to_json(const WorkReport::Entry& entry) {
  return text("{\"launches\": %lld, \"bytes_read\": %lld, \"bytes_written\": %lld, \"microseconds\": %.1f}",
              static_cast<long long>(entry.launches), static_cast<long long>(entry.read),
              static_cast<long long>(entry.written), entry.microseconds);
}

std::string row_of(const std::string& name, const WorkReport::Entry& entry) {
  return text("  %-40s %9lld %12.1f %12.1f %12.1f\n", name.c_str(), static_cast<long long>(entry.launches),
              static_cast<double>(entry.read) / 1e6, static_cast<double>(entry.written) / 1e6,
              entry.microseconds / 1e3);
}

// Ranks other than 0 append their rank to the name.
void write_report() {
  const std::string& file = settings().report;
  if (file == "-") {
    std::fputs(WorkReport::instance().table().c_str(), stderr);
    return;
  }
  const char* const rank = std::getenv("RANK");
  const bool is_first = rank == nullptr || std::string(rank) == "0";
  std::ofstream(is_first ? file : file + "." + rank) << WorkReport::instance().json();
}

}  // namespace

WorkReport& WorkReport::instance() {
  static WorkReport& only = *[] {
    auto* const made = new WorkReport;  // never destroyed: streams count until the process ends
    if (!settings().report.empty()) std::atexit(write_report);
    return made;
  }();
  return only;
}

void WorkReport::count(const char* name, int64_t read, int64_t written) {
  const std::lock_guard lock(mutex_);
  entries_[name] += {1, read, written, 0};
}

WorkReport::Entry WorkReport::work_of(const char* name) const {
  const std::map<std::string, Entry> entries = with_times();
  if (name == nullptr) return total_of(entries);
  const auto found = entries.find(name);
  return found == entries.end() ? Entry{} : found->second;
}

std::map<std::string, WorkReport::Entry> WorkReport::with_times() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, Entry> entries = entries_;
  for (auto& [name, entry] : entries) {
    entry.microseconds = static_cast<double>(entry.launches) * kLaunchMicroseconds +
                         static_cast<double>(entry.read + entry.written) / kBytesPerMicrosecond;
  }
  return entries;
}

std::string WorkReport::json() const {
  const std::map<std::string, Entry> entries = with_times();
  std::string result = text("{\"label\": \"sim-npu\", \"device\": \"%s\",\n \"total\": %s,\n \"operators\": {", kDevice,
                            to_json(total_of(entries)).c_str());
  const char* separator = "\n";
  for (const auto& [name, entry] : entries) {
    result += std::exchange(separator, ",\n") + text("  \"%s\": %s", name.c_str(), to_json(entry).c_str());
  }
  return result + "}}\n";
}

std::string WorkReport::table() const {
  constexpr size_t kRows = 20;
  const std::map<std::string, Entry> entries = with_times();
  std::vector<std::pair<std::string, Entry>> rows(entries.begin(), entries.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.microseconds > b.second.microseconds; });
  std::string result = text("[sim-npu] work by count (%s)\n  %-40s %9s %12s %12s %12s\n", kDevice, "operator",
                            "launches", "MB read", "MB written", "ms");
  for (size_t i = 0; i < std::min(kRows, rows.size()); ++i) result += row_of(rows[i].first, rows[i].second);
  return result + row_of(text("total of %zu operators", rows.size()), total_of(entries));
}

}  // namespace concord::ascend::sim
