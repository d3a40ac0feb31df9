// Loops that are compiled for several x86 processors; the right version is picked when the program starts.
//   #include "platform/base/target_clones.hpp"
//   CONCORD_TARGET_CLONES void add(float* sums, const float* values, int64_t count) { ... }
// Not for templates. The picking runs before a sanitizer is ready, so there is one version with a sanitizer, and one on
// other processors, whose compilers always know vectors of 128 bits.
#pragma once

#include "platform/base/sanitizer.hpp"

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !CONCORD_UNDER_ASAN && \
    !CONCORD_UNDER_TSAN && !defined(__clang__)
#define CONCORD_TARGET_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CONCORD_TARGET_CLONES
#endif
