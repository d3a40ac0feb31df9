#include "backends/ascend/doctor/installation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "backends/ascend/torch/vendor_operators.h"
#include "platform/abi/doctor.h"

namespace concord::ascend {
namespace {

using ::testing::HasSubstr;

Installation whole() {
  return {.driver = "25.5.0",
          .firmware = "7.8.0.5.216",
          .cann = "9.0.0",
          .torch_npu = "2.13.0",
          .torch = "2.13.0+cpu",
          .devices = 8,
          .readable = true,
          .has_kernels = true,
          .is_sourced = true};
}

std::map<std::string, InstallationFinding> findings_of(const Installation& found) {
  std::map<std::string, InstallationFinding> findings;
  for (const InstallationFinding& each : judge(found)) findings[each.topic] = each;
  return findings;
}

TEST(AscendInstallation, ThatFitsTogetherHasNoProblems) {
  for (const auto& [topic, finding] : findings_of(whole())) {
    EXPECT_EQ(finding.kind, CONCORD_FINDING_FINE) << topic << ": " << finding.found;
    EXPECT_EQ(finding.advice, "") << topic;
  }
}

// Only the part that is wrong is a problem, with the version to install.
TEST(AscendInstallation, ThePartThatIsWrongIsTheOneThatIsNamed) {
  struct Case {
    const char *topic, *found, *advice;
    void (*spoil)(Installation&);
  };
  const Case cases[] = {
      {"devices", "no /dev/davinci0", "driver", [](Installation& i) { i.devices = 0; }},
      {"devices", "cannot open", "HwHiAiUser", [](Installation& i) { i.readable = false; }},
      {"driver", "not installed", "HDK", [](Installation& i) { i.driver = ""; }},
      {"driver", "24.1.rc3, older than CANN 9.0.0", "HDK 25.5", [](Installation& i) { i.driver = "24.1.rc3"; }},
      {"firmware", "not installed", "HDK", [](Installation& i) { i.firmware = ""; }},
      {"CANN", "not installed", "set_env.sh", [](Installation& i) { i.cann = ""; }},
      {"CANN", "8.0.RC3, but 8.1", "9.x", [](Installation& i) { i.cann = "8.0.RC3"; }},
      {"CANN", "8.5.0, which the plugin can use", "9.x", [](Installation& i) { i.cann = "8.5.0"; }},
      {"CANN", "ASCEND_HOME_PATH", "set_env.sh", [](Installation& i) { i.is_sourced = false; }},
      {"CANN's kernels", "not installed", "opp", [](Installation& i) { i.has_kernels = false; }},
      {"torch_npu", "not installed", "torch_npu==2.13.0", [](Installation& i) { i.torch_npu = ""; }},
      {"torch_npu", "2.12.0, older", "torch_npu==2.13.0", [](Installation& i) { i.torch_npu = "2.12.0"; }},
      {"torch_npu", "2.14.0 does not match", "torch_npu==2.13.0", [](Installation& i) { i.torch_npu = "2.14.0"; }},
      {"torch", "2.12.1, older", "torch==2.13.0",
       [](Installation& i) {
         i.torch = "2.12.1";
         i.torch_npu = "2.13.0";
       }},
  };
  for (const Case& each : cases) {
    Installation found = whole();
    each.spoil(found);
    const auto findings = findings_of(found);
    const InstallationFinding& finding = findings.at(each.topic);
    EXPECT_EQ(finding.kind, CONCORD_FINDING_PROBLEM) << each.topic << " " << each.found;
    EXPECT_THAT(finding.found, HasSubstr(each.found));
    EXPECT_THAT(finding.advice, HasSubstr(each.advice));
  }
}

// An older driver is enough for an older CANN.
TEST(AscendInstallation, TheDriverIsComparedWithTheCannThatIsInstalled) {
  Installation found = whole();
  found.cann = "8.2.RC1";
  found.driver = "25.2.0";
  EXPECT_EQ(findings_of(found).at("driver").kind, CONCORD_FINDING_FINE);
  found.driver = "25.0.RC1";
  EXPECT_THAT(findings_of(found).at("driver").advice, HasSubstr("HDK 25.2"));
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(AscendInstallation, IsFoundInItsFiles) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "ascend_installation";
  write(root / "etc/ascend_install.info", "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/Ascend\n");
  write(root / "opt/Ascend/driver/version.info", "Version=25.5.0\nascendhal_version=7.35.23\n");
  write(root / "opt/Ascend/firmware/version.info", "Version=7.8.0.5.216\n");
  write(root / "home/x86_64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=9.0.0\n");
  write(root / "home/opp/built-in/op_impl/ai_core/tbe/kernel/config/x", "");
  write(root / "packages/torch/version.py", "__version__ = '2.13.0+cpu'\ndebug = False\n");
  write(root / "packages/torch_npu/version.py", "__version__ = '2.13.0'\n");
  std::string library(1000, '\0');
  for (const char* name : kVendorOperators) library += std::string(name) + "(Tensor input) -> Tensor" + '\0';
  library.replace(library.find("npu_swiglu("), 4, "xxx_");
  write(root / "packages/torch_npu/lib/libtorch_npu.so", library);
  for (const char* device : {"davinci0", "davinci1", "davinci_manager"}) write(root / "dev" / device, "");
  const Installation found =
      find_installation({root.string(), (root / "home").string(), {(root / "packages").string()}});
  EXPECT_EQ(found.driver, "25.5.0");
  EXPECT_EQ(found.firmware, "7.8.0.5.216");
  EXPECT_EQ(found.cann, "9.0.0");
  EXPECT_TRUE(found.has_kernels);
  EXPECT_EQ(found.torch, "2.13.0+cpu");
  EXPECT_EQ(found.torch_npu, "2.13.0");
  EXPECT_EQ(found.devices, 2);
  EXPECT_THAT(found.missing_operators, ::testing::ElementsAre("npu_swiglu"));
  EXPECT_EQ(findings_of(found).at("operators").kind, CONCORD_FINDING_NOTE);
  EXPECT_THAT(findings_of(found).at("operators").found, HasSubstr("missing: npu_swiglu"));
  const Installation none = find_installation({(root / "empty").string(), "", {}});
  EXPECT_EQ(none.driver + none.firmware + none.cann + none.torch + none.torch_npu, "");
  EXPECT_EQ(none.devices, 0);
}

}  // namespace
}  // namespace concord::ascend
