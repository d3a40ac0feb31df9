// A run in a few numbers and lines. Pure.
#pragma once

#include <string>

#include "trainer/report/report.h"

namespace concord {

// Name and value, the most important first: last loss, lowest loss, steps, tokens, tokens/s, MFU, memory, time.
NamedTexts headline_figures(const RunDescription& run, const RunHistory& history);

// What is printed first: what the run is about to do, from |opening|.
std::string opening_text(const RunDescription& run);

// What is printed at the end: the result, where the files are, what to try next.
std::string summary_text(const RunDescription& run, const RunHistory& history, const FinishReport& end);

// One line about an evaluation.
std::string evaluation_line(const LoggedEval& eval);

}  // namespace concord
