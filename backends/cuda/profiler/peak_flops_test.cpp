#include "backends/cuda/profiler/peak_flops.h"

#include <gtest/gtest.h>

namespace concord::cuda {
namespace {

TEST(PeakFlops, DevicesAreKnownByTheirNames) {
  EXPECT_EQ(peak_flops_of("NVIDIA H200").bf16, 989.5e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H200").f32, 67e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H100 80GB HBM3").bf16, 989.5e12);
  EXPECT_EQ(peak_flops_of("NVIDIA A100-SXM4-80GB").f16, 312e12);
  EXPECT_EQ(peak_flops_of("NVIDIA A100-PCIE-40GB").f32, 19.5e12);
}

TEST(PeakFlops, ASpecialFormIsNotTakenForTheGeneralOne) {
  EXPECT_EQ(peak_flops_of("NVIDIA H100 PCIe").bf16, 756e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H200 NVL").bf16, 835.5e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H20").bf16, 148e12);
}

TEST(PeakFlops, BeforeAmpereThereIsNoBf16) {
  EXPECT_EQ(peak_flops_of("Tesla V100-SXM2-32GB").bf16, 0);
  EXPECT_EQ(peak_flops_of("Tesla V100-SXM2-32GB").f16, 125e12);
}

TEST(PeakFlops, OtherDevicesAndSlicesAreNotKnown) {
  EXPECT_EQ(peak_flops_of("NVIDIA RTX A3000 Laptop GPU").f32, 0);
  EXPECT_EQ(peak_flops_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb").bf16, 0);
  EXPECT_EQ(peak_flops_of("fake device").f32, 0);
  EXPECT_EQ(peak_flops_of("").f16, 0);
}

}  // namespace
}  // namespace concord::cuda
