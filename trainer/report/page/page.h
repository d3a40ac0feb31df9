// report.html: one self-contained file that a browser shows without a network. Pure.
#pragma once

#include <string>
#include <string_view>

#include "trainer/report/report.h"

namespace concord {

// Maximum number of points per curve. Each interval keeps its last point and its highest loss, so that spikes are
// visible.
inline constexpr size_t kMaxPoints = 4000;

// |refresh_seconds| > 0: the page is served, and reloads itself at this interval.
std::string report_page(const RunDescription& run, const RunHistory& history, const FinishReport& end,
                        int refresh_seconds = 0);

// Escapes text for elements and attributes.
std::string html_escaped(std::string_view text);

}  // namespace concord
