#include "platform/conformance/processes/runner.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <regex>

#include "platform/conformance/context.h"

namespace concord::conformance {
namespace {

class Runner {
 public:
  explicit Runner(const Launch& launch) : launch_(launch) {}

  // Throws std::runtime_error if no process with the plugin starts.
  const PluginInfo& open_plugin(int world) {
    shared_ = std::make_unique<Gang>(launch_, world);
    plugin_ = shared_->plugin();
    return plugin_;
  }

  TestResult run(const Planned& planned) {
    const Test& test = *planned.test;
    if (const auto missing = missing_capability(test)) return *missing;
    try {
      switch (test.processes) {
        case Processes::kFresh: return run_fresh(planned);
        case Processes::kEnd: return end_shared(planned.world);
        default: return shared(planned.world).run(test.table + "." + test.name, test.deadline_s);
      }
    } catch (const std::exception& error) {
      TestResult failed;
      failed.status = Status::kFail;
      failed.reason = text("the processes of the test did not start: %s", error.what());
      return failed;
    }
  }

 private:
  std::optional<TestResult> missing_capability(const Test& test) const {
    for (const std::string& name : test.needs) {
      if (plugin_.capability(name) != 0) continue;
      TestResult skipped;
      skipped.status = Status::kSkip;
      skipped.reason = "needs " + name + ": " + plugin_.note(name);
      skipped.unsupported = true;
      return skipped;
    }
    return std::nullopt;
  }

  Gang& shared(int world) {
    if (shared_ == nullptr || !shared_->usable() || shared_->world() != world) {
      shared_.reset();  // the old one ends before the new one starts: they may share a device
      shared_ = std::make_unique<Gang>(launch_, world);
    }
    return *shared_;
  }

  TestResult run_fresh(const Planned& planned) {
    Gang gang(launch_, planned.world);
    TestResult result = gang.run(planned.test->table + "." + planned.test->name, planned.test->deadline_s);
    if (result.status != Status::kPass) return result;
    const TestResult end = gang.finish();
    if (end.status == Status::kPass) return result;
    result.status = Status::kFail;
    result.reason = "the test passed, but afterwards " + end.reason;
    return result;
  }

  TestResult end_shared(int world) {
    const TestResult result = shared(world).finish();
    shared_.reset();
    return result;
  }

  const Launch& launch_;
  PluginInfo plugin_;
  std::unique_ptr<Gang> shared_;
};

std::string expectations_path(const Options& options, const PluginInfo& plugin) {
  if (options.expectations == "none") return "";
  if (!options.expectations.empty()) return options.expectations;
  std::string beside = plugin.path;
  if (const size_t dot = beside.rfind(".so"); dot != std::string::npos) beside.erase(dot);
  beside += ".expectations.json";
  return access(beside.c_str(), R_OK) == 0 ? beside : "";
}

std::vector<std::string> every_name(const Registry& registry, int largest_world) {
  std::vector<std::string> names;
  for (const int world : worlds_up_to(std::max(largest_world, kDefaultWorld))) {
    for (const Test& test : registry.tests()) {
      if (test.runs_on(world)) names.push_back(test.full_name(world));
    }
  }
  return names;
}

}  // namespace

std::vector<Planned> plan_run(const Registry& registry, const Options& options) {
  const std::regex filter(options.filter);
  std::vector<Planned> plan;
  for (const int world : worlds_up_to(options.largest_world())) {
    std::vector<Planned> last;
    for (const Test& test : registry.tests()) {
      if (!test.runs_on(world) || (options.quick && test.cost == Cost::kFull)) continue;
      Planned planned{&test, world, test.full_name(world)};
      if (!std::regex_search(planned.name, filter)) continue;
      (test.processes == Processes::kEnd ? last : plan).push_back(std::move(planned));
    }
    plan.insert(plan.end(), last.begin(), last.end());
  }
  return plan;
}

Report run_plan(const std::vector<Planned>& plan, const Options& options, const Launch& launch,
                const std::function<void(const Report::Row&)>& progress) {
  Report report;
  report.world = options.largest_world();
  report.quick = options.quick;
  if (plan.empty()) return report;
  Runner runner(launch);
  try {
    report.plugin = runner.open_plugin(plan.front().world);
  } catch (const std::exception& error) {
    report.refusal = error.what();
    return report;
  }
  const std::string path = expectations_path(options, report.plugin);
  const Expectations expectations = path.empty() ? Expectations() : Expectations::read(path);
  for (const Planned& planned : plan) {
    report.rows.push_back({planned.name, expectations.judge(planned.name, runner.run(planned))});
    progress(report.rows.back());
  }
  for (const std::string& sentence : expectations.unmatched(every_name(all_tests(), report.world))) {
    TestResult failed;
    failed.status = Status::kFail;
    failed.reason = sentence;
    report.rows.push_back({"kit.EveryExpectationMatchesATest", failed});
    progress(report.rows.back());
  }
  return report;
}

}  // namespace concord::conformance
