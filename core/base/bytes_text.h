// Sizes for people. Pure; threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace concord {

// "17 B", "1.50 KiB", "12.3 GiB", "512 MiB": three digits and a unit. What is below 0 is shown as 0.
std::string bytes_text(int64_t bytes);

}  // namespace concord
