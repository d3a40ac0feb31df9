#include "platform/conformance/conform.h"

#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "platform/conformance/context.h"
#include "platform/conformance/perf.h"
#include "platform/conformance/processes/runner.h"
#include "platform/conformance/processes/worker.h"

namespace concord::conformance {
namespace {

void print_list(const Options& options) {
  for (const Planned& planned : plan_run(all_tests(), options)) {
    std::string needs;
    for (const std::string& name : planned.test->needs) needs += " " + name;
    std::printf("%-5s  %s%s%s\n", planned.test->cost == Cost::kQuick ? "quick" : "full", planned.name.c_str(),
                needs.empty() ? "" : "  needs", needs.c_str());
  }
}

Launch launch_of(const std::vector<std::string>& self, const Options& options) {
  Launch launch;
  launch.self = self;
  launch.platform = options.platform;
  launch.quick = options.quick;
  launch.deadline_s = options.deadline_s;
  launch.verbose = options.verbose;
  launch.rank_environment = options.rank_environment;
  launch.rank_program = options.rank_program;
  return launch;
}

void write_report(const std::string& path, const Json& document) {
  std::ofstream file(path);
  file << document.write(1) << "\n";
  if (!file.flush()) throw std::runtime_error("cannot write the report to " + path);
}

int run_suite(const Options& options, const Launch& launch) {
  const Report report = run_plan(plan_run(all_tests(), options), options, launch, [&](const Report::Row& row) {
    if (options.json) return;
    std::fputs(row_text(row).c_str(), stdout);
    std::fflush(stdout);
  });
  if (options.json) std::printf("%s\n", report.to_json().write(1).c_str());
  if (!options.json) std::fputs(report.closing().c_str(), stdout);
  if (!options.report.empty()) write_report(options.report, report.to_json());
  return report.exit_code();
}

int run_worker(const std::vector<std::string>& arguments) {
  if (arguments.size() != 6) throw std::invalid_argument("--worker is for the kit itself; see --help");
  if (const int deadline_s = std::atoi(arguments[4].c_str()); deadline_s > 0) set_patience(deadline_s / 2.0);
  return worker_main(std::atoi(arguments[1].c_str()), std::atoi(arguments[2].c_str()), arguments[3] == "quick",
                     arguments[5] == "-" ? "" : arguments[5]);
}

}  // namespace

int conform_main(const std::vector<std::string>& self, const std::vector<std::string>& arguments) {
  try {
    if (!arguments.empty() && arguments[0] == "--worker") return run_worker(arguments);
    const Options options = parse_options(arguments);
    if (options.help) return std::fputs(usage().c_str(), stdout) < 0 ? 1 : 0;
    if (options.list) {
      print_list(options);
      return 0;
    }
    check_report(options);
    const Launch launch = launch_of(self, options);
    return options.perf ? run_perf(options, launch) : run_suite(options, launch);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "conform: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conform: %s\n", error.what());
    return 1;
  }
}

}  // namespace concord::conformance
