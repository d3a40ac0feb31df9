// Operators that this simulator does not implement. Each name in names.txt gets entry points nevertheless, so that
// torch_npu does not silently choose another operator: a call fails with the operator's name and arguments.
#pragma once

#include <cstdint>

namespace concord::ascend::sim {

// Maximum number of arguments that are reported. Both calling conventions (x86-64 System V and AArch64) pass integers
// and pointers in one sequence of registers and stack slots, and floating-point numbers in another, so a function with
// eight doubles and enough integers as parameters receives the arguments, whatever the real signature is.
inline constexpr int kMissingIntegers = 32;
inline constexpr int kMissingDoubles = 8;

int report_missing(const char* name, const uint64_t (&integers)[kMissingIntegers],
                   const double (&doubles)[kMissingDoubles]);
int report_missing_launch(const char* name);

}  // namespace concord::ascend::sim
