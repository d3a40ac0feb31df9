// The rules of the simulated operator library, by its C functions: which calls are refused, with which code and
// message, and that an operator keeps what it was given. What operators compute is tested through torch_npu
// (sim/tests).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "backends/ascend/sim/runtime/acl/acl.h"

struct aclTensor;
struct aclScalar;
struct aclTensorList;
struct aclOpExecutor;

extern "C" {
aclTensor* aclCreateTensor(const int64_t*, uint64_t, int32_t, const int64_t*, int64_t, int32_t, const int64_t*,
                           uint64_t, void*);
aclScalar* aclCreateScalar(void*, int32_t);
aclTensorList* aclCreateTensorList(const aclTensor* const*, uint64_t);
int aclDestroyTensor(const aclTensor*);
int aclDestroyScalar(const aclScalar*);
int aclDestroyTensorList(const aclTensorList*);
int aclDestroyAclOpExecutor(aclOpExecutor*);
int aclGetViewShape(const aclTensor*, int64_t**, uint64_t*);
int aclnnMulsGetWorkspaceSize(const aclTensor*, const aclScalar*, aclTensor*, uint64_t*, aclOpExecutor**);
int aclnnMuls(void*, uint64_t, aclOpExecutor*, void*);
int aclnnNegGetWorkspaceSize(const aclTensor*, aclTensor*, uint64_t*, aclOpExecutor**);
int aclnnNeg(void*, uint64_t, aclOpExecutor*, void*);
int aclnnMmGetWorkspaceSize(const aclTensor*, const aclTensor*, aclTensor*, int8_t, uint64_t*, aclOpExecutor**);
int aclnnMm(void*, uint64_t, aclOpExecutor*, void*);
int aclnnInplaceNegGetWorkspaceSize(aclTensor*, uint64_t*, aclOpExecutor**);
int aclnnInplaceNeg(void*, uint64_t, aclOpExecutor*, void*);
int aclnnNonzeroGetWorkspaceSize(const aclTensor*, aclTensor*, uint64_t*, aclOpExecutor**);
int aclnnNonzero(void*, uint64_t, aclOpExecutor*, void*);
int aclnnLinalgCrossGetWorkspaceSize(const aclTensor*, const aclTensor*, int64_t, aclTensor*, uint64_t*,
                                     aclOpExecutor**);
}

namespace concord::ascend::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kNd = 2;
constexpr int kNull = 161001;
constexpr int kInvalid = 161002;
constexpr int kNoKernel = 561112;

// A device, a stream and 64 floats on it, which begin 0, 1, 2, ...
class Opapi : public ::testing::Test {
 protected:
  static constexpr int64_t kCount = 64;

  void SetUp() override {
    const int code = aclInit(nullptr);
    ASSERT_TRUE(code == 0 || code == abi::kAclRepeatInitialize) << code;
    ASSERT_EQ(aclrtSetDevice(0), 0);
    ASSERT_EQ(aclrtCreateStream(&stream_), 0);
    ASSERT_EQ(aclrtMalloc(&memory_, kBytes, abi::kMallocHugeFirst), 0);
    std::vector<float> values(kCount);
    std::iota(values.begin(), values.end(), 0.0F);
    ASSERT_EQ(aclrtMemcpy(memory_, kBytes, values.data(), kBytes, abi::kMemcpyHostToDevice), 0);
    aclGetRecentErrMsg();
  }
  void TearDown() override {
    aclrtDestroyStreamForce(stream_);
    EXPECT_EQ(aclrtFree(memory_), 0);
  }

  aclTensor* tensor(const std::vector<int64_t>& sizes, int64_t offset = 0, int32_t dtype = 0, int32_t format = kNd,
                    const int64_t* strides = nullptr) {
    return aclCreateTensor(sizes.data(), sizes.size(), dtype, strides, offset, format, sizes.data(), sizes.size(),
                           memory_);
  }
  static aclScalar* scalar(float value) { return aclCreateScalar(&value, 0); }

