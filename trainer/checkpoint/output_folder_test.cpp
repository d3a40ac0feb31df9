#include "trainer/checkpoint/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "core/base/config_error.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OutputFolder : public ::testing::Test {
 protected:
  OutputFolder() {
    std::string pattern = (fs::temp_directory_path() / "concord-output-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~OutputFolder() override { fs::remove_all(folder_); }

  // A checkpoint as far as its owner can be told.
  void make_checkpoint(int64_t step) { touch("checkpoint-" + std::to_string(step) + "/manifest.json"); }
  void touch(const std::string& name) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "x";
  }
  std::string refusal(const fs::path& path, bool overwrite = false) {
    try {
      prepare_output_folder({.folder = path, .overwrite = overwrite});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

TEST_F(OutputFolder, IsMadeWhereItIsNotThere) {
  EXPECT_EQ(refusal(folder_ / "a/b"), "no error");
  EXPECT_TRUE(fs::is_directory(folder_ / "a/b"));
}

TEST_F(OutputFolder, WithFilesOfSomethingElseIsTakenAndTheyStay) {
  touch("notes.txt");
  touch("checkpoint-old/x");
  EXPECT_EQ(refusal(folder_), "no error");
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoint-old/x"));
}

TEST_F(OutputFolder, OfAnotherRunIsRefusedUnlessItMayBeLost) {
  for (const std::string name : {"metrics.jsonl", "trainer_state.json", "checkpoint-10/manifest.json"}) {
    leave_run_mark(folder_);
    touch(name);
    touch("notes.txt");
    EXPECT_THAT(refusal(folder_), HasSubstr("contains another run")) << name;
    EXPECT_TRUE(fs::exists(folder_ / name));
    EXPECT_EQ(refusal(folder_, true), "no error");
    EXPECT_FALSE(fs::exists(folder_ / name));
    EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  }
}

TEST_F(OutputFolder, WithoutTheMarkOfARunIsNeverCleared) {
  touch("model/x");
  EXPECT_THAT(refusal(folder_), HasSubstr("was not written by Concord"));
  EXPECT_THAT(refusal(folder_, true), HasSubstr("was not written by Concord"));
  fs::create_symlink("/etc/passwd", folder_ / kRunMark);  // no mark either
  EXPECT_THAT(refusal(folder_, true), HasSubstr("was not written by Concord"));
  EXPECT_TRUE(fs::exists(folder_ / "model/x"));
}

TEST_F(OutputFolder, OfARestartedAttemptIsItsOwnOrRefused) {
  leave_run_mark(folder_, "job 1");
  touch("checkpoint-10/x");
  const OutputRequest own{.folder = folder_, .overwrite = true, .job = "job 1", .is_restarted = true};
  prepare_output_folder(own);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoint-10/x"));
  for (const std::string other : {"job 2", ""}) {
    OutputRequest request = own;
    request.job = other;
    EXPECT_THROW(prepare_output_folder(request), ConfigError);
  }
  EXPECT_TRUE(fs::exists(folder_ / "checkpoint-10/x"));
}

TEST_F(OutputFolder, UnderAFileIsRefused) {
  touch("file");
  EXPECT_THAT(refusal(folder_ / "file"), HasSubstr("is a file"));
  EXPECT_THAT(refusal(folder_ / "file/below/that"), HasSubstr("is a file"));
}

TEST_F(OutputFolder, ThatCannotBeWrittenIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere but where nobody can";
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(refusal(folder_ / "out"), HasSubstr("cannot write to"));
  fs::permissions(folder_, fs::perms::owner_all);
}

TEST_F(OutputFolder, WhereNobodyCanWriteIsRefused) { EXPECT_NE(refusal("/proc/concord-out"), "no error"); }

TEST_F(OutputFolder, TheNewestCheckpointsStayByTheirNumberAndNotTheirName) {
  for (const int step : {2, 10, 9, 100}) make_checkpoint(step);
  EXPECT_THAT(checkpoints_in(folder_), ElementsAre(folder_ / "checkpoint-2", folder_ / "checkpoint-9",
                                                   folder_ / "checkpoint-10", folder_ / "checkpoint-100"));
  rotate_checkpoints(folder_, 0);
  EXPECT_EQ(checkpoints_in(folder_).size(), 4u);
  rotate_checkpoints(folder_, 2);
  EXPECT_THAT(checkpoints_in(folder_), ElementsAre(folder_ / "checkpoint-10", folder_ / "checkpoint-100"));
}

TEST_F(OutputFolder, WhatIsOnlyCalledACheckpointIsNeitherCountedNorRemoved) {
  for (const int step : {2, 4, 6}) make_checkpoint(step);
  touch("checkpoint-1");
  touch("checkpoint-3/notes.txt");
  touch("checkpoint-7/notes.txt");
  fs::create_symlink(folder_ / "checkpoint-3", folder_ / "checkpoint-5");
  touch("checkpoint-6/metadata.json");
  EXPECT_EQ(newest_resumable_step(folder_), 6);
  rotate_checkpoints(folder_, 1);
  EXPECT_THAT(checkpoints_in(folder_),
              ElementsAre(folder_ / "checkpoint-1", folder_ / "checkpoint-3", folder_ / "checkpoint-5",
                          folder_ / "checkpoint-6", folder_ / "checkpoint-7"));
  EXPECT_TRUE(rename_newer_checkpoints(folder_, 6).empty());
  leave_run_mark(folder_);
  EXPECT_THAT(refusal(folder_, true), HasSubstr("contains 'checkpoint-1', which was not written by Concord"));
}

TEST_F(OutputFolder, ACheckpointOfTheModelAloneIsNotResumedFrom) {
  for (const int step : {4, 6}) make_checkpoint(step);
  touch("checkpoint-4/metadata.json");
  EXPECT_EQ(newest_resumable_step(folder_), 4);
}

TEST_F(OutputFolder, AModelFolderWithFilesOfOthersIsNotRemoved) {
  leave_run_mark(folder_);
  touch("model/model-00001-of-00002.safetensors");
  touch("model/notes.txt");
  EXPECT_THAT(refusal(folder_, true), HasSubstr("model/notes.txt' was not written by Concord"));
  EXPECT_TRUE(fs::exists(folder_ / "model/notes.txt"));
  fs::remove(folder_ / "model/notes.txt");
  EXPECT_EQ(refusal(folder_, true), "no error");
  EXPECT_FALSE(fs::exists(folder_ / "model"));
}

TEST_F(OutputFolder, LaterCheckpointsAreSetAside) {
  for (const int step : {5, 10, 20}) make_checkpoint(step);
  touch("checkpoint-20.not-on-all-machines/of an earlier time");
  EXPECT_THAT(rename_newer_checkpoints(folder_, 5),
              ElementsAre("checkpoint-10.not-on-all-machines", "checkpoint-20.not-on-all-machines.2"));
  EXPECT_THAT(checkpoints_in(folder_), ElementsAre(folder_ / "checkpoint-5"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoint-20.not-on-all-machines.2/manifest.json"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoint-20.not-on-all-machines/of an earlier time"));
  EXPECT_TRUE(rename_newer_checkpoints(folder_, 5).empty());
}

// As in HF, the newest and the best one are kept even if they exceed the limit.
TEST_F(OutputFolder, TheBestCheckpointStays) {
  const auto left = [&](int64_t limit, const fs::path& best) {
    fs::remove_all(folder_);
    for (const int step : {1, 2, 3, 4}) make_checkpoint(step);
    rotate_checkpoints(folder_, limit, best);
    std::vector<int64_t> steps;
    for (const fs::path& each : checkpoints_in(folder_)) steps.push_back(*checkpoint_step(each));
    return steps;
  };
  EXPECT_THAT(left(1, folder_ / "checkpoint-2"), ElementsAre(2, 4));
  EXPECT_THAT(left(2, folder_ / "checkpoint-2"), ElementsAre(2, 4));
  EXPECT_THAT(left(3, folder_ / "checkpoint-1"), ElementsAre(1, 3, 4));
  EXPECT_THAT(left(1, folder_ / "checkpoint-4"), ElementsAre(4));
  EXPECT_THAT(left(1, folder_ / "elsewhere/checkpoint-2"), ElementsAre(4));
  EXPECT_THAT(left(0, folder_ / "checkpoint-2"), ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace concord
