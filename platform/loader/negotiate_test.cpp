// Negotiation with hosts that do not exist yet: a table description with slots of later minors against plugins that
// were built before and after them.
#include "platform/loader/negotiate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "platform/loader/error.h"
#include "platform/loader/host.h"

namespace {

// The rng table of a possible version 1.2: an optional slot since 1.1 and a required one since 1.2.
struct FutureTable {
  concord_table_header header;
  void* self;
  concord_status (*fill)(void* self, const concord_rng_request* request, concord_stream stream);
  concord_status (*shuffle)(void* self, int64_t count);
  concord_status (*permute)(void* self, int64_t count, int32_t* out_order);
};

}  // namespace

namespace concord::loader {

#define FUTURE_SLOT(slot_, required_, since_, arguments_)                                                 \
  template <>                                                                                             \
  struct Slot<&FutureTable::slot_> {                                                                      \
    static constexpr SlotInfo kInfo{                                                                      \
        "future", #slot_, "future." #slot_, arguments_, required_, since_, offsetof(FutureTable, slot_)}; \
  };
FUTURE_SLOT(fill, true, 0, "request,stream")
FUTURE_SLOT(shuffle, false, 1, "count")
FUTURE_SLOT(permute, true, 2, "count,out_order")

template <>
struct TableTraits<FutureTable> {
  static constexpr const char* kName = "future";
  template <class Visitor>
  static constexpr void for_each_slot(Visitor&& visit) {
    visit(Slot<&FutureTable::fill>{});
    visit(Slot<&FutureTable::shuffle>{});
    visit(Slot<&FutureTable::permute>{});
  }
};

namespace {

using testing::HasSubstr;

constexpr Version kFutureHost{1, 2};

concord_status fill(void*, const concord_rng_request*, concord_stream) { return CONCORD_STATUS_OK; }
concord_status shuffle(void*, int64_t) { return CONCORD_STATUS_OK; }
concord_status permute(void*, int64_t, int32_t*) { return CONCORD_STATUS_OK; }

// A table whose maker knew it at |minor|, with the size it then had.
FutureTable table_of(uint16_t minor) {
  FutureTable table{};
  const size_t slots = minor == 0 ? 1 : minor == 1 ? 2 : 3;
  table.header = {static_cast<uint32_t>(16 + 8 * slots), 1, minor};
  table.fill = &fill;
  if (minor >= 1) table.shuffle = &shuffle;
  if (minor >= 2) table.permute = &permute;
  return table;
}

std::string why_not(const FutureTable& given, Version host = kFutureHost) {
  StubOwner owner("plugin 'old' (ABI 1.0)");
  FutureTable result{};
  try {
    negotiate_table(describe_table<FutureTable>(), &given.header, host, owner, &result);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), CONCORD_STATUS_ABI_MISMATCH);
    return error.what();
  }
  return "";
}

FutureTable negotiated(const FutureTable& given, Version host = kFutureHost) {
  StubOwner owner("plugin 'old' (ABI 1.0)");
  FutureTable result{};
  negotiate_table(describe_table<FutureTable>(), &given.header, host, owner, &result);
  return result;
}

TEST(Negotiate, OlderPluginUnderANewerHostGetsStubsForWhatCameLater) {
  const FutureTable table = negotiated(table_of(0));
  EXPECT_EQ(table.fill, &fill);
  int32_t order = 0;
  EXPECT_EQ(table.shuffle(table.self, 3), CONCORD_STATUS_UNIMPLEMENTED);
  EXPECT_EQ(take_error_detail(), "plugin 'old' (ABI 1.0) does not implement future.shuffle");
  EXPECT_EQ(table.permute(table.self, 3, &order), CONCORD_STATUS_UNIMPLEMENTED);
  EXPECT_EQ(take_error_detail(), "plugin 'old' (ABI 1.0) does not implement future.permute");
}

TEST(Negotiate, SlotsBehindTheSizeOfAnOlderPluginAreNeverRead) {
  FutureTable given = table_of(0);
  given.shuffle = reinterpret_cast<decltype(given.shuffle)>(uintptr_t{0x1234});  // not the plugin's: it ends before
  EXPECT_EQ(negotiated(given).shuffle(nullptr, 1), CONCORD_STATUS_UNIMPLEMENTED);
}

TEST(Negotiate, SlotIsRequiredOnlyOfPluginsThatKnowIt) {
  FutureTable given = table_of(2);
  given.permute = nullptr;
  EXPECT_THAT(why_not(given), HasSubstr("slot 'permute' is null, but version 1.2 requires it"));
  EXPECT_EQ(why_not(table_of(1)), "");
}

TEST(Negotiate, NewerPluginUnderAnOlderHostIsCutToWhatTheHostKnows) {
  FutureTable given = table_of(2);
  given.header.minor = 9;
  given.header.struct_size = 4096 - 8;  // far more than this host knows; what follows is not used
  const FutureTable table = negotiated(given);
  EXPECT_EQ(table.permute, &permute);
}

TEST(Negotiate, SizeThatItsVersionCannotHaveIsALie) {
  FutureTable given = table_of(1);
  given.header.struct_size = sizeof(FutureTable);
  EXPECT_THAT(why_not(given), HasSubstr("struct_size is 40 bytes, but version 1.1 of it has 32"));
}

TEST(Negotiate, OtherMajorsAreRefusedWithBothNumbersAndWhatToRebuild) {
  FutureTable given = table_of(2);
  given.header.major = 2;
  EXPECT_THAT(why_not(given), HasSubstr("ABI version 2.2, this program version 1.2; the major versions must be equal: "
                                        "rebuild the program"));
  given.header.major = 0;
  EXPECT_THAT(why_not(given), HasSubstr("rebuild the plugin"));
}

TEST(Negotiate, NullTableCannotBeRead) {
  StubOwner owner("plugin");
  FutureTable result{};
  EXPECT_THROW(negotiate_table(describe_table<FutureTable>(), nullptr, kFutureHost, owner, &result), Error);
}

TEST(Negotiate, ExtensionIsCompleteOrAbsent) {
  EXPECT_FALSE(negotiate_extension<FutureTable>(nullptr, "plugin 'x'").has_value());
  FutureTable given = table_of(0);
  const auto table = negotiate_extension<FutureTable>(&given.header, "plugin 'x' (ABI 1.0)");
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->shuffle(nullptr, 1), CONCORD_STATUS_UNIMPLEMENTED);
  EXPECT_THAT(take_error_detail(), HasSubstr("future.shuffle"));
}

TEST(Negotiate, ManyPluginsWithStubsShareTheLastNumberAndNameAllOfItsOwners) {
  size_t last = 0;
  for (int i = 0; i < 20; ++i) last = register_stub_owner("plugin '" + std::to_string(i) + "'");
  EXPECT_EQ(last, kStubOwners - 1);
  report_missing_slot(last, Slot<&FutureTable::shuffle>::kInfo);
  EXPECT_THAT(take_error_detail(), HasSubstr("plugin '19' does not implement future.shuffle"));
}

}  // namespace
}  // namespace concord::loader
