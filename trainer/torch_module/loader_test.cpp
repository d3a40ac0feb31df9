// When the program loads libtorch, and its errors if it cannot.
#include "trainer/torch_module/loader.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/processes/ended_process.h"
#include "tests/temporary_folder.h"
#include "trainer/torch_module/build_identity.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProgram = CONCORD_PROGRAM;
const std::string kModule = CONCORD_TORCH_MODULE;
const std::string kModel = CONCORD_GOLDEN "/hf/qwen2-tiny";

std::string content_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class TorchModuleTest : public ::testing::Test {
 protected:
  // Returns the libraries that a command loads, as reported by the dynamic linker; without those of its child
  // processes.
  std::vector<std::string> libraries_of(const std::vector<std::string>& args) {
    const EndedProcess process = run_to_end(
        with_front(args, {kProgram}),
        {.environment = {"LD_DEBUG=files", "LD_DEBUG_OUTPUT=" + (folder_ / "libraries"), "OMP_NUM_THREADS=1"}});
    EXPECT_EQ(process.exit_code, 0) << process.err;
    std::vector<std::string> libraries;
    std::ifstream said(folder_ / ("libraries." + std::to_string(process.pid)));
    for (std::string line; std::getline(said, line);) {  // "pid: file=libc.so.6 [0];  generating link map"
      const size_t name = line.find("file=");
      if (name != std::string::npos && line.ends_with("generating link map")) {
        libraries.push_back(line.substr(name + 5, line.find(' ', name) - name - 5));
      }
    }
    return libraries;
  }

  // Runs one rank that dumps the weights of a model: the shortest path through libtorch. |path| is CONCORD_PLUGIN_PATH.
  EndedProcess probe(const std::string& program, const std::string& path, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {
        program, "probe", "--model_config", kModel, "--weights", "--out", folder_ / "dump.safetensors"};
    args.insert(args.end(), more.begin(), more.end());
    return run_to_end(args, {.environment = {"CONCORD_PLUGIN_PATH=" + path, "OMP_NUM_THREADS=1"}});
  }

  tests::TemporaryFolder folder_;
};

TEST_F(TorchModuleTest, OnlyARankLoadsLibtorch) {
  const auto no_libtorch = AllOf(Contains("libc.so.6"), Each(AllOf(Not(HasSubstr("torch")), Not(HasSubstr("libc10")))));
  const std::string weights = folder_ / "dump.safetensors";
  EXPECT_THAT(libraries_of({"probe", "--model_config", kModel, "--weights", "--out", weights}),
              AllOf(Contains("libtorch_cpu.so"), Contains(kModule)));
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--help"},
           {"platforms"},
           {"plan", "--world_size", "4"},
           {"plan", "--world_size", "4", "--buckets", "--model", kModel},
           {"schedule", "--kind", "1f1b", "--pp", "2", "--microbatches", "4"},
           {"lr", "--max_steps", "10"},
           {"diff", weights, weights},
           {"diff", "--help"},
           {"train", "--help"},
           {"train", "--print_config"},
           {"train", "--nproc", "2", "--max_steps", "1", "--output_dir", folder_ / "run"},
           {"probe", "--help"},
           {"launch", "--nproc", "2", "--", "/bin/true"}}) {
    EXPECT_THAT(libraries_of(args), no_libtorch) << args.front() << " " << args.back();
  }
}

TEST_F(TorchModuleTest, WhatARankThrowsEndsTheProgramAsItsOwnErrorsDo) {
  const std::string plugins = fs::path(kModule).parent_path();
  const EndedProcess wrong = probe(kProgram, plugins, {"--dtype", "float8"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("concord: --dtype is 'float8'; must be float32, bfloat16"));
  ::setenv("CONCORD_PLATFORM", "nowhere", 1);
  const EndedProcess failed = probe(kProgram, plugins);
  ::unsetenv("CONCORD_PLATFORM");
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.err, HasSubstr("concord: no platform 'nowhere'"));
}

TEST_F(TorchModuleTest, WithoutTheModuleEveryPlaceIsListedWithItsReason) {
  fs::create_directories(folder_ / "bin");
  fs::create_directories(folder_ / "text");
  const std::string program = folder_ / "bin/concord";
  fs::copy_file(kProgram, program);
  std::ofstream(folder_ / "text/libconcordtorch.so") << "hello";
  const EndedProcess none = probe(program, folder_ / "text" + ":" + folder_ / "nowhere");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err,
              AllOf(HasSubstr("concord: cannot load libconcordtorch.so, the part of concord that needs libtorch"),
                    HasSubstr(folder_ / "text/libconcordtorch.so (CONCORD_PLUGIN_PATH): it is not an ELF file"),
                    HasSubstr(folder_ / "nowhere/libconcordtorch.so (CONCORD_PLUGIN_PATH): no such folder"),
                    HasSubstr(folder_ / "lib/libconcordtorch.so (next to the program): no such folder"),
                    HasSubstr("build the target concord")));
  // Reported once, by the process that would have started the ranks, which has written nothing.
  const EndedProcess train =
      run_to_end({program, "train", "--output_dir", folder_ / "run"}, {.environment = {"CONCORD_PLUGIN_PATH="}});
  EXPECT_EQ(train.exit_code, 1);
  EXPECT_THAT(train.err, HasSubstr("cannot load libconcordtorch.so"));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(TorchModuleTest, OneOfAnotherBuildIsPassedOverAndNeverLoaded) {
  fs::create_directories(folder_ / "bin");
  fs::create_directories(folder_ / "other");
  const std::string program = folder_ / "bin/concord";
  fs::copy_file(kProgram, program);
  std::string content = content_of(kModule);
  const std::string identity = build_identity();
  const size_t at = content.find(identity.substr(0, identity.rfind(' ')));  // the hash is the module's own
  ASSERT_NE(at, std::string::npos);
  content[at + identity.size() - 1] ^= 1;
  std::ofstream(folder_ / "other/libconcordtorch.so", std::ios::binary) << content;
  const EndedProcess other = probe(program, folder_ / "other");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err,
              HasSubstr(folder_ /
                        "other/libconcordtorch.so (CONCORD_PLUGIN_PATH): it belongs to a different build of Concord"));
  const EndedProcess both = probe(program, folder_ / "other" + ":" + fs::path(kModule).parent_path().string());
  EXPECT_EQ(both.exit_code, 0) << both.err;
}

TEST_F(TorchModuleTest, ExportsItsEntryAlone) {
  RunningProcess nm({"/usr/bin/env", "nm", "-D", "--defined-only", "--format=posix", kModule});
  nm.wait();
  EXPECT_THAT(nm.out_lines(), ::testing::ElementsAre(::testing::StartsWith(std::string(kTorchModuleEntry) + " T")));
}

}  // namespace
}  // namespace concord::testing_processes
