// Creates the services that report_to names.
#pragma once

#include <memory>
#include <vector>

#include "trainer/arguments/training_arguments.h"
#include "trainer/report/tracker.h"

namespace concord {

// Returns whether report_to names |target|, or all if |target| is local (a file in output_dir).
bool reports_to(const ReportArguments& report, ReportTarget target);

// Returns the trackers that are not files in output_dir. Call on the rank that reports, before it joins the job: throws
// ConfigError if one of them cannot be used here.
std::vector<std::unique_ptr<Tracker>> make_trackers(const ReportArguments& report);

}  // namespace concord
