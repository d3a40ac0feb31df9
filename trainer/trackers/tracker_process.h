// Weights & Biases, MLflow and OpenTelemetry, in a Python process of their own that is fed with JSON lines: W&B has
// only a Python library, and Python's own HTTP client has what the other two need (TLS, proxies).
//
// The training process never waits for it: lines that the other one does not take are kept, up to 16 MiB, later ones
// are dropped and counted. If it dies, that is said once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/text/python_process.h"
#include "trainer/report/tracker.h"

namespace concord {

class TrackerProcess : public Tracker {
 public:
  // |service| is wandb, mlflow or otel. Throws ConfigError, with what to do, if a library or a setting is missing.
  // Waits: for Python to load the library, two minutes at most.
  explicit TrackerProcess(std::string service);

  std::string name() const override { return service_; }
  void begin(const RunDescription& run) override;
  void log(const TrackedValues& logged) override;
  std::vector<std::string> take_notes() override;
  std::string finish() override;

 private:
  void send_line(std::string line, int64_t values);
  void send_waiting();
  void receive();
  void parse_line(const std::string& line);
  void end_early(const std::string& why);
  void wait_for(int fd, short events, int64_t milliseconds) const;

  std::string service_;
  PythonProcess process_;
  UniqueFd to_, from_;  // not blocking; |to_| is closed once the process is gone
  std::string waiting_;
  std::string received_;
  std::vector<std::string> notes_;
  int64_t dropped_ = 0;  // values that were never sent
  bool is_ready_ = false, is_done_ = false;
  std::string refusal_;
  std::string place_;
  int64_t lost_ = 0;  // values, as the process says
};

}  // namespace concord