  std::vector<float> values(int64_t count) {
    std::vector<float> read(static_cast<size_t>(count));
    const size_t bytes = read.size() * sizeof(float);
    EXPECT_EQ(aclrtMemcpy(read.data(), bytes, memory_, bytes, abi::kMemcpyDeviceToHost), 0);
    return read;
  }

  static constexpr size_t kBytes = kCount * sizeof(float);
  void* stream_ = nullptr;
  void* memory_ = nullptr;
  uint64_t workspace_ = 1;
  aclOpExecutor* executor_ = nullptr;
};

TEST_F(Opapi, AnOperatorKeepsItsArgumentsAfterTheyWereDestroyed) {
  const int64_t every_second[] = {2};
  aclTensor* in = tensor({4}, 1, 0, kNd, every_second);  // 1, 3, 5, 7
  aclTensor* out = tensor({4}, 0);
  aclScalar* ten = scalar(10);
  ASSERT_EQ(aclnnMulsGetWorkspaceSize(in, ten, out, &workspace_, &executor_), 0);
  EXPECT_EQ(aclDestroyTensor(in), 0);
  EXPECT_EQ(aclDestroyTensor(out), 0);
  EXPECT_EQ(aclDestroyScalar(ten), 0);
  ASSERT_EQ(aclnnMuls(nullptr, workspace_, executor_, stream_), 0);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), 0);
  EXPECT_THAT(values(5), ElementsAre(10, 30, 50, 70, 4));
}

TEST_F(Opapi, RefusesNullWhereAnArgumentIsRequired) {
  aclTensor* in = tensor({4});
  EXPECT_EQ(aclnnNegGetWorkspaceSize(in, nullptr, &workspace_, &executor_), kNull);
  EXPECT_THAT(aclGetRecentErrMsg(), AllOf(HasSubstr("aclnnNeg"), HasSubstr("a required aclTensor is null")));
  EXPECT_EQ(aclnnNegGetWorkspaceSize(in, in, &workspace_, nullptr), kNull);
  aclDestroyTensor(in);
}

TEST_F(Opapi, RefusesADestroyedObjectAndOneOfAnotherKind) {
  aclTensor* in = tensor({4});
  aclTensor* gone = tensor({4});
  aclScalar* one = scalar(1);
  ASSERT_EQ(aclDestroyTensor(gone), 0);
  EXPECT_EQ(aclDestroyTensor(gone), kInvalid);
  EXPECT_EQ(aclnnNegGetWorkspaceSize(in, gone, &workspace_, &executor_), kInvalid);
  EXPECT_EQ(aclnnNegGetWorkspaceSize(in, reinterpret_cast<aclTensor*>(one), &workspace_, &executor_), kInvalid);
  EXPECT_THAT(aclGetRecentErrMsg(),
              AllOf(HasSubstr("scalar float32 1"), HasSubstr("where a live aclTensor is expected")));
  EXPECT_EQ(aclDestroyScalar(reinterpret_cast<aclScalar*>(in)), kInvalid);
  aclDestroyTensor(in);
  aclDestroyScalar(one);
}

TEST_F(Opapi, AListOwnsItsElements) {
  const aclTensor* elements[] = {tensor({1}), tensor({2})};
  aclTensorList* list = aclCreateTensorList(elements, 2);
  EXPECT_EQ(aclDestroyTensorList(list), 0);
  EXPECT_EQ(aclDestroyTensor(elements[0]), kInvalid);
}

TEST_F(Opapi, RefusesTypesAndFormatsThatItDoesNotKnow) {
  aclTensor* in = tensor({4});
  aclTensor* strange = tensor({4}, 0, 77);
  aclTensor* tiled = tensor({4}, 0, 0, 29);
  EXPECT_EQ(aclnnNegGetWorkspaceSize(in, strange, &workspace_, &executor_), kInvalid);
  EXPECT_THAT(aclGetRecentErrMsg(), HasSubstr("data type 77"));
  EXPECT_EQ(aclnnNegGetWorkspaceSize(in, tiled, &workspace_, &executor_), kInvalid);
  EXPECT_THAT(aclGetRecentErrMsg(), HasSubstr("format 29"));
  for (aclTensor* each : {in, strange, tiled}) aclDestroyTensor(each);
}

