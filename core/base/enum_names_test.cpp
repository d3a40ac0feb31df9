#include "core/base/enum_names.h"

#include <gmock/gmock.h>

#include "core/base/config_error.h"

namespace concord {

enum class Colour { none, red, green };
template <>
inline constexpr std::string_view kEnumNames<Colour>[] = {"", "red", "green"};

namespace {

enum class Nameless { a };
static_assert(NamedEnum<Colour> && !NamedEnum<Nameless> && !NamedEnum<int>);
static_assert(name_of(Colour::red) == "red" && find_enum<Colour>("green") == Colour::green);
static_assert(!find_enum<Colour>("Red"));

TEST(EnumNames, AreReadAndUnknownOnesAreRejectedWithAllThatExist) {
  EXPECT_EQ(parse_enum<Colour>("colour", ""), Colour::none);
  EXPECT_EQ(parse_enum<Colour>("colour", "green"), Colour::green);
  try {
    parse_enum<Colour>("colour", "blue");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "colour is 'blue', but must be one of: \"\", red, green");
  }
}

}  // namespace
}  // namespace concord
