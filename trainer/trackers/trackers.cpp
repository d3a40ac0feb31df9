#include "trainer/trackers/trackers.h"

#include <algorithm>

#include "trainer/trackers/prometheus.h"
#include "trainer/trackers/tracker_process.h"

namespace concord {

bool reports_to(const ReportArguments& report, ReportTarget target) {
  const auto has = [&](ReportTarget each) { return std::ranges::find(report.to, each) != report.to.end(); };
  const bool is_local = target == ReportTarget::tensorboard || target == ReportTarget::html;
  return has(target) || (is_local && has(ReportTarget::all));
}

std::vector<std::unique_ptr<Tracker>> make_trackers(const ReportArguments& report) {
  std::vector<std::unique_ptr<Tracker>> trackers;
  for (const ReportTarget service : {ReportTarget::wandb, ReportTarget::mlflow, ReportTarget::otel}) {
    if (reports_to(report, service))
      trackers.push_back(std::make_unique<TrackerProcess>(std::string(name_of(service))));
  }
  if (reports_to(report, ReportTarget::prometheus)) {
    trackers.push_back(
        std::make_unique<PrometheusTracker>(report.prometheus_host, static_cast<int>(report.prometheus_port)));
  }
  return trackers;
}

}  // namespace concord
