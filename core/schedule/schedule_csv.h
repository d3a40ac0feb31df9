// Schedules as text: one line per rank, its actions separated by commas, empty cells skipped; transfers of one batch
// share a cell, "0SEND_F1+0RECV_B0". Without such batches it is the form of torch.distributed.pipelining.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/schedule/schedule.h"

namespace concord {

std::string schedule_csv(const Schedule& schedule);

// Reads and checks a user's schedule. The file gives all of it: ranks by its lines, stages and micro-batches by its
// actions. With any transfer in it, it has to have all of them. |activation_limit| holds for every rank; 0: none.
// Throws ConfigError that names |name|, row and column (from 1) and the first broken action.
Schedule parse_schedule_csv(std::string_view text, std::string_view name, int64_t activation_limit = 0);

// The same from a file of at most kMaxCsvBytes.
Schedule load_schedule_csv(const std::string& path, int64_t activation_limit = 0);
inline constexpr int64_t kMaxCsvBytes = int64_t{256} << 20;

}  // namespace concord
