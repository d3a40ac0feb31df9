// Whether a source is compiled under a sanitizer, which GCC and Clang say in different ways: 1 or 0.
//
// Example at file scope:
//   #if CONCORD_UNDER_ASAN || CONCORD_UNDER_TSAN
//   constexpr int kPatience = 8;
//   #else
//   constexpr int kPatience = 1;
//   #endif
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CONCORD_UNDER_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define CONCORD_UNDER_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define CONCORD_UNDER_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define CONCORD_UNDER_TSAN 1
#endif

#ifndef CONCORD_UNDER_ASAN
#define CONCORD_UNDER_ASAN 0
#endif
#ifndef CONCORD_UNDER_TSAN
#define CONCORD_UNDER_TSAN 0
#endif
