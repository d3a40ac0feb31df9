#include "backends/ascend/sim/runtime/work_report.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "backends/ascend/sim/runtime/device_figures.h"
#include "backends/ascend/sim/runtime/settings.h"
#include "platform/sdk/failure.hpp"

namespace concord::ascend::sim {

using sdk::text;

namespace {

WorkReport::Entry& operator+=(WorkReport::Entry& sum, const WorkReport::Entry& more) {
  sum.launches += more.launches;
  sum.read += more.read;
  sum.written += more.written;
  sum.product_flops += more.product_flops;
  sum.microseconds += more.microseconds;
  return sum;
}

WorkReport::Entry total_of(const std::map<std::string, WorkReport::Entry>& entries) {
  WorkReport::Entry total;
  for (const auto& [name, entry] : entries) total += entry;
  return total;
}

std::string device_text() {
  const DeviceFigures& device = device_figures();
  return text("%s: %.1f TB/s, %.0f TFLOP/s, %.0f us per launch", device.name.c_str(),
              device.memory_bytes_per_second / 1e12, device.cube_flops_per_second / 1e12, device.launch_seconds * 1e6);
}

std::string to_json(const WorkReport::Entry& entry) {
  return text(
      "{\"launches\": %lld, \"bytes_read\": %lld, \"bytes_written\": %lld, \"product_flops\": %.0f, "
      "\"microseconds\": %.1f}",
      static_cast<long long>(entry.launches), static_cast<long long>(entry.read), static_cast<long long>(entry.written),
      entry.product_flops, entry.microseconds);
}

std::string row_of(const std::string& name, const WorkReport::Entry& entry) {
  return text("  %-40s %9lld %12.1f %12.1f %12.2f %12.1f\n", name.c_str(), static_cast<long long>(entry.launches),
              static_cast<double>(entry.read) / 1e6, static_cast<double>(entry.written) / 1e6,
              entry.product_flops / 1e9, entry.microseconds / 1e3);
}

bool is_first_rank() {
  const char* const rank = std::getenv("RANK");
  return rank == nullptr || std::string(rank) == "0";
}

// Ranks other than 0 append their rank to the name.
std::string report_path() {
  return is_first_rank() ? settings().report : settings().report + "." + std::getenv("RANK");
}

[[noreturn]] void fail_to_write(const std::string& path) {
  const char* const reason = std::strerror(errno);
  std::fprintf(stderr, "[sim-npu] CONCORD_SIM_NPU_REPORT: cannot write %s: %s\n", path.c_str(), reason);
  std::fflush(stderr);
  std::_Exit(1);
}

void write_report() {
  if (settings().report.empty() || settings().report == "-") {
    std::fputs(WorkReport::instance().table().c_str(), stderr);
    return;
  }
  const std::string path = report_path();
  std::ofstream file(path);
  file << WorkReport::instance().json();
  if (!file.flush()) fail_to_write(path);
}

// Before hours of work whose report could not be written.
void check_report_path() {
  if (settings().report.empty() || settings().report == "-") return;
  const std::string path = report_path();
  if (!std::ofstream(path, std::ios::app)) fail_to_write(path);
}

}  // namespace

WorkReport& WorkReport::instance() {
  static WorkReport& only = *[] {
    auto* const made = new WorkReport;  // never destroyed: streams count until the process ends
    const bool is_of_run = settings().reports_run && settings().report.empty() && is_first_rank();
    device_figures();  // now, so that a wrong file ends the process before its work
    check_report_path();
    if (!settings().report.empty() || is_of_run) std::atexit(write_report);
    return made;
  }();
  return only;
}

void WorkReport::count(const char* name, int64_t read, int64_t written, double product_flops) {
  const std::lock_guard lock(mutex_);
  entries_[name] += {1, read, written, product_flops, 0};
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
    entry.microseconds = device_figures().microseconds(entry.launches, entry.read + entry.written, entry.product_flops);
  }
  return entries;
}

std::string WorkReport::json() const {
  const std::map<std::string, Entry> entries = with_times();
  std::string result = text("{\"label\": \"sim-npu\", \"device\": \"%s\",\n \"total\": %s,\n \"operators\": {",
                            device_text().c_str(), to_json(total_of(entries)).c_str());
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
  std::string result = text("[sim-npu] work by count (%s)\n  %-40s %9s %12s %12s %12s %12s\n", device_text().c_str(),
                            "operator", "launches", "MB read", "MB written", "GFLOP", "ms");
  for (size_t i = 0; i < std::min(kRows, rows.size()); ++i) result += row_of(rows[i].first, rows[i].second);
  return result + row_of(text("total of %zu operators", rows.size()), total_of(entries));
}

}  // namespace concord::ascend::sim