TEST_F(Opapi, AnExecutorIsUsedOnceAndByItsOwnOperator) {
  aclTensor* in = tensor({4});
  ASSERT_EQ(aclnnNegGetWorkspaceSize(in, in, &workspace_, &executor_), 0);
  aclOpExecutor* const used = executor_;
  ASSERT_EQ(aclnnNeg(nullptr, 0, used, stream_), 0);
  EXPECT_EQ(aclnnNeg(nullptr, 0, used, stream_), kInvalid);
  EXPECT_EQ(aclnnNeg(nullptr, 0, nullptr, stream_), kNull);
  ASSERT_EQ(aclnnNegGetWorkspaceSize(in, in, &workspace_, &executor_), 0);
  EXPECT_EQ(aclnnMuls(nullptr, 0, executor_, stream_), kInvalid);
  EXPECT_THAT(aclGetRecentErrMsg(), HasSubstr("given the executor of aclnnNeg"));
  ASSERT_EQ(aclnnNegGetWorkspaceSize(in, in, &workspace_, &executor_), 0);
  EXPECT_EQ(aclDestroyAclOpExecutor(executor_), 0);
  EXPECT_EQ(aclDestroyAclOpExecutor(executor_), kInvalid);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), 0);
  EXPECT_THAT(values(3), ElementsAre(0, -1, -2));  // once
  aclDestroyTensor(in);
}

TEST_F(Opapi, AWrongShapeFailsOnTheStreamAndWritesNothing) {
  aclTensor* in = tensor({4}, 1);
  aclTensor* out = tensor({3});
  ASSERT_EQ(aclnnNegGetWorkspaceSize(in, out, &workspace_, &executor_), 0);
  ASSERT_EQ(aclnnNeg(nullptr, 0, executor_, stream_), 0);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), abi::kRtAicoreException);
  EXPECT_THAT(aclGetRecentErrMsg(),
              AllOf(HasSubstr("aclnnNeg"), HasSubstr("the result is [4], but the output is [3]")));
  EXPECT_THAT(values(3), ElementsAre(0, 1, 2));
  aclDestroyTensor(in);
  aclDestroyTensor(out);
}

TEST_F(Opapi, ATensorBeyondItsAllocationFailsOnTheStream) {
  aclTensor* in = tensor({kCount * 1024});
  ASSERT_EQ(aclnnNegGetWorkspaceSize(in, in, &workspace_, &executor_), 0);
  ASSERT_EQ(aclnnNeg(nullptr, 0, executor_, stream_), 0);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), abi::kRtAicoreException);
  EXPECT_THAT(aclGetRecentErrMsg(), AllOf(HasSubstr("aclnnNeg"), HasSubstr("tensor float32[65536]")));
  aclDestroyTensor(in);
}

// How often an operator has run, and the bytes that it read and wrote.
std::vector<int64_t> work_of(const char* name) {
  std::vector<int64_t> work(3);
  work[0] = concord_sim_work_of(name, &work[1], &work[2]);
  return work;
}

