// report.html: one self-contained file, which a browser shows without a network. Pure.
#pragma once

#include <string>
#include <string_view>

#include "trainer/report/report.h"

namespace concord {

// Curves keep at most this many points; of those dropped, the highest loss of each interval is kept, so spikes are
// visible.
inline constexpr size_t kMaxPoints = 4000;

// |refresh_seconds| > 0: the page is served, and asks for itself so often to show what is new.
std::string report_page(const RunDescription& run, const RunHistory& history, const FinishReport& end,
                        int refresh_seconds = 0);

// For text between tags and in attributes.
std::string html_escaped(std::string_view text);

}  // namespace concord
