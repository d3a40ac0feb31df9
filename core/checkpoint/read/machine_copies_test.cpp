#include "core/checkpoint/read/machine_copies.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "core/base/config_error.h"
#include "core/checkpoint/manifest.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Copies = std::vector<MachineCopy>;

constexpr int64_t kSave = 7, kOtherSave = 8;

// Each has its own data and that of the machine before it.
TEST(CompleteCopies, HaveTheDataOfAllMachines) {
  const MachineCopy first{0, 4, kSave}, second{1, 4, kSave}, third{2, 4, kSave}, fourth{3, 4, kSave};
  EXPECT_THAT(complete_copies(Copies{first, second, third, fourth}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(complete_copies(Copies{first, {}, third, fourth}), ElementsAre(0, 2, 3));
  EXPECT_THAT(complete_copies(Copies{{}, second, {}, fourth}), ElementsAre(1, 3));
  EXPECT_THAT(complete_copies(Copies{fourth, {}, second}), ElementsAre(0, 2)) << "on other machines than before";
  EXPECT_THAT(complete_copies(Copies{first, {}, {}, fourth}), IsEmpty()) << "two neighbours are lost";
  EXPECT_THAT(complete_copies(Copies{first, first, third}), ElementsAre(0, 1, 2));
  EXPECT_THAT(complete_copies(Copies{MachineCopy{1, 2, kSave}, {}}), ElementsAre(0));
  EXPECT_THAT(complete_copies(Copies{{}, {}}), IsEmpty());
}

TEST(CompleteCopies, AreOfOneSave) {
  const MachineCopy first{0, 3, kSave}, second{1, 3, kSave}, other{2, 3, kOtherSave}, of_more{2, 4, kSave};
  EXPECT_THAT(complete_copies(Copies{first, {}, other}), IsEmpty());
  EXPECT_THAT(complete_copies(Copies{other, first, second}), ElementsAre(1, 2));
  EXPECT_THAT(complete_copies(Copies{first, of_more}), IsEmpty());
}

TEST(CompleteCopies, IgnoresNumbersThatMakeNoSense) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const MachineCopy& copy : {MachineCopy{0, 0, kSave},
                                  {0, -1, kSave},
                                  {-1, 2, kSave},
                                  {2, 2, kSave},
                                  {0, kHuge, kSave},
                                  {kHuge, kHuge, kSave}}) {
    EXPECT_THAT(complete_copies(Copies{copy, copy}), IsEmpty()) << copy.machine << " of " << copy.machines;
  }
}

class AMachinesFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  MachineCopy read() { return read_machine_copy(folder_.path()); }

  tests::TemporaryFolder folder_;
};

TEST_F(AMachinesFolder, NamesTheMachineAndTheSave) {
  EXPECT_EQ(read(), MachineCopy());
  EXPECT_EQ(read_machine_copy(folder_ / "missing"), MachineCopy());
  write(kMachineFile, machine_json(2, 5));
  EXPECT_EQ(read(), MachineCopy()) << "without a manifest it is incomplete";
  const Manifest manifest{{{"a", {.by_tensor = true, .tensors = {{"w", 1}}}}}};
  write(kManifestFile, to_json(manifest));
  EXPECT_EQ(read(), (MachineCopy{2, 5, tensor_digest(manifest)}));
}

TEST_F(AMachinesFolder, IsRefusedIfItsNumbersAreDamaged) {
  write(kManifestFile, to_json(Manifest()));
  for (const std::string& text : {std::string("{}"), std::string("[]"), std::string("x"), std::string(10000, ' '),
                                  std::string("{\"machine\":\"1\",\"machines\":2}")}) {
    write(kMachineFile, text);
    EXPECT_THAT([&] { read(); }, ThrowsMessage<ConfigError>(HasSubstr(kMachineFile))) << text;
  }
}

}  // namespace
}  // namespace concord
