#include "trainer/data/build/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>

#include "trainer/data/loader.h"
#include "trainer/data/sources/indexed_dataset.h"
#include "trainer/data/testing/folder.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {
namespace {

using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::read_file;
using testing::write_file;

void ignore(const BuildProgress&) {}

std::string said_by_build(const BuildArguments& arguments) {
  return config_error([&] { build_data(arguments, ignore); });
}

// Returns JSON lines with texts of different lengths, and their documents.
std::string many_lines(int count, std::vector<std::string>* texts = nullptr) {
  std::mt19937 random(5);
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string text = "document " + std::to_string(i) + " ";
    for (size_t length = random() % 60; length > 0; --length) text += static_cast<char>('a' + random() % 26);
    lines += "{\"id\": " + std::to_string(i) + ", \"text\": \"" + text + "\\n\"}\n";
    if (texts != nullptr) texts->push_back(text + "\n");
  }
  return lines;
}

std::vector<std::string> documents_of(const std::string& prefix, bool with_end) {
  const IndexedDataset data(prefix);
  std::vector<std::string> texts;
  for (int64_t i = 0; i < data.size(); ++i) {
    std::vector<int64_t> ids(static_cast<size_t>(data.length(i)));
    data.read(i, 0, data.length(i), ids.data());
    if (with_end) {
      EXPECT_EQ(ids.back(), ByteTokenizer::kEndOfDocument);
      ids.pop_back();
    }
    texts.emplace_back(ids.begin(), ids.end());
  }
  return texts;
}

TEST(DataBuild, DocumentsAreTheLinesTexts) {
  const Folder folder;
  std::vector<std::string> texts;
  const std::string input = write_file(folder / "in.jsonl", many_lines(500, &texts));
  for (const bool append_eod : {true, false}) {
    const BuildArguments arguments{
        .inputs = {input}, .output = folder / "out", .append_eod = append_eod, .shard_bytes = 3000, .overwrite = true};
    const BuildProgress progress = build_data(arguments, ignore);
    EXPECT_EQ(documents_of(folder / "out", append_eod), texts);
    EXPECT_EQ(progress.documents, 500);
    EXPECT_EQ(progress.tokens, IndexedDataset(folder / "out").tokens());
    EXPECT_GT(progress.shards, 10);
    EXPECT_EQ(progress.bytes_done, progress.bytes);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "out.build"));
}

TEST(DataBuild, BytesDependNeitherOnWorkersNorOnShards) {
  const Folder folder;
  const std::string jsonl = write_file(folder / "in.jsonl", many_lines(300)),
                    text = write_file(folder / "in.txt", "one\ntwo\n\nthree\n\n\n\nfour");
  build_data({.inputs = {jsonl, text}, .output = folder / "one", .workers = 1}, ignore);
  EXPECT_EQ(documents_of(folder / "one", true).back(), "four");
  EXPECT_EQ(documents_of(folder / "one", true).size(), 303U);
  for (const int64_t shard_bytes : {1, 7, 100, 5000}) {
    build_data({.inputs = {jsonl, text},
                .output = folder / "two",
                .workers = 3,
                .shard_bytes = shard_bytes,
                .overwrite = true},
               ignore);
    EXPECT_EQ(read_file(folder / "two.bin"), read_file(folder / "one.bin")) << shard_bytes;
    EXPECT_EQ(read_file(folder / "two.idx"), read_file(folder / "one.idx")) << shard_bytes;
  }
}

