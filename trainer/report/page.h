// report.html: one file with everything in it, that a browser shows without a network. Pure.
#pragma once

#include <string>
#include <string_view>

#include "trainer/report/report.h"

namespace concord {

// Curves keep at most this many points; of those left out, the highest loss of each stretch stays, so spikes are seen.
inline constexpr size_t kMostPoints = 4000;

std::string report_page(const RunDescription& run, const RunHistory& history, const FinishReport& end);

// For text between tags and in attributes.
std::string html_escaped(std::string_view text);

}  // namespace concord
