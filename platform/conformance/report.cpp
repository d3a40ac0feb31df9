#include "platform/conformance/report.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "platform/conformance/context.h"

namespace concord::conformance {
namespace {

const char* status_name(Status status) {
  return status == Status::kPass ? "pass" : status == Status::kFail ? "fail" : "skip";
}

}  // namespace

int Report::count(Status status) const {
  return static_cast<int>(
      std::count_if(rows.begin(), rows.end(), [&](const Row& row) { return row.result.status == status; }));
}

std::string Report::verdict() const {
  if (count(Status::kFail) > 0) return "not conformant";
  return count(Status::kPass) > 0 ? "conformant" : "nothing ran";
}

Json Report::to_json() const {
  Json tests = Json::list();
  for (const Row& row : rows) {
    Json test = Json::object();
    test.set("name", row.name);
    test.set("status", status_name(row.result.status));
    test.set("reason", row.result.reason);
    test.set("seconds", row.result.seconds);
    if (row.result.share >= 0) test.set("error_bound_used", row.result.share);
    tests.append(test);
  }
  Json about = Json::object();
  about.set("name", plugin.name);
  about.set("version", plugin.version);
  about.set("path", plugin.path);
  Json counts = Json::object();
  counts.set("pass", count(Status::kPass));
  counts.set("fail", count(Status::kFail));
  counts.set("skip", count(Status::kSkip));
  Json document = Json::object();
  document.set("plugin", about);
  document.set("abi_version", std::to_string(plugin.abi_major) + "." + std::to_string(plugin.abi_minor));
  document.set("device", plugin.label);
  document.set("world", world);
  document.set("quick", quick);
  if (!refusal.empty()) document.set("error", refusal);
  document.set("tests", tests);
  document.set("counts", counts);
  document.set("verdict", verdict());
  return document;
}

std::string row_text(const Report::Row& row) {
  const std::string share = row.result.share >= 0 ? text("%3.0f %%", row.result.share * 100) : "";
  std::string line =
      text("%s %8.3f s  %5s  %s", status_name(row.result.status), row.result.seconds, share.c_str(), row.name.c_str());
  if (!row.result.reason.empty()) line += "\n       " + row.result.reason;
  return line + "\n";
}

std::string Report::closing() const {
  std::string result;
  std::map<std::string, int> skips;
  double share = -1;
  for (const Row& row : rows) {
    if (row.result.status == Status::kFail) result += row_text(row);
    if (row.result.status == Status::kSkip) ++skips[row.result.reason];
    if (row.result.status == Status::kPass) share = std::max(share, row.result.share);
  }
  if (!result.empty()) result = "\nFailed:\n" + result;
  if (!skips.empty()) result += "\nSkipped:\n";
  for (const auto& [reason, count] : skips) result += text("%5d  %s\n", count, reason.c_str());
  if (!refusal.empty()) return "\n" + refusal + "\n" + verdict() + "\n";
  result += text("\n%s %s, device %s, ABI %d.%d, up to %d ranks\n", plugin.name.c_str(), plugin.version.c_str(),
                 plugin.label.c_str(), plugin.abi_major, plugin.abi_minor, world);
  if (share >= 0) result += text("largest share of an error bound used: %.0f %%\n", share * 100);
  return result + text("%d passed, %d failed, %d skipped: %s\n", count(Status::kPass), count(Status::kFail),
                       count(Status::kSkip), verdict().c_str());
}

}  // namespace concord::conformance
