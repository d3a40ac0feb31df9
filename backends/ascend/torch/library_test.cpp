// The libtorch side of the ascend plugin without libtorch, torch_npu or Python: what it loads, in which order, and what
// it says where something does not fit. With all of them it is tested on the simulated CANN (sim_npu_network).
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "platform/abi/torch.h"

namespace {
int initialised_device = -1;
}  // namespace

// What the C++ build of torch_npu exports; the program exports its own symbols, so the library finds this one.
namespace torch_npu {
__attribute__((visibility("default"), used)) void init_npu(int8_t device) { initialised_device = device; }
}  // namespace torch_npu

namespace concord {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A folder of packages as pip makes it, with empty libraries.
class TorchLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    initialised_device = -1;
    void* const library = dlopen(CONCORD_TEST_LIBRARY, RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    open_ = reinterpret_cast<concord_torch_library_open_function>(dlsym(library, CONCORD_TORCH_LIBRARY_ENTRY));
    ASSERT_NE(open_, nullptr);
    char name[] = "/tmp/concord-torch-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  static void write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  // A wheel's torch for |python|; returns the folder of its libraries.
  fs::path wheel(const std::string& python, const std::string& torch, const std::string& torch_npu) const {
    const fs::path packages = root_ / "lib" / python / "site-packages";
    write(packages / "torch/version.py", "__version__ = '" + torch + "'\n");
    write(packages / "torch_npu/version.py", "__version__ = '" + torch_npu + "'\n");
    write(packages / "torch/lib/libtorch_python.so", "");
    return packages / "torch/lib";
  }

  // Opens the library for |folder|; returns its words, "" if it has none.
  std::string open(const fs::path& folder) {
    const std::string text = folder.string();
    const concord_torch_host host = {sizeof host, 0, text.c_str(), this, &TorchLibrary::load};
    const char* words = open_(&host);
    return words != nullptr ? words : "";
  }

  static const char* load(void* self, const char* name) {
    auto* const test = static_cast<TorchLibrary*>(self);
    test->loaded_.emplace_back(name);
    return test->refusal_.empty() ? nullptr : test->refusal_.c_str();
  }

  concord_torch_library_open_function open_ = nullptr;
  fs::path root_;
  std::vector<std::string> loaded_;
  std::string refusal_;
};

TEST_F(TorchLibrary, OfTheCppBuildIsLoadedAndInitialisedWithoutPython) {
  write(root_ / "libtorch/lib/libtorch_cpu.so", "");
  EXPECT_EQ(open(root_ / "libtorch/lib"), "");
  std::vector<std::string> wanted = {"libtorch_npu.so"};
  if (const std::string operators = CONCORD_TEST_OPERATORS; !operators.empty()) wanted.push_back(operators);
  EXPECT_THAT(loaded_, ElementsAreArray(wanted));  // the kernels last: they need what torch_npu registers
  EXPECT_EQ(initialised_device, 0);
}

TEST_F(TorchLibrary, SaysWhichVersionsFitWhereItCannotBeLoaded) {
  refusal_ = "cannot load libtorch_npu.so; tried: nowhere";
  EXPECT_THAT(open(root_ / "libtorch/lib"), AllOf(HasSubstr(refusal_), HasSubstr("torch_npu 2.13.0 for torch 2.13.0")));
  EXPECT_EQ(initialised_device, -1);
}

TEST_F(TorchLibrary, RefusesAWheelOfAnotherVersionBeforeLoadingIt) {
  EXPECT_THAT(open(wheel("python3.11", "2.13.0+cpu", "2.14.0")),
              HasSubstr("torch_npu 2.14.0 does not match torch 2.13.0: "));
  EXPECT_THAT(loaded_, IsEmpty());
}

TEST_F(TorchLibrary, RefusesVersionsWhoseStreamsHaveNoHandleByName) {
  const auto supported = HasSubstr("Concord needs torch_npu 2.13 or later");
  EXPECT_THAT(open(wheel("python3.11", "2.13.0+cpu", "2.12.0")),
              AllOf(HasSubstr("torch_npu 2.12.0 is too old for Ascend devices: "), supported));
  EXPECT_THAT(open(wheel("python3.11", "2.9.1", "2.9.0")),
              AllOf(HasSubstr("torch 2.9.1 is too old for Ascend devices: "), supported));
  write(root_ / "libtorch/build-version", "2.12.0+cpu\n");
  EXPECT_THAT(open(root_ / "libtorch/lib"), AllOf(HasSubstr("torch 2.12.0 is too old"), supported));
  EXPECT_THAT(loaded_, IsEmpty());
}

TEST_F(TorchLibrary, SaysWhichPythonIsMissingAndWhereItLooked) {
  write(root_ / "pyvenv.cfg", "home = /opt/nowhere/bin\nversion = 3.99.0\n");
  EXPECT_THAT(open(wheel("python3.99", "2.13.0", "2.13.0")),
              AllOf(HasSubstr("\n  libpython3.99.so.1.0: "), HasSubstr("\n  /opt/nowhere/lib/libpython3.99.so.1.0: "),
                    HasSubstr("apt-get install libpython3.99")));
  EXPECT_THAT(loaded_, IsEmpty());
}

TEST_F(TorchLibrary, SaysThatAWheelOutsideOfAPythonCannotBeUsed) {
  EXPECT_THAT(open(wheel("elsewhere", "2.13.0", "2.13.0")), HasSubstr("cannot determine which Python the torch in"));
}

TEST_F(TorchLibrary, RefusesAnUnknownWayToMeetPython) {
  ::setenv("CONCORD_ASCEND_PYTHON", "maybe", 1);
  EXPECT_THAT(open(wheel("python3.99", "2.13.0", "2.13.0")),
              HasSubstr("CONCORD_ASCEND_PYTHON is 'maybe'; it must be import or stub"));
  ::unsetenv("CONCORD_ASCEND_PYTHON");
}

}  // namespace
}  // namespace concord
