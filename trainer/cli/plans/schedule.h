// `concord schedule`: a pipeline schedule printed, simulated, drawn, compared. Pure: no device, no processes.
#pragma once

#include <string>

#include "core/schedule/schedules.h"
#include "core/schedule/simulate.h"

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Parsing runs it; throws ConfigError for an invalid schedule.
void add_schedule_command(CLI::App* program);

// A schedule with its transfers, checked and simulated.
struct PricedSchedule {
  Schedule computations;  // from the generator or the file
  Schedule complete;      // with transfers and reductions
  Simulation simulation;  // of |complete|
};
PricedSchedule price_schedule(const Schedule& schedule, const ScheduleCosts& costs);

// One JSON document; "actions" are the computations of each rank, "program" all a rank does, transfers of one batch
// joined by '+'. "activation_memory" counts micro-batches through all of a rank's layers, so that kinds can be
// compared.
std::string schedule_json(const PricedSchedule& priced);

// The numbers and a grid of at most |width| characters per line.
std::string schedule_text(const PricedSchedule& priced, size_t width);

// All kinds for the ranks, micro-batches and chunks of |request|. Costs are those of a rank's whole share of the
// model here: a chunk of v takes 1/v of them, so the lengths of the steps are comparable. A kind that cannot have these
// sizes has its reason instead.
struct ComparedKind {
  std::string kind;
  std::string refusal;  // empty for one that can be
  PricedSchedule priced;
};
std::vector<ComparedKind> compare_kinds(const ScheduleRequest& request, const ScheduleCosts& costs);
std::string compare_json(const ScheduleRequest& request, const std::vector<ComparedKind>& kinds);
std::string compare_text(const ScheduleRequest& request, const std::vector<ComparedKind>& kinds);

}  // namespace concord
