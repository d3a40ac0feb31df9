// Human-readable sizes. Pure; threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace concord {

// Returns |bytes| with three significant digits and a unit: "17 B", "1.50 KiB", "12.3 GiB", "512 MiB". Negative values
// are printed as 0.
std::string bytes_text(int64_t bytes);

}  // namespace concord
