// How programs find the libraries: one instance whichever way it is loaded, and folders with more or fewer symbols.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "backends/ascend/sim/runtime/acl/acl.h"

namespace concord::ascend::sim {
namespace {

void* load(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << ::dlerror();
  return library;
}

// torch_npu links the library, the plugin loads it by name: both have to speak to the same devices.
TEST(LoadingTest, LinkedAndLoadedIsOneInstance) {
  const auto* linked = reinterpret_cast<void*>(&aclInit);
  EXPECT_EQ(::dlsym(load("libascendcl.so"), "aclInit"), linked);
  EXPECT_EQ(::dlsym(load(CANN_SIM_DIR "/libacl_rt.so"), "aclInit"), linked);
  EXPECT_EQ(::dlsym(load(CANN_SIM_DIR "/libhccl.so"), "aclInit"), linked);
}

TEST(LoadingTest, TheOlderFolderLacksWhatCameLater) {
  void* whole = load(CANN_SIM_DIR "/libascendcl.so");
  void* older = ::dlmopen(LM_ID_NEWLM, CANN_SIM_OLD_DIR "/libascendcl.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(older, nullptr) << ::dlerror();
  for (const char* name : {"aclrtLaunchHostFunc", "aclmdlRICaptureBegin", "aclsysGetCANNVersion"}) {
    EXPECT_NE(::dlsym(whole, name), nullptr) << name;
    EXPECT_EQ(::dlsym(older, name), nullptr) << name;
  }
  for (const char* name : {"aclInit", "aclrtMalloc", "concord_sim_label"})
    EXPECT_NE(::dlsym(older, name), nullptr) << name;
}

TEST(LoadingTest, NothingButTheVendorsNamesAndOurOwnIsExported) {
  void* library = load(CANN_SIM_DIR "/libhccl.so");
  EXPECT_NE(::dlsym(library, "HcclAllReduce"), nullptr);
  EXPECT_EQ(::dlsym(library, "_ZN7concord3shm16create_unique_idEPvl"), nullptr);
}

}  // namespace
}  // namespace concord::ascend::sim
