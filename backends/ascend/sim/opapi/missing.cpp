#include "backends/ascend/sim/opapi/missing.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "backends/ascend/sim/opapi/executor.h"
#include "backends/ascend/sim/opapi/objects.h"

namespace concord::ascend::sim {
namespace {

// The last two arguments point at the caller's variables, which are on its stack, not far from here.
bool on_stack(uint64_t value) {
  const auto here = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  return value > here && value - here < (uint64_t{1} << 20);
}

int count_arguments(const uint64_t (&integers)[kMissingIntegers]) {
  for (int i = 0; i + 1 < kMissingIntegers; ++i) {
    if (on_stack(integers[i]) && on_stack(integers[i + 1])) return i;
  }
  return kMissingIntegers;
}

std::string as_argument(uint64_t value) {
  Kind kind;
  const void* pointer = reinterpret_cast<const void*>(value);
  if (value != 0 && find_object(pointer, &kind)) return describe_object(pointer);
  char text[32];
  const auto number = static_cast<int64_t>(value);
  const bool small = number > -(int64_t{1} << 31) && number < (int64_t{1} << 31);
  std::snprintf(text, sizeof text, small ? "%" PRId64 : "0x%" PRIx64, number);
  return text;
}

// A floating-point register holds a double, a float, or what was left in it: "0.5", "0.5f", "-".
std::string as_floating(double wide) {
  const auto sensible = [](double value) {
    const double size = value < 0 ? -value : value;
    return size == 0 || (size > 1e-12 && size < 1e12);
  };
  float narrow;
  std::memcpy(&narrow, &wide, sizeof narrow);
  char text[32];
  if (sensible(wide)) {
    std::snprintf(text, sizeof text, "%g", wide);
  } else if (sensible(narrow)) {
    std::snprintf(text, sizeof text, "%gf", static_cast<double>(narrow));
  } else {
    return "-";
  }
  return text;
}

}  // namespace

int report_missing(const char* name, const uint64_t (&integers)[kMissingIntegers],
                   const double (&doubles)[kMissingDoubles]) {
  std::string given;
  const int count = count_arguments(integers);
  for (int i = 0; i < count; ++i) given += (i == 0 ? "" : ", ") + as_argument(integers[i]);
  std::string floats;
  for (int i = 0; i < 4; ++i) floats += (i == 0 ? "" : ", ") + as_floating(doubles[i]);
  const std::string text = "not simulated. Called with (" + given + "); floating-point registers: " + floats +
                           ". docs/ascend-sim-operators.md describes how to add an operator";
  std::fprintf(stderr, "sim-npu: %s: %s\n", name, text.c_str());
  return refuse(name, kAclnnNoKernel, text);
}

int report_missing_launch(const char* name) { return refuse(name, kAclnnNoKernel, "not simulated"); }

}  // namespace concord::ascend::sim

#define I(n) uint64_t i##n
#define D(n) double d##n
#define INTEGERS(X)                                                                                                   \
  X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7), X(8), X(9), X(10), X(11), X(12), X(13), X(14), X(15), X(16), X(17), \
      X(18), X(19), X(20), X(21), X(22), X(23), X(24), X(25), X(26), X(27), X(28), X(29), X(30), X(31)
#define DOUBLES(X) X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7)
#define I_VALUE(n) i##n
#define D_VALUE(n) d##n

// Weak: an operator that is defined elsewhere wins.
#define CONCORD_MISSING(Name)                                                                                   \
  extern "C" __attribute__((visibility("default"), weak)) int Name##GetWorkspaceSize(INTEGERS(I), DOUBLES(D)) { \
    return concord::ascend::sim::report_missing(#Name, {INTEGERS(I_VALUE)}, {DOUBLES(D_VALUE)});                \
  }                                                                                                             \
  extern "C" __attribute__((visibility("default"), weak)) int Name() {                                          \
    return concord::ascend::sim::report_missing_launch(#Name);                                                  \
  }

#include "missing_names.inc"  // made of names.txt by CMake
