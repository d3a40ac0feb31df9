#include "backends/cuda/profiler/peak_flops.h"

namespace concord::cuda {
namespace {

struct Row {
  std::string_view part;  // of the name
  PeakFlops peak;
};

// The first that the name contains, so the special ones are before the general.
constexpr Row kTable[] = {
    {"H200 NVL", {60e12, 835.5e12, 835.5e12}}, {"GH200", {67e12, 989.5e12, 989.5e12}},
    {"H200", {67e12, 989.5e12, 989.5e12}},     {"H100 PCIe", {51e12, 756e12, 756e12}},
    {"H100 NVL", {60e12, 835.5e12, 835.5e12}}, {"H100", {67e12, 989.5e12, 989.5e12}},
    {"H800 PCIe", {51e12, 756e12, 756e12}},    {"H800", {67e12, 989.5e12, 989.5e12}},
    {"H20", {44e12, 148e12, 148e12}},          {"A100", {19.5e12, 312e12, 312e12}},
    {"A800", {19.5e12, 312e12, 312e12}},       {"A30", {10.3e12, 165e12, 165e12}},
    {"L40S", {91.6e12, 362e12, 362e12}},       {"V100-SXM2", {15.7e12, 0, 125e12}},
    {"V100-PCIE", {14e12, 0, 112e12}},
};

}  // namespace

PeakFlops peak_flops_of(std::string_view name) {
  if (name.find("MIG") != name.npos) return {};
  for (const Row& row : kTable) {
    const size_t at = name.find(row.part);
    if (at == name.npos) continue;
    // "A30" is not the beginning of "A3000"
    const size_t end = at + row.part.size();
    if (end == name.size() || name[end] == ' ' || name[end] == '-') return row.peak;
  }
  return {};
}

}  // namespace concord::cuda
