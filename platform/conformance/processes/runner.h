// Plans a run (which tests, on how many ranks) and walks the plan with gangs of workers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "platform/conformance/expectations.h"
#include "platform/conformance/options.h"
#include "platform/conformance/processes/gang.h"
#include "platform/conformance/registry.h"
#include "platform/conformance/report.h"

namespace concord::conformance {

struct Planned {
  const Test* test;
  int world;
  std::string name;
};

// World by world, in the order of the registry; what ends the shared processes of a world comes last in it.
std::vector<Planned> plan_run(const Registry& registry, const Options& options);

// Runs the plan and judges it by the expectations. |progress| sees every row as it is finished.
Report run_plan(const std::vector<Planned>& plan, const Options& options, const Launch& launch,
                const std::function<void(const Report::Row&)>& progress);

}  // namespace concord::conformance
