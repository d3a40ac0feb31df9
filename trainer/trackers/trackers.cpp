#include "trainer/trackers/trackers.h"

#include <algorithm>

#include "trainer/trackers/prometheus.h"
#include "trainer/trackers/tracker_process.h"

namespace concord {

bool reports_to(const ReportArguments& report, const std::string& service) {
  const auto has = [&](const std::string& name) { return std::ranges::find(report.to, name) != report.to.end(); };
  const bool is_local = service == "tensorboard" || service == "html";
  return has(service) || (is_local && has("all"));
}

std::vector<std::unique_ptr<Tracker>> make_trackers(const ReportArguments& report) {
  std::vector<std::unique_ptr<Tracker>> trackers;
  for (const char* const service : {"wandb", "mlflow", "otel"}) {
    if (reports_to(report, service)) trackers.push_back(std::make_unique<TrackerProcess>(service));
  }
  if (reports_to(report, "prometheus")) {
    trackers.push_back(
        std::make_unique<PrometheusTracker>(report.prometheus_host, static_cast<int>(report.prometheus_port)));
  }
  return trackers;
}

}  // namespace concord
