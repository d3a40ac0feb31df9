// The speed of a device, for the times of the report of the work: they order implementations, and are lower bounds.
#pragma once

#include <cstdint>
#include <string>

namespace concord::ascend::sim {

struct DeviceFigures {
  std::string name;
  double memory_bytes_per_second = 0;
  double cube_flops_per_second = 0;    // for 16-bit matrices; a multiply-add counts as two
  double vector_bytes_per_second = 0;  // that the vector units read and write
  double launch_seconds = 0;           // unless it is hidden behind the one before

  // Returns the microseconds of |launches| that move |bytes| and multiply with |product_flops|: the launches, and the
  // longest of memory, vector units and products, which overlap.
  double microseconds(int64_t launches, int64_t bytes, double product_flops) const;
};

// A 910B's public figures, in the form of a device file.
extern const char* const kDevice910b;

// Parses lines "name = value" with every field of DeviceFigures; '#' begins a comment. Returns what is wrong with
// |text|, or "".
std::string parse_device_figures(const std::string& text, DeviceFigures* out_figures);

// Returns the figures of the file in settings().device_file, read at the first use; those of a 910B without one. A file
// that cannot be used ends the process with an error message.
const DeviceFigures& device_figures();

}  // namespace concord::ascend::sim
