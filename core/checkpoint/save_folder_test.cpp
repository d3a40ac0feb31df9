#include "core/checkpoint/save_folder.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>

#include "core/safetensors/testing/files.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using safetensors::testing::read_file;
using safetensors::testing::TemporaryFolder;
using safetensors::testing::write_file;

constexpr const char* kNonce = "0123456789abcdef";

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(SaveFolder, IsGoneUnlessItWasPublished) {
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/runs/model";
  {
    const SaveFolder made(model, kNonce);
  }
  EXPECT_THAT(names_in(folder.path() + "/runs"), ::testing::IsEmpty());
  for (const char* words : {"first", "second"}) {  // the second replaces the first
    SaveFolder made(model, make_nonce());
    for (const auto& entry : fs::directory_iterator(folder.path() + "/runs")) {
      if (entry.path() != model) write_file(entry.path() / "model.safetensors", words);
    }
    made.publish();
  }
  EXPECT_THAT(names_in(folder.path() + "/runs"), ::testing::ElementsAre("model"));
  EXPECT_THAT(names_in(model), ::testing::ElementsAre("model.safetensors"));
  EXPECT_EQ(read_file(model + "/model.safetensors"), "second");
}

// Replaces |model| by a save of one file.
void save_again(const std::string& model) {
  const std::string nonce = make_nonce();
  SaveFolder made(model, nonce);
  write_file(temporary_folder(model, nonce) + "/model.safetensors", "new");
  made.publish();
}

TEST(SaveFolder, FilesOfOthersOutliveTheSaveThatTheyWereIn) {
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/model", other = folder.path() + "/model.tmp-00000000000000aa";
  for (const std::string& place : {model, other}) {
    fs::create_directories(place + "/mine");
    for (const char* name : {"model-00001-of-00002.safetensors", "optimizer.safetensors", "config.json", "vocab.json",
                             "notes.txt", "model-best.safetensors", "mine/model.safetensors"})
      write_file(place + "/" + name, "old");
  }
  write_file(other + "/of the killed.txt", "old");
  fs::remove(model + "/notes.txt");
  save_again(model);
  EXPECT_THAT(names_in(model), ::testing::UnorderedElementsAre("model.safetensors", "model-best.safetensors", "mine"));
  EXPECT_THAT(remove_abandoned_saves(folder.path()), ::testing::SizeIs(1));  // as after a kill before files were moved
  EXPECT_THAT(names_in(folder.path()), ::testing::ElementsAre("model"));
  EXPECT_THAT(names_in(model), ::testing::UnorderedElementsAre("model.safetensors", "model-best.safetensors", "mine",
                                                               "notes.txt", "of the killed.txt"));
  EXPECT_EQ(read_file(model + "/model.safetensors"), "new");
}

TEST(SaveFolder, IsSeenByItsNonceAlone) {
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/model";
  const SaveFolder made(model, kNonce);
  EXPECT_TRUE(sees_temporary_folder(model, kNonce));
  EXPECT_FALSE(sees_temporary_folder(folder.path() + "/other", kNonce));
  fs::create_directories(folder.path() + "/model.tmp-");
  write_file(folder.path() + "/model.tmp-/.concord-nonce", "");
  for (const char* nonce : {"", "0123456789abcde", "../model.tmp-0123456789abcdef", "0123456789abcdeg"})
    EXPECT_FALSE(sees_temporary_folder(model, nonce)) << nonce;
}

// The process that creates the folder is killed.
void abandon_one(const std::string& model, const std::string& nonce) {
  const pid_t pid = fork();
  if (pid == 0) {
    const SaveFolder made(model, nonce);
    kill(getpid(), SIGKILL);
  }
  waitpid(pid, nullptr, 0);
}

TEST(AbandonedSaves, AreRemovedAndThoseOfTheLivingAndOfOthersAreNot) {
  const TemporaryFolder folder;
  const std::string here = folder.path() + "/";
  abandon_one(here + "checkpoint-2", "00000000000000aa");
  ASSERT_TRUE(fs::exists(here + "checkpoint-2.tmp-00000000000000aa"));
  const SaveFolder living(here + "checkpoint-4", "00000000000000bb");
  fs::create_directory(here + "model.tmp-00000000000000cc");  // killed before it had a nonce, or
  fs::create_directory(here + "model.tmp-00000000000000dd");  // about to get its name
  write_file(here + "model.tmp-00000000000000dd/model.safetensors", "x");
  // The only copy of an older model, and folders of others with similar names.
  for (const char* kept : {"lost.tmp-00000000000000ee.old", "a.tmp-1", "b.tmp-00000000000000ff", "c"}) {
    fs::create_directory(here + kept);
    write_file(here + kept + "/notes.txt", "x");
  }
  write_file(here + "lost.tmp-00000000000000ee.old/model.safetensors", "x");
  fs::create_directory_symlink(here + "c", here + "c.tmp-0000000000000011");
  write_file(here + "d.tmp-0000000000000022", "a file");
  EXPECT_THAT(remove_abandoned_saves(folder.path()), ::testing::Contains("model.tmp-00000000000000dd"));
  EXPECT_THAT(names_in(folder.path()),
              ::testing::UnorderedElementsAre("checkpoint-4.tmp-00000000000000bb", "lost.tmp-00000000000000ee.old",
                                              "a.tmp-1", "b.tmp-00000000000000ff", "c", "c.tmp-0000000000000011",
                                              "d.tmp-0000000000000022"));
  EXPECT_TRUE(remove_abandoned_saves(folder.path() + "/is not there").empty());
}

TEST(SavedFolder, LosesItsNameBeforeItsContents) {
  const TemporaryFolder folder;
  const std::string saved = folder.path() + "/checkpoint-2";
  fs::create_directories(saved + "/more");
  for (const char* name : {"model.safetensors", "config.json", "more/notes.txt"}) write_file(saved + "/" + name, "x");
  remove_saved_folder(saved);
  EXPECT_THAT(names_in(folder.path()), ::testing::IsEmpty());
  EXPECT_THROW(remove_saved_folder(saved), std::runtime_error);
  write_file(saved, "a file");
  remove_saved_folder(saved);
  EXPECT_THAT(names_in(folder.path()), ::testing::IsEmpty());
}

}  // namespace
}  // namespace concord
