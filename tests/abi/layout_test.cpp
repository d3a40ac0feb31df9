// The layout of 1.0 is checked by compiling layout_1_0.h, here as C++20 and in layout_as_c.c as C11.
#include "tests/abi/layout_1_0.h"

#include <gtest/gtest.h>

#include <string>

#include "platform/loader/slots.h"

extern "C" int concord_layout_holds_in_c(void);

namespace {

using namespace concord::loader;

TEST(Layout, HeadersCompileAsC11AndAsCpp20WithTheFrozenOffsets) { EXPECT_EQ(concord_layout_holds_in_c(), 1); }

template <class Table>
void expect_slots_in_order() {
  size_t expected = sizeof(concord_table_header) + sizeof(void*);
  TableTraits<Table>::for_each_slot([&]<auto Member>(Slot<Member>) {
    EXPECT_EQ(Slot<Member>::kInfo.offset, expected) << Slot<Member>::kInfo.full_name;
    EXPECT_STREQ(Slot<Member>::kInfo.table, TableTraits<Table>::kName);
    expected += sizeof(void*);
  });
  EXPECT_EQ(expected, sizeof(Table));
}

TEST(Layout, SlotListsFollowTheOrderOfTheTables) {
  Tables tables{};
  tables.for_each([]<class Table>(Table&) { expect_slots_in_order<Table>(); });
  expect_slots_in_order<concord_graph_table>();
  expect_slots_in_order<concord_profiler_table>();
  expect_slots_in_order<concord_activity_table>();
}

TEST(Layout, ListsNameTheTablesAsTheHeadersDo) {
  EXPECT_STREQ(TableTraits<concord_device_table>::kName, CONCORD_DEVICE_TABLE);
  EXPECT_STREQ(TableTraits<concord_memory_table>::kName, CONCORD_MEMORY_TABLE);
  EXPECT_STREQ(TableTraits<concord_stream_table>::kName, CONCORD_STREAM_TABLE);
  EXPECT_STREQ(TableTraits<concord_event_table>::kName, CONCORD_EVENT_TABLE);
  EXPECT_STREQ(TableTraits<concord_comm_table>::kName, CONCORD_COMM_TABLE);
  EXPECT_STREQ(TableTraits<concord_rng_table>::kName, CONCORD_RNG_TABLE);
  EXPECT_STREQ(TableTraits<concord_graph_table>::kName, CONCORD_GRAPH_TABLE);
  EXPECT_STREQ(TableTraits<concord_profiler_table>::kName, CONCORD_PROFILER_TABLE);
  EXPECT_STREQ(TableTraits<concord_activity_table>::kName, CONCORD_ACTIVITY_TABLE);
}

}  // namespace
