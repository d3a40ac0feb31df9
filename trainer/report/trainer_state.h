// trainer_state.json, with the keys of Hugging Face's TrainerState and no others, so that its load_from_json reads it.
#pragma once

#include <string>

#include "trainer/report/report.h"

namespace concord {

inline constexpr const char* kTrainerStateFile = "trainer_state.json";

// Pure. |global_step| may be ahead of the last step logged. Numbers that are not finite are null.
std::string trainer_state_json(const RunDescription& run, const RunHistory& history, int64_t global_step,
                               const BestResult& best = {});

}  // namespace concord
