#include "trainer/trackers/prometheus.h"

#include <fmt/format.h>

#include <cmath>

#include "trainer/report/report.h"

namespace concord {
namespace {

std::string metric_name(const std::string& name) {
  std::string text = "concord_";
  for (const char letter : name) {
    const bool is_allowed = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                            (letter >= '0' && letter <= '9') || letter == '_';
    text += is_allowed ? letter : '_';
  }
  return text;
}

std::string label_text(const std::string& value) {
  std::string text;
  for (const char letter : value) {
    if (letter == '\n') {
      text += "\\n";
      continue;
    }
    if (letter == '\\' || letter == '"') text += '\\';
    text += letter;
  }
  return text;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

std::string prometheus_text(const std::map<std::string, double>& values, const std::string& run) {
  std::map<std::string, double> metrics;  // two names may map to the same one
  for (const auto& [name, value] : values) metrics[metric_name(name)] = value;
  std::string text;
  for (const auto& [name, value] : metrics)
    text += fmt::format("# TYPE {} gauge\n{}{{run=\"{}\"}} {}\n", name, name, label_text(run), number_text(value));
  return text;
}

PrometheusTracker::PrometheusTracker(const std::string& host, int port)
    : server_("prometheus", host, port, [this](const std::string& path) { return answer(path); }) {}

HttpResponse PrometheusTracker::answer(const std::string& path) {
  if (path != "/metrics" && path != "/") return {.status = 404, .body = "the metrics are at /metrics\n"};
  const std::lock_guard lock(mutex_);
  return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = text_};
}

void PrometheusTracker::publish() {
  std::string text = prometheus_text(values_, run_);
  const std::lock_guard lock(mutex_);
  text_.swap(text);
}

void PrometheusTracker::begin(const RunDescription& run) {
  run_ = run.run_name;
  values_["global_step"] = static_cast<double>(run.first_step);
  values_["max_steps"] = static_cast<double>(run.max_steps);
  values_["world_size"] = static_cast<double>(run.world_size);
  publish();
}

void PrometheusTracker::log(const TrackedValues& logged) {
  for (const auto& [name, value] : logged.values) values_[name] = value;
  values_["global_step"] = static_cast<double>(logged.step);
  values_["last_log_timestamp_seconds"] = logged.time;
  publish();
}

std::vector<std::string> PrometheusTracker::take_notes() {
  if (std::exchange(is_announced_, true)) return {};
  return {fmt::format("metrics at {}/metrics while the run lasts", server_.url())};
}

std::string PrometheusTracker::finish() { return ""; }

}  // namespace concord
