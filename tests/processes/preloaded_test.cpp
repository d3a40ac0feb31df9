// A program that is forked from a process with libtorch (preloaded.cpp) is indistinguishable from one started by
// execve.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string process_file(pid_t pid, const std::string& name) {
  std::ostringstream text;
  text << std::ifstream("/proc/" + std::to_string(pid) + "/" + name).rdbuf();
  return text.str();
}

std::set<std::string> split(const std::string& text, char separator) {
  std::set<std::string> all;
  std::istringstream stream(text);
  for (std::string each; std::getline(stream, each, separator);) all.insert(each);
  return all;
}

// The externally visible state of a process.
struct Snapshot {
  explicit Snapshot(pid_t pid)
      : arguments(command_line(pid)),
        limits(process_file(pid, "limits")),
        maps(process_file(pid, "maps")),
        variables(split(process_file(pid, "environ"), '\0')) {
    for (const std::string& line : split(process_file(pid, "status"), '\n')) {
      for (const char* name : {"Name:", "PPid:", "NSpgid:", "NSsid:", "SigBlk:", "SigIgn:", "SigCgt:", "Umask:"}) {
        // Only the first 32 caught signals: the next one is glibc's own, whose handler a forked program lacks.
        const bool caught = line.starts_with("SigCgt:");
        if (line.starts_with(name)) status.push_back(caught ? "SigCgt:" + line.substr(line.size() - 8) : line);
      }
    }
    const std::string folder = "/proc/" + std::to_string(pid);
    for (const char* link : {"/exe", "/cwd"}) places.push_back(fs::read_symlink(folder + link));
    for (const auto& entry : fs::directory_iterator(folder + "/fd")) {
      const std::string name = fs::read_symlink(entry).string();
      if (name.starts_with("/") && name.find("tfevents") == std::string::npos)
        files.insert(name);  // files with fixed names
    }
  }

  std::string arguments, limits, maps;
  std::vector<std::string> status;  // its ids, and its signal dispositions
  std::vector<std::string> places;
  std::set<std::string> variables, files;
};

class Preloaded : public Train {
 protected:
  Snapshot snapshot(const std::vector<std::string>& environment) {
    fs::remove_all(path("out"));
    TrainProgram program(train_args({"--max_steps", "100000", "--save_strategy", "no"}),
                         {.environment = environment, .ignore_hangup = true});
    // Two steps: by then its threads run; while a thread is created glibc blocks every signal.
    EXPECT_TRUE(program.process().wait_for_text("grad norm", 2));
    Snapshot found(program.process().pid());
    program.process().signal(SIGTERM);
    EXPECT_EQ(program.exit_code(), 128 + SIGTERM) << program.err();
    return found;
  }
};

TEST_F(Preloaded, AForkedProgramIsTheOneThatIsStarted) {
  if (std::getenv("CONCORD_PRELOADED") == nullptr) GTEST_SKIP() << "CONCORD_PRELOADED is not set";
  const std::string different = "GLIBC_TUNABLES=glibc.malloc.check=0";  // read when libraries are loaded
  ::signal(SIGUSR2, SIG_IGN);
  Snapshot forked = snapshot({});
  const Snapshot started = snapshot({different});
  ::signal(SIGUSR2, SIG_DFL);
  ASSERT_THAT(forked.maps, HasSubstr("libpreloaded.so"));
  ASSERT_THAT(started.maps, Not(HasSubstr("libpreloaded.so")));
  EXPECT_EQ(forked.arguments, started.arguments);
  EXPECT_EQ(forked.limits, started.limits);
  EXPECT_EQ(forked.status, started.status);
  EXPECT_EQ(forked.places, started.places);
  forked.variables.insert(different);
  EXPECT_EQ(forked.variables, started.variables);
  EXPECT_TRUE(std::ranges::includes(started.files, forked.files)) << ::testing::PrintToString(forked.files);
}

}  // namespace
}  // namespace concord::testing_processes