TEST_F(Opapi, CountsTheBytesOfItsTensors) {
  const std::vector<int64_t> muls = work_of("aclnnMuls"), neg = work_of("aclnnInplaceNeg");
  const int64_t repeated[] = {0};
  aclTensor* in = tensor({4}, 5, 0, kNd, repeated);
  aclTensor* out = tensor({4});
  aclScalar* two = scalar(2);
  ASSERT_EQ(aclnnMulsGetWorkspaceSize(in, two, out, &workspace_, &executor_), 0);
  ASSERT_EQ(aclnnMuls(nullptr, 0, executor_, stream_), 0);
  ASSERT_EQ(aclnnInplaceNegGetWorkspaceSize(out, &workspace_, &executor_), 0);
  ASSERT_EQ(aclnnInplaceNeg(nullptr, 0, executor_, stream_), 0);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), 0);
  EXPECT_THAT(values(4), ElementsAre(-10, -10, -10, -10));
  EXPECT_THAT(work_of("aclnnMuls"), ElementsAre(muls[0] + 1, muls[1] + 4, muls[2] + 16));
  EXPECT_THAT(work_of("aclnnInplaceNeg"), ElementsAre(neg[0] + 1, neg[1] + 16, neg[2] + 16));
  aclDestroyTensor(in);
  aclDestroyTensor(out);
  aclDestroyScalar(two);
}

TEST_F(Opapi, CountsTheOperationsOfItsProducts) {
  const double before = concord_sim_product_flops_of("aclnnMm"), neg = concord_sim_product_flops_of("aclnnNeg");
  aclTensor* a = tensor({2, 3});
  aclTensor* b = tensor({3, 5});
  aclTensor* out = tensor({2, 5});
  ASSERT_EQ(aclnnMmGetWorkspaceSize(a, b, out, 0, &workspace_, &executor_), 0);
  ASSERT_EQ(aclnnMm(nullptr, 0, executor_, stream_), 0);
  ASSERT_EQ(aclnnNegGetWorkspaceSize(a, a, &workspace_, &executor_), 0);
  ASSERT_EQ(aclnnNeg(nullptr, 0, executor_, stream_), 0);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), 0);
  EXPECT_EQ(concord_sim_product_flops_of("aclnnMm") - before, 2 * 2 * 3 * 5);
  EXPECT_EQ(concord_sim_product_flops_of("aclnnNeg"), neg);
  for (aclTensor* each : {a, b, out}) aclDestroyTensor(each);
}

TEST_F(Opapi, TellsTheSizeOfAResultThatDependsOnValues) {
  aclTensor* in = tensor({4});  // 0, 1, 2, 3: three are not zero
  void* room = nullptr;
  ASSERT_EQ(aclrtMalloc(&room, 4 * sizeof(int64_t), abi::kMallocHugeFirst), 0);
  const int64_t largest[] = {4, 1};
  aclTensor* out = aclCreateTensor(largest, 2, abi::kAclInt64, nullptr, 0, kNd, largest, 2, room);
  ASSERT_EQ(aclnnNonzeroGetWorkspaceSize(in, out, &workspace_, &executor_), 0);
  ASSERT_EQ(aclnnNonzero(nullptr, 0, executor_, stream_), 0);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), 0);
  int64_t* sizes = nullptr;
  uint64_t dims = 0;
  ASSERT_EQ(aclGetViewShape(out, &sizes, &dims), 0);
  EXPECT_EQ((std::vector<int64_t>(sizes, sizes + dims)), (std::vector<int64_t>{3, 1}));
  delete[] sizes;
  aclDestroyTensor(in);
  aclDestroyTensor(out);
  EXPECT_EQ(aclrtFree(room), 0);
}

TEST_F(Opapi, AnOperatorThatIsNotThereNamesItselfAndItsArguments) {
  aclTensor* a = tensor({2, 3});
  aclTensor* b = tensor({2, 3}, 6);
  uint64_t workspace = 0;  // on the stack, as in callers: this is how the end of the arguments is found
  aclOpExecutor* executor = nullptr;
  EXPECT_EQ(aclnnLinalgCrossGetWorkspaceSize(a, b, -1, a, &workspace, &executor), kNoKernel);
  EXPECT_THAT(aclGetRecentErrMsg(),
              AllOf(HasSubstr("aclnnLinalgCross: not simulated"),
                    HasSubstr("(tensor float32[2,3], tensor float32[2,3], -1, tensor float32[2,3])")));
  aclDestroyTensor(a);
  aclDestroyTensor(b);
}

}  // namespace
}  // namespace concord::ascend::sim
