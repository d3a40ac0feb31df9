#include "core/safetensors/natural_order.h"

#include <gtest/gtest.h>

namespace concord::safetensors {
namespace {

TEST(NaturalOrder, SortsNumbersByTheirValue) {
  EXPECT_TRUE(natural_less("layers.2.a", "layers.10.a"));
  EXPECT_FALSE(natural_less("layers.10.a", "layers.2.a"));
  EXPECT_TRUE(natural_less("a", "b"));
  EXPECT_TRUE(natural_less("a", "a1"));
  EXPECT_TRUE(natural_less("a9", "ab"));
  EXPECT_FALSE(natural_less("a1", "a1"));
  EXPECT_TRUE(natural_less("a01", "a1") != natural_less("a1", "a01"));
  EXPECT_TRUE(natural_less("a1.2", "a01.3"));
  EXPECT_TRUE(natural_less("a00", "a1"));
}

}  // namespace
}  // namespace concord::safetensors
