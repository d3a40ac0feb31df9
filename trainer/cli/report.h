// `concord report`: compares finished runs: a table, a picture of their curves, the page of one.
#pragma once

#include <string>
#include <vector>

#include "trainer/report/history.h"

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Parsing runs it; throws ConfigError for invalid settings.
void add_report_command(CLI::App* program);

struct ComparedRun {
  std::string name;
  RunHistory history;
};

// The largest difference in a metric from the first run, over the steps that both have logged.
struct LossDifference {
  int64_t steps = 0;  // that both have
  int64_t step = 0;   // where it is largest
  double absolute = 0;
};
LossDifference loss_difference(const RunHistory& reference, const RunHistory& other,
                               const std::string& metric = "loss");

// Throw ConfigError, with the metrics that exist, if a run has not logged |metric|.
std::string compared_text(const std::vector<ComparedRun>& runs, const std::string& metric = "loss");
std::string compared_json(const std::vector<ComparedRun>& runs, const std::string& metric = "loss");

}  // namespace concord
