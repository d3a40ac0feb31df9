// A summary of a run in a few numbers and lines. Pure.
#pragma once

#include <string>

#include "trainer/report/report.h"

namespace concord {

// Returns names and values, the most important first: last loss, lowest loss, steps, tokens, tokens/s, MFU, memory,
// time.
NamedTexts headline_figures(const RunDescription& run, const RunHistory& history);

// Returns the text printed at the start: the |opening| of the run.
std::string opening_text(const RunDescription& run);

// Returns the text printed at the end: the result, the paths of files, suggested next commands.
std::string summary_text(const RunDescription& run, const RunHistory& history, const FinishReport& end);

// Returns the accuracy and the margin of pairs in |extra|, with short names and |prefix| before those in |extra|; empty
// unless the run learns from pairs.
NamedValues pair_figures(const NamedValues& extra, const std::string& prefix);

// Returns one line about an evaluation.
std::string evaluation_line(const LoggedEval& eval);

}  // namespace concord
