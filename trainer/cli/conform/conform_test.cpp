// `concord conform` and `concord-conform` are the same to whoever starts them.
#include <gmock/gmock.h>

#include <unistd.h>

#include <filesystem>

#include "core/base/files/run_lock.h"
#include "tests/processes/ended_process.h"
#include "tests/temporary_folder.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kProgram = CONCORD_PROGRAM;
const std::string kKit = (fs::path(kProgram).parent_path() / "concord-conform").string();

TEST(ConformCommand, IsTheKitWithItsOutputAndItsExitCode) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--help"}, {"--list"}, {"--no_such_option"}, {"--platform", "cpu", "--filter", "no_such_test", "--json"}}) {
    const EndedProcess kit = run_to_end(with_front(words, {kKit}));
    const EndedProcess command = run_to_end(with_front(words, {kProgram, "conform"}));
    EXPECT_EQ(command.exit_code, kit.exit_code) << words.front();
    EXPECT_EQ(command.out, kit.out);
    EXPECT_EQ(command.err, kit.err);
  }
  EXPECT_EQ(run_to_end({kProgram, "conform", "--help"}).exit_code, 0);
  EXPECT_EQ(run_to_end({kProgram, "conform", "--no_such_option"}).exit_code, 2);
}

TEST(ConformCommand, ItsReportIsRefusedInTheFolderOfARunningJob) {
  const tests::TemporaryFolder folder;
  const RunLock lock(folder.path(), "a job");
  const std::vector<std::string> run = {kProgram, "conform", "--platform", "cpu", "--list"};
  for (const std::vector<std::string>& report :
       std::vector<std::vector<std::string>>{{"--report", folder / "a.json"}, {"--report=" + (folder / "a.json")}}) {
    std::vector<std::string> command = run;
    command.insert(command.end(), report.begin(), report.end());
    const EndedProcess ended = run_to_end(command);
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_THAT(ended.err, HasSubstr("in use by process " + std::to_string(::getpid())));
  }
}

TEST(ConformCommand, SaysWhatToBuildWhereThereIsNoKit) {
  const tests::TemporaryFolder folder;
  fs::copy_file(kProgram, folder / "concord");
  const EndedProcess command = run_to_end({folder / "concord", "conform", "--help"});
  EXPECT_EQ(command.exit_code, 1);
  EXPECT_THAT(command.err, HasSubstr(folder / "concord-conform: No such file or directory"));
  EXPECT_THAT(command.err, HasSubstr("build the target concord-conform"));
}

}  // namespace
}  // namespace concord::testing_processes
