// Weights & Biases, MLflow and OpenTelemetry, in a separate Python process that receives JSON lines: W&B has only a
// Python library, and Python's own HTTP client has what the other two need (TLS, proxies).
//
// The training process never waits for it: lines that it does not accept are buffered, up to 16 MiB; later ones are
// dropped and counted. Its exit is logged once.
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
  // Waits: for Python to load the library, at most two minutes.
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
  UniqueFd to_, from_;  // non-blocking; |to_| is closed once the process has exited
  std::string waiting_;
  std::string received_;
  std::vector<std::string> notes_;
  int64_t dropped_ = 0;  // values that were never sent
  bool is_ready_ = false, is_done_ = false;
  std::string refusal_;
  std::string place_;
  int64_t lost_ = 0;  // values, as reported by the process
};

}  // namespace concord
