// Finding NCCL, and the errors if it is missing, too old, too new, or a different library.
#include "backends/cuda/nccl/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace concord::cuda {
namespace {

using testing::HasSubstr;

std::string configured;

const concord_host* host() {
  static const concord_host value = {
      {sizeof(concord_host), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
      nullptr,
      [](void*, const char*) {},
      [](void*, concord_log_level, const char*) {},
      [](void*, const char* name) -> const char* {
        return std::string(name) == "cuda.nccl" && !configured.empty() ? configured.c_str() : nullptr;
      },
  };
  return &value;
}

// A code as a library may return it, whether or not the header names it.
ncclResult_t code_of(int number) {
  ncclResult_t code = ncclSuccess;
  static_assert(sizeof code == sizeof number);
  std::memcpy(&code, &number, sizeof code);
  return code;
}

// The failure of loading with cuda.nccl set to |path|.
sdk::Failure failure_with(const std::string& path) {
  sdk::host_slot() = host();
  configured = path;
  try {
    load_nccl();
  } catch (const sdk::Failure& failure) {
    return failure;
  }
  return {CONCORD_STATUS_OK, "it was loaded"};
}

TEST(Nccl, IsLoadedFromTheConfiguredPathWithItsVersion) {
  sdk::host_slot() = host();
  configured = FAKE_NCCL_PATH;
  const Nccl nccl = load_nccl();
  EXPECT_EQ(nccl.version, NCCL_VERSION_CODE);
  EXPECT_THAT(nccl.path, HasSubstr("fake_nccl"));
  EXPECT_NE(nccl.ncclAllReduce, nullptr);
  EXPECT_NE(nccl.ncclCommRevoke, nullptr);
}

TEST(Nccl, ThatIsMissingIsUnavailableWithThePlaceAndTheLinkersWords) {
  const sdk::Failure failure = failure_with("/nowhere/libnccl.so.2");
  EXPECT_EQ(failure.status(), CONCORD_STATUS_UNAVAILABLE);
  EXPECT_THAT(failure.what(), HasSubstr("tried /nowhere/libnccl.so.2 ("));
  EXPECT_THAT(failure.what(), HasSubstr("cannot open shared object file"));
  EXPECT_THAT(failure.what(), HasSubstr("CONCORD_CUDA_NCCL"));
}

TEST(Nccl, ThatIsTooOldIsUnavailableWithItsVersion) {
  const sdk::Failure failure = failure_with(FAKE_NCCL_OLD);
  EXPECT_EQ(failure.status(), CONCORD_STATUS_UNAVAILABLE);
  EXPECT_THAT(failure.what(), HasSubstr("is NCCL 2.18.2; versions 2.19 to 2.30 are supported"));
}

TEST(Nccl, ThatIsTooNewIsUnavailableWithItsVersion) {
  EXPECT_THAT(failure_with(FAKE_NCCL_NEW).what(), HasSubstr("is NCCL 2.31.0; versions 2.19 to 2.30 are supported"));
}

TEST(Nccl, WithoutItsFunctionsIsUnavailableWithAllTheNames) {
  const sdk::Failure failure = failure_with(FAKE_NCCL_EMPTY);
  EXPECT_EQ(failure.status(), CONCORD_STATUS_UNAVAILABLE);
  EXPECT_THAT(failure.what(), HasSubstr("ncclGetUniqueId, ncclCommInitRankConfig"));
  EXPECT_THAT(failure.what(), HasSubstr("ncclGroupEnd"));
  EXPECT_THAT(failure.what(), Not(HasSubstr("ncclCommRevoke"))) << "it is optional";
}

TEST(Nccl, ThatIsSomethingElseIsUnavailable) {
  const sdk::Failure failure = failure_with("libm.so.6");
  EXPECT_EQ(failure.status(), CONCORD_STATUS_UNAVAILABLE);
  EXPECT_THAT(failure.what(), HasSubstr("is it NCCL?"));
}

TEST(Nccl, EveryResultThatIsNotSuccessIsAFailure) {
  EXPECT_EQ(status_of(ncclSuccess), CONCORD_STATUS_OK);
  EXPECT_EQ(status_of(ncclRemoteError), CONCORD_STATUS_PEER_LOST);
  EXPECT_EQ(status_of(ncclInvalidUsage), CONCORD_STATUS_INVALID_ARGUMENT);
  for (int code = 1; code < 100; ++code) {
    EXPECT_NE(status_of(code_of(code)), CONCORD_STATUS_OK) << code;
  }
}

TEST(Nccl, AnUnknownCodeIsToldByItsNumber) {
  sdk::host_slot() = host();
  configured = FAKE_NCCL_PATH;
  const Nccl nccl = load_nccl();
  EXPECT_THAT(describe(nccl, code_of(42), "ncclAllReduce", nullptr),
              HasSubstr("ncclAllReduce failed with 42, a code unknown to this plugin: the fake's words"));
}

}  // namespace
}  // namespace concord::cuda