// A process is killed in the middle; the next one reuses its shards and produces the same bytes.
TEST(DataBuild, ABuildThatWasKilledContinuesToTheSameBytes) {
  const Folder folder;
  const std::string input = write_file(folder / "in.jsonl", many_lines(400));
  const BuildArguments whole{.inputs = {input}, .output = folder / "whole", .workers = 2, .shard_bytes = 2000};
  BuildArguments stopped = whole;
  stopped.output = folder / "stopped";
  build_data(whole, ignore);
  const pid_t child = ::fork();
  if (child == 0) {
    build_data(stopped, [](const BuildProgress& progress) {
      if (progress.shards_done >= 3) ::kill(::getpid(), SIGKILL);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(folder / "stopped.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder / "stopped.idx"));
  const BuildProgress progress = build_data(stopped, ignore);
  EXPECT_GE(progress.shards_kept, 3);
  EXPECT_EQ(progress.documents, 400);
  EXPECT_EQ(read_file(folder / "stopped.bin"), read_file(folder / "whole.bin"));
  EXPECT_EQ(read_file(folder / "stopped.idx"), read_file(folder / "whole.idx"));
}

// Killed between the last rename and the removal of its folder.
TEST(DataBuild, ABuildThatWasKilledAtItsVeryEndIsTidiedUp) {
  const Folder folder;
  const std::string input = write_file(folder / "in.jsonl", many_lines(50));
  const BuildArguments arguments{.inputs = {input}, .output = folder / "out", .workers = 1, .shard_bytes = 2000};
  const pid_t child = ::fork();
  if (child == 0) {
    build_data(arguments, [&](const BuildProgress& progress) {
      if (progress.shards_done < progress.shards) return;
      constexpr auto kHow =
          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing;
      std::filesystem::copy(folder / "out.build", folder / "kept", kHow);
    });
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const std::string bytes = read_file(folder / "out.bin"), index = read_file(folder / "out.idx");
  std::filesystem::rename(folder / "kept", folder / "out.build");
  EXPECT_THAT(said_by_build(arguments), HasSubstr("already exists"));  // it had not started to rename files
  write_file(folder / "out.build/publishing", "");
  EXPECT_GT(build_data(arguments, ignore).shards_kept, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.build"));
  EXPECT_EQ(read_file(folder / "out.bin"), bytes);
  EXPECT_EQ(read_file(folder / "out.idx"), index);
  EXPECT_THAT(said_by_build(arguments), HasSubstr("already exists"));
}

TEST(DataBuild, ABadLineIsNamedAndWhatWasDoneIsKept) {
  const Folder folder;
  const std::string good = many_lines(100);
  const std::string input = write_file(folder / "in.jsonl", good + "{\"text\": 5}\n" + good);
  const BuildArguments arguments{.inputs = {input}, .output = folder / "out", .workers = 1, .shard_bytes = 1000};
  EXPECT_THAT(said_by_build(arguments), HasSubstr("in.jsonl, line 101: \"text\" is not a string"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.idx"));
  EXPECT_TRUE(std::filesystem::exists(folder / "out.build/shard-000000.idx"));
  write_file(input, good);
  EXPECT_THAT(said_by_build(arguments), HasSubstr("with other settings or inputs"));
  BuildArguments anew = arguments;
  anew.overwrite = true;
  EXPECT_EQ(build_data(anew, ignore).shards_kept, 0);
}

TEST(DataBuild, OneBuildOfAnOutputRunsAtATime) {
  const Folder folder;
  const std::string input = write_file(folder / "in.jsonl", many_lines(5));
  std::filesystem::create_directory(folder / "out.build");
  write_file(folder / "out.build/lock", "");
  const int fd = ::open((folder / "out.build/lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = folder / "out"}),
              HasSubstr("another process is already building"));
  ::close(fd);
  EXPECT_EQ(said_by_build({.inputs = {input}, .output = folder / "out"}), "");
}

TEST(DataBuild, WhatItDidNotWriteStays) {
  const Folder folder;
  const std::string input = write_file(folder / "in.jsonl", "{\"text\": \"abc\"}\n");
  const auto said = [&](const BuildArguments& more) {
    BuildArguments arguments = more;
    arguments.inputs = {input};
    return said_by_build(arguments);
  };
  // Its own input, under any name.
  std::filesystem::create_hard_link(input, folder / "hard.jsonl");
  std::filesystem::create_symlink(input, folder / "link.jsonl");
  for (const char* name : {"in.jsonl", "hard.jsonl", "link.jsonl"})
    EXPECT_THAT(said({.output = folder / name, .sft = true, .overwrite = true}), HasSubstr("would overwrite")) << name;
  EXPECT_THAT(read_file(input), HasSubstr("abc"));
  // Half of a pair.
  write_file(folder / "half.bin", "mine");
  EXPECT_THAT(said({.output = folder / "half"}), HasSubstr("half.bin' already exists"));
  // Folders with the names that it would use.
  for (const std::string name : {"a.tokenizer", "b.build"}) {
    std::filesystem::create_directory(folder / name);
    const std::string kept = write_file(folder / (name + "/notes.txt"), "mine");
    for (const bool overwrite : {false, true})
      EXPECT_THAT(said({.output = folder / name.substr(0, 1), .overwrite = overwrite}), HasSubstr(name)) << overwrite;
    EXPECT_EQ(read_file(kept), "mine");
  }
  std::filesystem::create_directory(folder / "c.tokenizer");
  write_file(folder / "c.tokenizer/tokenizer.json", "mine");
  EXPECT_THAT(said({.output = folder / "c"}), HasSubstr("c.tokenizer already exists"));
  EXPECT_THAT(said({.output = folder / "c", .tokenizer = folder / "c.tokenizer/tokenizer.json", .overwrite = true}),
              HasSubstr("would replace"));
  EXPECT_EQ(read_file(folder / "c.tokenizer/tokenizer.json"), "mine");
  EXPECT_EQ(said({.output = folder / "c", .overwrite = true}), "");
  // The folder of an unfinished build, in which the input is.
  std::filesystem::create_directory(folder / "d.build");
  write_file(folder / "d.build/plan", "concord data build 3\n");
  const std::string inner = write_file(folder / "d.build/input-000000.jsonl", "{\"text\": \"abc\"}\n");
  EXPECT_THAT(said_by_build({.inputs = {inner}, .output = folder / "d", .overwrite = true}),
              HasSubstr("would replace"));
  EXPECT_THAT(read_file(inner), HasSubstr("abc"));
}

TEST(DataBuild, WhatCannotBeBuiltIsRefused) {
  const Folder folder;
  const std::string input = write_file(folder / "in.jsonl", many_lines(5)), output = folder / "out";
  EXPECT_THAT(said_by_build({.output = output}), HasSubstr("no input"));
  EXPECT_THAT(said_by_build({.inputs = {input}}), HasSubstr("no output"));
  EXPECT_THAT(said_by_build({.inputs = {folder / "none.txt"}, .output = output}), HasSubstr("No such file"));
  EXPECT_THAT(said_by_build({.inputs = {write_file(folder / "a.csv", "x")}, .output = output}),
              HasSubstr("must end in .txt, .jsonl, .parquet"));
  EXPECT_THAT(said_by_build({.inputs = {write_file(folder / "a.txt", "")}, .output = output}),
              HasSubstr("file is empty"));
  EXPECT_THAT(said_by_build({.inputs = {write_file(folder / "b.txt", "\n\n\n")}, .output = output, .overwrite = true}),
              HasSubstr("contains no documents"));
  EXPECT_THAT(
      said_by_build({.inputs = {write_file(folder / "c.txt", "a\n\n\xFF")}, .output = output, .overwrite = true}),
      HasSubstr("c.txt, line 3: the byte 0xFF"));
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = folder / "no/out"}), HasSubstr("cannot create folder"));
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = output, .tokenizer = "nothing.json"}),
              HasSubstr("not found; use 'byte'"));
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = output, .workers = -1}), HasSubstr("--workers is -1"));
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = output, .shard_bytes = 0}), HasSubstr("--shard_bytes is 0"));
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = output, .sft = true}), HasSubstr("ends in .jsonl"));
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = output + ".jsonl"}), HasSubstr("it must be a prefix"));
  EXPECT_EQ(said_by_build({.inputs = {input}, .output = output, .overwrite = true}), "");
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = output}), HasSubstr("already exists"));
}

