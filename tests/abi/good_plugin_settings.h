// The settings in which samples differ. C and C++.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const char* const sample_name;
extern const int32_t sample_priority;
extern const int32_t sample_devices;

#ifdef __cplusplus
}
#endif
