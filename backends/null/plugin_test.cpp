// The null plugin through its C tables: it has every required slot, and reports that none of them does anything.
#include <gtest/gtest.h>

#include "platform/sdk/testing/test_host.hpp"

namespace concord::null {
namespace {

const sdk::TestHost& host() {
  static const sdk::TestHost opened(CONCORD_TEST_PLUGIN);
  return opened;
}

TEST(NullPlugin, OpensWithItsNameAndIsNeverChosenByItself) {
  ASSERT_EQ(host().status(), CONCORD_STATUS_OK) << sdk::TestHost::detail();
  EXPECT_STREQ(host().core().name, "null");
  EXPECT_LT(host().core().priority, 0);
  EXPECT_NE(host().core().torch_device_type, nullptr);
}

TEST(NullPlugin, ReportsNoDevice) {
  int32_t count = -1;
  EXPECT_EQ(host().device().count(host().device().self, &count), CONCORD_STATUS_OK);
  EXPECT_EQ(count, 0);
}

TEST(NullPlugin, SaysWhichSlotIsNotImplementedAndZeroesTheResult) {
  auto* stream = reinterpret_cast<concord_stream>(uintptr_t{1});
  EXPECT_EQ(host().stream().create(host().stream().self, 0, 0, &stream), CONCORD_STATUS_UNIMPLEMENTED);
  EXPECT_EQ(stream, nullptr);
  EXPECT_NE(sdk::TestHost::detail().find("stream.create"), std::string::npos) << sdk::TestHost::detail();
}

TEST(NullPlugin, RefusesANullPlaceForAResult) {
  EXPECT_EQ(host().device().count(host().device().self, nullptr), CONCORD_STATUS_INVALID_ARGUMENT);
}

TEST(NullPlugin, HasNoTableOfAnotherName) {
  EXPECT_EQ(host().plugin()->find_table(host().plugin()->self, "acme.power"), nullptr);
  EXPECT_EQ(host().plugin()->find_table(host().plugin()->self, nullptr), nullptr);
}

// All required slots between self and the end of the table: a loader rejects a table with a null one.
TEST(NullPlugin, FillsEveryRequiredSlot) {
  const auto& d = host().device();
  EXPECT_TRUE(d.count && d.info && d.set_current && d.get_current && d.synchronize);
  const auto& m = host().memory();
  EXPECT_TRUE(m.allocate && m.release && m.allocate_host && m.release_host && m.copy && m.copy_on_stream);
  EXPECT_TRUE(m.fill_on_stream && m.info && m.describe_pointer);
  const auto& s = host().stream();
  EXPECT_TRUE(s.create && s.destroy && s.synchronize && s.query && s.wait_event && s.priority_range);
  const auto& e = host().event();
  EXPECT_TRUE(e.create && e.destroy && e.record && e.query && e.synchronize);
  const auto& c = host().comm();
  EXPECT_TRUE(c.unique_id_size && c.unique_id_create && c.init && c.destroy && c.async_error && c.rank && c.size);
  EXPECT_TRUE(c.supports && c.all_reduce && c.reduce && c.broadcast && c.all_gather && c.reduce_scatter);
  EXPECT_TRUE(c.all_to_all && c.all_to_all_v && c.barrier && c.batch_p2p);
  EXPECT_TRUE(host().rng().fill);
}

}  // namespace
}  // namespace concord::null
