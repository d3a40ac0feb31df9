// Conversions between f16 and float, several at a time: by the processor's own instructions if it has any, else one
// by one. The same bits as sdk::f16_to_float and sdk::float_to_f16, NaN payloads aside.
#pragma once

#include <cstdint>

namespace concord::shm {

void halves_to_floats(float* out, const uint16_t* in, int64_t count);
void floats_to_halves(uint16_t* out, const float* in, int64_t count);

}  // namespace concord::shm