TEST(DataBuild, PairsBecomeSamplesThatTrainingReads) {
  const Folder folder;
  const std::string line = R"({"prompt": "a", "completion": "b"})";
  const std::string input = write_file(folder / "in.jsonl", line + "\n" + line + "\n");
  build_data({.inputs = {input}, .output = folder / "out.jsonl", .sft = true, .shard_bytes = 10}, ignore);
  const auto built = open_sample_source({.path = folder / "out.jsonl"}), direct = open_sample_source({.path = input});
  ASSERT_EQ(built->size(), 2);
  EXPECT_EQ(built->at(1).ids, direct->at(1).ids);
  EXPECT_EQ(built->at(1).labels, direct->at(1).labels);
  write_file(input, "{\"text\": \"x\"}\n");
  EXPECT_THAT(said_by_build({.inputs = {input}, .output = folder / "bad.jsonl", .sft = true}),
              HasSubstr("line 1: has \"text\"; --sft needs conversations"));
}

TEST(DataBuild, AFullDiskEndsTheBuildAndLeavesNoOutput) {
  const Folder folder;
  IndexedWriter writer(folder / "out", TokenType::kInt32);
  writer.add_sequence(std::vector<int64_t>(1000, 1));
  const auto action = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{1000, before.rlim_max};  // a larger write is truncated as on a full disk
  ::setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THROW(writer.finish(), std::runtime_error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, action);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.idx"));
}

TEST(DataBuild, ProgressIsALineAPersonCanRead) {
  const BuildProgress progress{.shards_done = 3,
                               .shards = 4,
                               .shards_kept = 1,
                               .bytes_done = 3 << 20,
                               .bytes = 4 << 20,
                               .documents = 9,
                               .tokens = 2500000};
  EXPECT_EQ(progress_line(progress, 2), "3/4 shards, 3.0 of 4.0 MiB, 2.50 M tokens, 1.0 MiB/s, 1 s left");
  EXPECT_EQ(progress_line({.shards = 4, .bytes = 4 << 20}, 0.5), "0/4 shards, 0.0 of 4.0 MiB, 0.00 M tokens");
}

}  // namespace
}  // namespace concord
