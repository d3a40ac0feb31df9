#include "platform/layers/fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "platform/loader/error.h"
#include "tests/abi/sample_tables.h"

namespace concord::layers {
namespace {

using sample::call;
using testing::AllOf;
using testing::HasSubstr;

class FaultLayer : public testing::Test {
 protected:
  loader::Tables with(const std::string& spec) {
    layer_ = std::make_unique<Fault>(sample::tables_of(plugin_), parse_fault(spec));
    return interpose(layer_.get());
  }
  static concord_status set_current(const loader::Tables& tables, int32_t device) {
    return call<&concord_device_table::set_current>(tables, device).status;
  }

  sample::Plugin plugin_{{"sample", -1, 4}};
  std::unique_ptr<Fault> layer_;
};

TEST_F(FaultLayer, NthCallFailsWithTheStatusAndSaysThatItWasInjected) {
  const loader::Tables tables = with("device.count@2=UNAVAILABLE");
  int32_t count = 0;
  EXPECT_EQ(call<&concord_device_table::count>(tables, &count).status, CONCORD_STATUS_OK);
  count = -7;
  const sample::Answer second = call<&concord_device_table::count>(tables, &count);
  EXPECT_EQ(second.status, CONCORD_STATUS_UNAVAILABLE);
  EXPECT_EQ(second.detail, "injected by the fault layer into call 2 of device.count");
  EXPECT_EQ(count, -7) << "the call was not made";
  EXPECT_EQ(call<&concord_device_table::count>(tables, &count).status, CONCORD_STATUS_OK);
  EXPECT_EQ(count, 4);
}

TEST_F(FaultLayer, StarMeetsEveryCallOfThatSlotAndNoOther) {
  const loader::Tables tables = with("device.set_current@*=TIMEOUT");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(set_current(tables, 1), CONCORD_STATUS_TIMEOUT);
  int32_t device = -1;
  EXPECT_EQ(call<&concord_device_table::get_current>(tables, &device).status, CONCORD_STATUS_OK);
}

TEST_F(FaultLayer, DroppedCallReturnsOkAndDoesNothing) {
  const loader::Tables tables = with("device.set_current@2=drop");
  int32_t device = -1;
  EXPECT_EQ(set_current(tables, 1), CONCORD_STATUS_OK);
  EXPECT_EQ(set_current(tables, 3), CONCORD_STATUS_OK);
  EXPECT_EQ(call<&concord_device_table::get_current>(tables, &device).status, CONCORD_STATUS_OK);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(set_current(tables, 0), CONCORD_STATUS_OK);
}

TEST_F(FaultLayer, DelayedCallIsMadeAfterAtLeastThatTime) {
  const loader::Tables tables = with("device.count@*=delay:20ms");
  int32_t count = 0;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(call<&concord_device_table::count>(tables, &count).status, CONCORD_STATUS_OK);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  EXPECT_EQ(count, 4);
}

TEST_F(FaultLayer, SeveralRulesOfOneSlotCountTheSameCalls) {
  const loader::Tables tables = with(" device.set_current@1=ABORTED ; device.set_current@3=PEER_LOST; ");
  EXPECT_EQ(set_current(tables, 0), CONCORD_STATUS_ABORTED);
  EXPECT_EQ(set_current(tables, 0), CONCORD_STATUS_OK);
  EXPECT_EQ(set_current(tables, 0), CONCORD_STATUS_PEER_LOST);
}

TEST_F(FaultLayer, DelaysTakeMicrosecondsMillisecondsAndSeconds) {
  EXPECT_EQ(parse_fault("comm.barrier@1=delay:5us")[0].delay, std::chrono::microseconds(5));
  EXPECT_EQ(parse_fault("comm.barrier@1=delay:5ms")[0].delay, std::chrono::milliseconds(5));
  EXPECT_EQ(parse_fault("comm.barrier@1=delay:5s")[0].delay, std::chrono::seconds(5));
}

class BadFaultSpec : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(BadFaultSpec, IsRefusedWithItsReasonAndTheGrammar) {
  try {
    parse_fault(GetParam().first);
    FAIL() << GetParam().first;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(GetParam().second), HasSubstr("TABLE.SLOT@N=ACTION")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, BadFaultSpec,
    testing::Values(std::pair{"", "there is no rule in it"}, std::pair{" ; ", "there is no rule in it"},
                    std::pair{"all_reduce", "it is not of the form"},
                    std::pair{"comm.all_reduce=TIMEOUT", "it is not of the form"},
                    std::pair{"comm.all_reduce@1", "it is not of the form"},
                    std::pair{"comm.all_redcue@1=TIMEOUT", "there is no slot 'comm.all_redcue'; this table has"},
                    std::pair{"wire.cut@1=TIMEOUT", "there is no slot 'wire.cut'; the tables are device, memory"},
                    std::pair{"comm.barrier@0=TIMEOUT", "the number of the call is '0'"},
                    std::pair{"comm.barrier@-1=TIMEOUT", "the number of the call is '-1'"},
                    std::pair{"comm.barrier@two=TIMEOUT", "the number of the call is 'two'"},
                    std::pair{"comm.barrier@1=SLEEPY", "there is no action 'SLEEPY'"},
                    std::pair{"comm.barrier@1=OK", "there is no action 'OK'; it must be one of drop"},
                    std::pair{"comm.barrier@1=delay:5", "the delay is '5'"},
                    std::pair{"comm.barrier@1=delay:ms", "the delay is ''"},
                    std::pair{"comm.barrier@1=delay:-5ms", "the delay is '-5'"}));

}  // namespace
}  // namespace concord::layers
