#include <gmock/gmock.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "backends/ascend/sim/profiler/mspti.h"
#include "backends/ascend/sim/profiler/mstx.h"
#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

using namespace abi;
using ::testing::ElementsAre;

std::vector<msptiActivityKernel> kernels;
std::vector<msptiActivityMemset> fills;
std::vector<msptiActivityMemcpy> copies;

// Buffers with room for two records.
void give_buffer(uint8_t** buffer, size_t* size, size_t* most) {
  *size = 2 * sizeof(msptiActivityKernel);
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *most = 0;
}

void take_buffer(uint8_t* buffer, size_t, size_t valid) {
  msptiActivity* record = nullptr;
  while (msptiActivityGetNextRecord(buffer, valid, &record) == kMsptiSuccess) {
    if (record->kind == kMsptiKernel) kernels.push_back(*reinterpret_cast<msptiActivityKernel*>(record));
    if (record->kind == kMsptiMemset) fills.push_back(*reinterpret_cast<msptiActivityMemset*>(record));
    if (record->kind == kMsptiMemcpy) copies.push_back(*reinterpret_cast<msptiActivityMemcpy*>(record));
  }
  std::free(buffer);
}

void queue_operator(void* stream, const char* name) {
  EXPECT_OK(launch(stream, name, [name]() -> int32_t {
    concord_sim_count_work(name, 8, 4);
    return 0;
  }));
}

class MsptiTest : public SimTest {
 protected:
  MsptiTest() {
    kernels.clear();
    fills.clear();
    copies.clear();
    EXPECT_EQ(msptiSubscribe(&subscriber_, nullptr, nullptr), kMsptiSuccess);
    EXPECT_EQ(msptiActivityRegisterCallbacks(give_buffer, take_buffer), kMsptiSuccess);
  }
  ~MsptiTest() override {
    for (const msptiActivityKind kind : {kMsptiKernel, kMsptiMemset, kMsptiMemcpy}) msptiActivityDisable(kind);
    EXPECT_EQ(msptiUnsubscribe(subscriber_), kMsptiSuccess);
  }
  msptiSubscriberHandle subscriber_ = nullptr;
};

TEST_F(MsptiTest, RecordsTheWorkOfEachEnabledKindWithItsStreamAndTimes) {
  TestStream stream, other;
  void* memory = device_memory(64);
  queue_operator(stream, "aclnnEarlier");
  ASSERT_OK(aclrtSynchronizeStream(stream));
  for (const msptiActivityKind kind : {kMsptiKernel, kMsptiMemset, kMsptiMemcpy}) {
    EXPECT_EQ(msptiActivityEnable(kind), kMsptiSuccess);
  }
  queue_operator(stream, "aclnnAdd");
  ASSERT_OK(aclrtSynchronizeStream(stream));
  queue_operator(other, "aclnnMul");
  ASSERT_OK(aclrtMemsetAsync(memory, 64, 0, 64, other));
  ASSERT_OK(aclrtSynchronizeStream(other));
  write_word(memory, 3);
  EXPECT_EQ(msptiActivityDisable(kMsptiKernel), kMsptiSuccess);
  queue_operator(stream, "aclnnLater");
  ASSERT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(msptiActivityFlushAll(0), kMsptiSuccess);

  int32_t id = 0, other_id = 0;
  ASSERT_OK(aclrtStreamGetId(stream, &id));
  ASSERT_OK(aclrtStreamGetId(other, &other_id));
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_STREQ(kernels[0].name, "aclnnAdd");
  EXPECT_STREQ(kernels[1].name, "aclnnMul");
  EXPECT_EQ(kernels[0].stream, static_cast<uint32_t>(id));
  EXPECT_EQ(kernels[1].stream, static_cast<uint32_t>(other_id));
  EXPECT_EQ(kernels[0].device, 0u);
  EXPECT_LE(kernels[0].start, kernels[0].end);
  EXPECT_LE(kernels[0].end, kernels[1].start);
  ASSERT_EQ(fills.size(), 1u);
  EXPECT_EQ(fills[0].bytes, 64u);
  EXPECT_GE(fills[0].start, kernels[1].end);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].stream, kMsptiNoStream);
  EXPECT_EQ(copies[0].is_async, 0);
}

TEST_F(MsptiTest, AReplayRecordsEachPieceOfItsWork) {
  TestStream stream;
  void* model = nullptr;
  ASSERT_OK(aclmdlRICaptureBegin(stream, kCaptureThreadLocal));
  queue_operator(stream, "aclnnAdd");
  queue_operator(stream, "aclnnMul");
  ASSERT_OK(aclmdlRICaptureEnd(stream, &model));
  EXPECT_EQ(msptiActivityEnable(kMsptiKernel), kMsptiSuccess);
  for (int i = 0; i < 2; ++i) ASSERT_OK(aclmdlRIExecuteAsync(model, stream));
  ASSERT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(msptiActivityFlushAll(0), kMsptiSuccess);
  std::vector<std::string> names;
  for (const msptiActivityKernel& each : kernels) names.emplace_back(each.name);
  EXPECT_THAT(names, ElementsAre("aclnnAdd", "aclnnMul", "aclnnAdd", "aclnnMul"));
  EXPECT_OK(aclmdlRIDestroy(model));
}

TEST_F(MsptiTest, HasOneSubscriberAndRefusesWhatIsNoKind) {
  msptiSubscriberHandle second = nullptr;
  EXPECT_NE(msptiSubscribe(&second, nullptr, nullptr), kMsptiSuccess);
  EXPECT_NE(msptiUnsubscribe(nullptr), kMsptiSuccess);
  EXPECT_NE(msptiActivityEnable(0), kMsptiSuccess);
  EXPECT_NE(msptiActivityRegisterCallbacks(nullptr, take_buffer), kMsptiSuccess);
}

TEST(Mstx, RecordsRangesAndMarksInOrder) {
  const mstxRangeId outer = mstxRangeStartA("micro-batch 0", nullptr);
  const mstxRangeId inner = mstxRangeStartA("layer 1", nullptr);
  mstxMarkA("here", nullptr);
  mstxRangeEnd(inner);
  mstxRangeEnd(outer);
  mstxRangeEnd(outer);
  EXPECT_EQ(mstxRangeStartA(nullptr, nullptr), 0u);
  EXPECT_STREQ(concord_sim_ranges(), "start 1 micro-batch 0\nstart 2 layer 1\nmark here\nend 2\nend 1\n");
}

}  // namespace
}  // namespace concord::ascend::sim::testing
