// The cost of creating and checking a pipeline schedule, compared with torch.distributed.pipelining, which does not
// check.
//
//   schedule_bench [--json]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/schedule/check.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

constexpr double kGoal = 1;  // maximum seconds
constexpr int kRuns = 5;

struct Row {
  std::string name;
  double ours;
  std::optional<double> peer;
};

double seconds_for(const ScheduleRequest& request) {
  std::vector<double> took;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    check_schedule(complete_schedule(make_schedule(request)));
    took.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(took.begin(), took.end());
  return took[kRuns / 2];
}

std::optional<double> peer_seconds() {
  const char* python = std::getenv("CONCORD_PYTHON");
  const std::string command =
      std::string(python != nullptr ? python : "python3") + " " SCHEDULE_PEER_SCRIPT " 64 512 4 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  double seconds = 0;
  const bool read = std::fscanf(pipe, "%lf", &seconds) == 1;
  return pclose(pipe) == 0 && read ? std::optional(seconds) : std::nullopt;
}

std::vector<Row> measure() {
  return {
      {"schedule: interleaved, 64 ranks, 512 micro-batches, 4 chunks",
       seconds_for({.kind = "interleaved", .pp = 64, .microbatches = 512, .vpp = 4}), peer_seconds()},
      {"schedule: zb-v, 64 ranks, 512 micro-batches", seconds_for({.kind = "zb-v", .pp = 64, .microbatches = 512}), {}},
  };
}

nlohmann::json json_of(const Row& row) {
  nlohmann::json json = {{"name", row.name}, {"ours", row.ours}, {"peer", nullptr},         {"unit", "s"},
                         {"ratio", nullptr}, {"goal", kGoal},    {"met", row.ours <= kGoal}};
  if (row.peer) json["peer"] = *row.peer;
  if (row.peer) json["ratio"] = *row.peer / row.ours;
  return json;
}

int run(bool as_json) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : measure()) {
    rows.push_back(json_of(row));
    if (as_json) continue;
    std::printf("%-62s %8.3f s   peer %s   goal <= %g s %s\n", row.name.c_str(), row.ours,
                row.peer ? (std::to_string(*row.peer) + " s").c_str() : "-", kGoal,
                row.ours <= kGoal ? "met" : "NOT MET");
  }
  if (as_json) std::printf("%s\n", rows.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--json") != 0)) {
    std::fprintf(stderr, "usage: schedule_bench [--json]\n");
    return 2;
  }
  return concord::run(argc == 2);
}
