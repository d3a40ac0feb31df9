// trainer_state.json, with exactly the keys of Hugging Face's TrainerState, so that its load_from_json reads it.
#pragma once

#include <string>

#include "trainer/report/report.h"

namespace concord {

inline constexpr const char* kTrainerStateFile = "trainer_state.json";

// |global_step| may be ahead of the last logged step. Numbers that are not finite are null. The rows of log_history are
// read from the files in run.output_dir (history.h), one at a time, since a long run has too many to keep. Throws like
// read_history().
std::string trainer_state_json(const RunDescription& run, int64_t global_step, const BestResult& best = {});

}  // namespace concord
