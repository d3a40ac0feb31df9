#include "core/base/bytes_text.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

TEST(BytesText, HasThreeDigitsAndTheUnitThatFits) {
  EXPECT_EQ(bytes_text(-1), "0 B");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(1 << 20), "1.00 MiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(bytes_text(12 << 20), "12.0 MiB");
  EXPECT_EQ(bytes_text(int64_t{300} << 30), "300 GiB");
  EXPECT_EQ(bytes_text(int64_t{1} << 40), "1.00 TiB");
  EXPECT_EQ(bytes_text(INT64_MAX), "8.00 EiB");
}

}  // namespace
}  // namespace concord
