// A disk that fills up in the middle of a run: a small file system for the test. The remaining files are complete, and
// the program reports the file that failed.
#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kNoFileSystem = 77;

class FullDisk : public Train {
 protected:
  std::string disk() const { return path("disk"); }
  // Returns a copy of the disk's content after the program has exited.
  std::string left() const { return path("left"); }

  // Runs |command| with |kibibytes| of space on disk(). Returns its exit code.
  int run(int kibibytes, const std::vector<std::string>& command) {
    fs::create_directory(disk());
    std::string script = "mount -t tmpfs -o size=" + std::to_string(kibibytes) + "k none " + disk() + " || exit " +
                         std::to_string(kNoFileSystem) + "; \"$@\"; code=$?; cp -r " + disk() + " " + left() +
                         "; exit $code";
    std::vector<std::string> whole = {"/usr/bin/env", "unshare", "-rm", "sh", "-c", script, "sh"};
    whole.insert(whole.end(), command.begin(), command.end());
    RunningProcess process(whole, {.environment = {"OMP_NUM_THREADS=1"}});
    const int status = process.wait();
    said_ = process.err();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int train(int kibibytes, const std::vector<std::string>& more) {
    std::vector<std::string> command = train_args(more);
    command.insert(command.begin(), {LAUNCH_PROGRAM, "train"});
    command.insert(command.end(), {"--output_dir", disk() + "/out"});
    return run(kibibytes, command);
  }
  // Returns the names below left(), including those of partial files.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(left())) {
      found.push_back(fs::relative(entry.path(), left()).string());
    }
    return found;
  }

  // Counts whole pages, like a file system in memory.
  static int64_t bytes_on_disk(const std::string& folder) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) bytes += (static_cast<int64_t>(entry.file_size()) + page - 1) / page * page;
    }
    return bytes;
  }

  std::string said_;
};

#define SKIP_WITHOUT_A_FILE_SYSTEM(code) \
  if ((code) == kNoFileSystem) GTEST_SKIP() << "no file system can be mounted here: " << said_

TEST_F(FullDisk, EndsTheRunWithTheNameOfTheFileAndWholeLines) {
  const int code = train(64, {"--max_steps", "100000", "--save_strategy", "no"});
  SKIP_WITHOUT_A_FILE_SYSTEM(code);
  EXPECT_EQ(code, 1) << said_;
  EXPECT_THAT(
      said_,
      ContainsRegex("out/(metrics.jsonl|rank_times.jsonl|runs/[^:]*): cannot be written: No space left on device"));
  EXPECT_THAT(said_, HasSubstr("free some space or choose another folder"));
  const auto steps = read_steps(left() + "/out");  // parses every line
  EXPECT_GT(steps.size(), 5u);
}

TEST_F(FullDisk, LeavesNoModelThatIsNotWhole) {
  const int code = train(300, {"--nproc", "2", "--save_steps", "2"});
  SKIP_WITHOUT_A_FILE_SYSTEM(code);
  EXPECT_EQ(code, 1) << said_;
  EXPECT_THAT(said_, AllOf(HasSubstr("model.safetensors"), HasSubstr("No space left on device")));
  EXPECT_THAT(said_, HasSubstr("concord launch: rank 0 failed first")) << "all ranks end, and it is rank 0's error";
  for (const std::string& name : names()) {
    EXPECT_THAT(name, ::testing::Not(ContainsRegex("checkpoint|model|\\.new|\\.tmp")));
  }
}

TEST_F(FullDisk, LeavesNoReportThatIsNotWhole) {
  const std::vector<std::string> run = {"--max_steps", "2", "--save_strategy", "no"};
  TrainProgram with_space(train_args(run));
  ASSERT_EQ(with_space.exit_code(), 0) << with_space.err();
  const auto missing = static_cast<int64_t>(fs::file_size(path("out/report.html"))) / 2;
  const int code = train(static_cast<int>((bytes_on_disk(path("out")) - missing) / 1024), run);
  SKIP_WITHOUT_A_FILE_SYSTEM(code);
  EXPECT_EQ(code, 1) << said_;
  EXPECT_THAT(said_, HasSubstr("report.html: cannot be written: No space left on device"));
  EXPECT_EQ(read_steps(left() + "/out").size(), 2u);
  for (const std::string& name : names()) EXPECT_THAT(name, ::testing::Not(ContainsRegex("report|\\.new")));
}

TEST_F(FullDisk, LeavesNoDataThatIsNotWhole) {
  {
    std::ofstream text(path("text.txt"));
    for (int i = 0; i < 10000; ++i) text << "The quick brown fox jumps over the lazy dog.\n";
  }
  const int code = run(256, {LAUNCH_PROGRAM, "data", "build", "--tokenizer", "byte", "--input", path("text.txt"),
                             "--output", disk() + "/corpus"});
  SKIP_WITHOUT_A_FILE_SYSTEM(code);
  EXPECT_EQ(code, 1) << said_;
  EXPECT_THAT(said_, AllOf(HasSubstr("corpus"), HasSubstr("No space left on device")));
  EXPECT_FALSE(fs::exists(left() + "/corpus.bin"));
  EXPECT_FALSE(fs::exists(left() + "/corpus.idx"));
}

}  // namespace
}  // namespace concord::testing_processes
