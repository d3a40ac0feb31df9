// Checks of how arguments fit together, by subject; check_arguments (arguments.h) runs all of them. |a| has been
// resolved (resolve_arguments). Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "trainer/arguments/arguments.h"
#include "trainer/arguments/problems.h"

namespace concord {

// Throws one ConfigError with all values that the table does not allow, as reading them does. Defaults are allowed.
void check_values(const TrainingArguments& a);

// Throws ConfigError if no setting names training data.
void check_training_data(const TrainingArguments& a);
void check_data_relations(const TrainingArguments& a, Problems* problems);
void check_objective_relations(const TrainingArguments& a, Problems* problems);

// Throws ConfigError unless every batch size of a ramp-up on |world| processes has a schedule of the kind of |a|.
void check_ramp_schedules(const TrainingArguments& a, int64_t world);

// Returns the relative speeds that heterogeneous_split gives |replicas|; empty for none, and for auto. Throws
// ConfigError.
std::vector<double> given_speeds(const TrainingArguments& a, int64_t replicas);
// Returns what the number of micro-batches of each replica must be a multiple of.
int64_t micro_batch_unit(const TrainingArguments& a);

// Returns whether there is data to evaluate on.
bool evaluates(const TrainingArguments& a);

// Returns the number of data-parallel ranks among |world|; nullopt if the other sizes do not divide it.
std::optional<int64_t> data_parallel_size(const TrainingArguments& a, int64_t world);
// Returns the micro-batches per step that give global_batch_size on |ranks| data-parallel ranks; nullopt if none does.
std::optional<int64_t> accumulation_of(const TrainingArguments& a, int64_t ranks);

}  // namespace concord
