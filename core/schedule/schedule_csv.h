// Schedules as CSV: one line per rank with its actions; empty cells are skipped. Transfers of one batch share a cell,
// "0SEND_F1+0RECV_B0". Without such batches it is the format of torch.distributed.pipelining.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/schedule/schedule.h"

namespace concord {

std::string schedule_csv(const Schedule& schedule);

// Parses and checks a user's schedule. The number of ranks follows from the lines, stages and micro-batches from the
// actions. If it has any transfer it must have all of them. |activation_limit| applies to every rank; 0: none. Throws
// ConfigError with |name|, row and column (starting at 1) and the first invalid action.
Schedule parse_schedule_csv(std::string_view text, std::string_view name, int64_t activation_limit = 0);

// Like parse_schedule_csv(), for a file of at most kMaxCsvBytes.
Schedule load_schedule_csv(const std::string& path, int64_t activation_limit = 0);
inline constexpr int64_t kMaxCsvBytes = int64_t{256} << 20;

}  // namespace concord
