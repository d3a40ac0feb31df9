// The latest values of a run for Prometheus to scrape: http://HOST:PORT/metrics, in its text exposition format.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "platform/base/thread_safety.hpp"
#include "trainer/report/http_server.h"
#include "trainer/report/tracker.h"

namespace concord {

// Returns |values| as gauges called concord_NAME with a label |run|. Invalid characters of names become '_'. Pure.
std::string prometheus_text(const std::map<std::string, double>& values, const std::string& run);

class PrometheusTracker : public Tracker {
 public:
  // Throws ConfigError if the port is in use.
  PrometheusTracker(const std::string& host, int port);

  std::string name() const override { return "prometheus"; }
  void begin(const RunDescription& run) override;
  void log(const TrackedValues& logged) override;
  std::vector<std::string> take_notes() override;
  std::string finish() override;

 private:
  HttpResponse answer(const std::string& path);
  void publish();

  std::string run_;
  std::map<std::string, double> values_;  // latest value of every name
  bool is_announced_ = false;
  std::mutex mutex_;  // guards what the server's thread reads
  std::string text_ CONCORD_GUARDED_BY(mutex_);
  HttpServer server_;  // last: destroyed first
};

}  // namespace concord
