// Operators that this simulator does not have. Each name of names.txt gets entry points all the same, so that a call is
// not silently sent another way: it fails, and says the operator's name and what it was given.
#pragma once

#include <cstdint>

namespace concord::ascend::sim {

// The most that is looked at. Both calling conventions (x86-64 System V and AArch64) give whole numbers and pointers
// one sequence of places and floating-point ones another, so a function that takes eight doubles and enough integers
// sees what it was called with, whatever the real signature is.
inline constexpr int kMissingIntegers = 32;
inline constexpr int kMissingDoubles = 8;

int report_missing(const char* name, const uint64_t (&integers)[kMissingIntegers],
                   const double (&doubles)[kMissingDoubles]);
int report_missing_launch(const char* name);

}  // namespace concord::ascend::sim
