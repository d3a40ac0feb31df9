// `concord launch` with real processes: their environment, their output, and errors for a wrong command.
// launch_end_test.cpp tests how jobs end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/mesh/store/master_port.h"
#include "tests/processes/launch/launch_helpers.h"

namespace concord::testing_processes {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Launch, ProcessesSeeTorchrunsVariables) {
  Launch job({"--nproc", "3", "--max_restarts", "2"},
             shell("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
                   "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_USE_AGENT_STORE $OTHER"),
             {.environment = {"OTHER=kept", "RANK=99", "TORCHELASTIC_USE_AGENT_STORE=True"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out_lines(), UnorderedElementsAre("[rank 0] 0 3 0 3 0 127.0.0.1 0 2 False kept",
                                                    "[rank 1] 1 3 1 3 0 127.0.0.1 0 2 False kept",
                                                    "[rank 2] 2 3 2 3 0 127.0.0.1 0 2 False kept"));
  EXPECT_EQ(job.err(), "");
}

TEST(Launch, ATokenIsMadeForEveryJobAndIsTheSameForAll) {
  const auto tokens_of = [](std::vector<std::string> options, const std::vector<std::string>& environment) {
    options.insert(options.end(), {"--nproc", "2", "--no-prefix"});
    Launch job(options, shell("echo token:$CONCORD_JOB_TOKEN"), {.environment = environment});
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    EXPECT_THAT(job.out_lines(), AllOf(testing::SizeIs(2), Each(job.out_lines().front())));
    return job.out_lines().front();
  };
  const std::string first = tokens_of({}, {"CONCORD_JOB_TOKEN="});
  EXPECT_EQ(first.size(), std::string("token:").size() + 32) << first;
  EXPECT_NE(tokens_of({}, {"CONCORD_JOB_TOKEN="}), first);
  EXPECT_EQ(tokens_of({}, {"CONCORD_JOB_TOKEN=of the user, long enough"}), "token:of the user, long enough");
  EXPECT_EQ(tokens_of({"--nnodes", "2", "--master_addr", "127.0.0.1"}, {"CONCORD_JOB_TOKEN="}), "token:")
      << "two machines cannot agree on one";
}

TEST(Launch, AFreePortIsTakenAndIsTheSameForAll) {
  Launch first({"--nproc", "2", "--no-prefix"},
               shell("trap 'exit 0' USR1; echo $MASTER_PORT; while :; do sleep 0.05; done"));
  ASSERT_TRUE(first.process().wait_for_text("\n", 2));
  Launch second({"--nproc", "2", "--no-prefix"}, shell("echo $MASTER_PORT"));
  EXPECT_EQ(second.exit_code(), 0) << second.err();
  first.process().signal(SIGUSR1);
  EXPECT_EQ(first.exit_code(), 0) << first.err();
  const std::string port = first.out_lines().front();
  EXPECT_THAT(first.out_lines(), ElementsAre(port, port));
  EXPECT_THAT(second.out_lines(), AllOf(testing::SizeIs(2), Each(second.out_lines().front()), Each(testing::Ne(port))));
}

TEST(Launch, StandardOutputAndErrorStayApart) {
  Launch job({"--nproc", "2"}, shell("echo out $RANK; echo err $RANK >&2"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.out_lines(), UnorderedElementsAre("[rank 0] out 0", "[rank 1] out 1"));
  EXPECT_THAT(job.err(), AllOf(HasSubstr("[rank 0] err 0\n"), HasSubstr("[rank 1] err 1\n"), Not(HasSubstr("out"))));
}

TEST(Launch, ALastLineWithoutNewlineIsNotLost) {
  Launch job({"--nproc", "2"}, shell("printf 'one\\ntwo'"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.out_lines(), UnorderedElementsAre("[rank 0] one", "[rank 0] two", "[rank 1] one", "[rank 1] two"));
}

TEST(Launch, WithoutPrefixTheBytesAreTheSame) {
  Launch job({"--nproc", "1", "--no_prefix"}, shell("printf 'one\\n\\001two'; printf err >&2"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "one\n\001two");
  EXPECT_EQ(job.err(), "err");
}

TEST(Launch, AVeryLongLineComesWhole) {
  Launch job({"--nproc", "1", "--no_prefix"}, shell("head -c 3000000 /dev/zero | tr '\\0' x; echo"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), std::string(3'000'000, 'x') + "\n");
}

TEST(Launch, LogsGoToAFileARank) {
  const TemporaryFolder folder;
  const std::string script = "echo out $RANK; echo err $RANK >&2; printf last; [ $TORCHELASTIC_RESTART_COUNT = 1 ]";
  Launch job({"--nproc", "2", "--max_restarts", "1", "--log_dir", folder.path() + "/new/logs"}, shell(script));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "");
  for (const std::string rank : {"0", "1"}) {
    const std::string text = file_text(folder.path() + "/new/logs/rank-" + rank + ".log");
    EXPECT_THAT(text, AllOf(HasSubstr("out " + rank + "\n"), HasSubstr("err " + rank + "\n"), HasSubstr("last\n"),
                            HasSubstr("--- restart 1 of 1 (attempt 2)\n")));
    EXPECT_THAT(text, Not(HasSubstr("[rank")));
  }
}

TEST(Launch, OnlyRankZeroReadsTheInput) {
  Launch job({"--nproc", "3"}, {"/bin/cat"}, {.input = "hello\n"});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.out_lines(), ElementsAre("[rank 0] hello"));
}

// All lines of each rank must be present, complete and in order.
void expect_all_lines(const std::vector<std::string>& lines, int ranks, int lines_of_each) {
  std::map<std::string, int> next;
  for (const std::string& line : lines) {
    const size_t end = line.find("] ");
    ASSERT_NE(end, std::string::npos) << line;
    ASSERT_EQ(std::stoi(line.substr(end + 2)), ++next[line.substr(0, end)]) << line;
  }
  EXPECT_EQ(next.size(), static_cast<size_t>(ranks));
  for (const auto& [rank, last] : next) EXPECT_EQ(last, lines_of_each) << rank;
}

TEST(Launch, BigOutputOfManyProcessesIsNotLost) {
  Launch job({"--nproc", "64"}, {"/usr/bin/seq", "1", "30000"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  expect_all_lines(job.out_lines(), 64, 30000);
}

TEST(Launch, ASlowReaderLosesNothing) {
  Launch job({"--nproc", "2"}, {"/usr/bin/seq", "1", "300000"}, {.read_output = false});
  // The processes cannot exit before their output has room: seq's 2 MB do not fit into the pipes.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  job.process().start_reading();
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  expect_all_lines(job.out_lines(), 2, 300000);
}

TEST(Launch, AReaderThatGoesAwayDoesNotEndTheJob) {
  const TemporaryFolder folder;
  Launch job({"--nproc", "2"}, shell("seq 1 200000 && echo done > " + folder.path() + "/$RANK"),
             {.read_output = false});
  job.process().close_output();
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/0"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/1"));
}

TEST(Launch, WorksWithClosedStandardStreams) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/out";
  RunningProcess job(
      {"/bin/sh", "-c",
       std::string(LAUNCH_PROGRAM) + " launch --nproc 2 -- sh -c 'echo x >> " + file + "; echo y; cat' <&- >&- 2>&-"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(file_text(file), "x\nx\n");
}

TEST(Launch, SignalsHaveTheirDefaultsInTheProcesses) {
  // A shell without job control ignores these signals in background processes, which inherit that.
  for (const int signal : {SIGINT, SIGQUIT}) ::signal(signal, SIG_DFL);
  Launch job({"--nproc", "1", "--no_prefix"},
             shell("yes | head -n 1; grep SigIgn /proc/self/status; grep SigBlk /proc/self/status"));
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_THAT(job.out_lines(), ElementsAre("y", "SigIgn:\t0000000000000000", "SigBlk:\t0000000000000000"));
  EXPECT_EQ(job.err(), "") << "yes complains when SIGPIPE is ignored";
}

TEST(Launch, NoDescriptorOfTheLauncherIsInherited) {
  const std::vector<std::string> list = {"/bin/ls", "/proc/self/fd"};
  RunningProcess direct(list);
  EXPECT_EQ(direct.wait(), 0);
  Launch job({"--nproc", "3", "--no_prefix"}, list);
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), direct.out() + direct.out() + direct.out());
}

TEST(Launch, ASubcommandRunsThisSameProgram) {
  Launch job({"--nproc", "2"}, {"plan", "--world_size", "2", "--rank", "1", "--json"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out_lines(), testing::SizeIs(2));
  EXPECT_THAT(job.out_lines(), Each(HasSubstr("\"world_size\":2")));
}

TEST(Launch, OptionsOfTheCommandNeedTheDashes) {
  RunningProcess job({LAUNCH_PROGRAM, "launch", "--nproc", "1", "echo", "--an-option"});
  EXPECT_EQ(WEXITSTATUS(job.wait()), 2) << "else the program's own options would be read as the launcher's";
  EXPECT_THAT(job.out(), IsEmpty());
}

TEST(Launch, OptionsAfterTheDashesBelongToTheCommand) {
  Launch job({"--nproc", "1"}, {"echo", "--nproc", "7", "--a-b", "--", "--help"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.out_lines(), ElementsAre("[rank 0] --nproc 7 --a-b -- --help"));
}

TEST(Launch, TwoMachinesMeetAtTheMaster) {
  const HeldPort port;
  const std::vector<std::string> common = {"--nproc",       "2",         "--nnodes",      "2",
                                           "--master_addr", "127.0.0.1", "--master_port", std::to_string(port.port())};
  const auto on_node = [&](const char* node) {
    std::vector<std::string> options = common;
    options.insert(options.end(), {"--node_rank", node});
    return options;
  };
  Launch second(on_node("1"), {LAUNCH_RANK, "meet"});
  Launch first(on_node("0"), {LAUNCH_RANK, "meet"});
  EXPECT_EQ(first.exit_code(), 0) << first.err();
  EXPECT_EQ(second.exit_code(), 0) << second.err();
  EXPECT_THAT(first.out_lines(), UnorderedElementsAre("[rank 0] met 0 1 2 3", "[rank 1] met 0 1 2 3"));
  EXPECT_THAT(second.out_lines(), UnorderedElementsAre("[rank 2] met 0 1 2 3", "[rank 3] met 0 1 2 3"));
}

TEST(Launch, ProcessesMeetAtAPortThatTheLauncherChose) {
  Launch job({"--nproc", "4"}, {LAUNCH_RANK, "meet"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out_lines().size(), 4u);
}

struct WrongUsage {
  std::vector<std::string> options;
  std::vector<std::string> command;
  std::vector<std::string> expected;
};

TEST(Launch, WrongUsageIsASentenceAndExitCodeTwo) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "text";
  const std::vector<std::string> ls = {"/bin/ls"};
  const WrongUsage cases[] = {
      {{"--nproc", "0"}, ls, {"--nproc is '0'", ">= 1"}},
      {{"--nproc", "-3"}, ls, {"--nproc is '-3'"}},
      {{"--nproc", "two"}, ls, {"--nproc", "two"}},
      {{}, ls, {"--nproc"}},
      {{"--nproc", "2"}, {}, {"no command", "after --"}},
      {{"--nproc", "2", "--wrong"}, ls, {"--wrong"}},
      {{"--nproc", "2", "--nnodes", "2"}, ls, {"--nnodes is 2", "--master_addr is missing"}},
      {{"--nproc", "2", "--nnodes", "0"}, ls, {"--nnodes is '0'"}},
      {{"--nproc", "2", "--node_rank", "1"}, ls, {"--node_rank is 1", "0 to 0"}},
      {{"--nproc", "2", "--node-rank", "-1"}, ls, {"--node_rank is '-1'"}},
      {{"--nproc", "2", "--master_port", "70000"}, ls, {"--master_port is '70000'", "65535"}},
      {{"--nproc", "2", "--max_restarts", "-1"}, ls, {"--max_restarts is '-1'"}},
      {{"--nproc", "2", "--spares", "1", "--max_restarts", "1"}, ls, {"--spares is 1", "cannot wait as a spare"}},
      {{"--nproc", "2", "--spares", "1"}, {"train"}, {"--spares is 1", "without --max_restarts"}},
      {{"--nproc", "2", "--node_rank", "2", "--nnodes", "2"},
       ls,
       {"--node_rank is 2", "--max_restarts", "spare machine"}},
      {{"--nproc", "2", "--grace", "-1"}, ls, {"--grace is -1"}},
      {{"--nproc", "2", "--grace", "nan"}, ls, {"--grace is nan"}},
      {{"--nproc", "2", "--log_dir", file}, ls, {"--log_dir " + file, "folder"}},
      {{"--nproc", "2"}, {"no-such-program"}, {"program 'no-such-program' not found", "PATH"}},
      {{"--nproc", "2"}, {"./no-such-program"}, {"cannot run './no-such-program'", "No such file"}},
      {{"--nproc", "2"}, {folder.path()}, {"it is a folder"}},
      {{"--nproc", "2"}, {file}, {"not executable"}},
  };
  for (const WrongUsage& wrong : cases) {
    Launch job(wrong.options, wrong.command);
    EXPECT_EQ(job.exit_code(), 2) << testing::PrintToString(wrong.options) << job.err();
    EXPECT_EQ(job.out(), "");
    for (const std::string& text : wrong.expected) EXPECT_THAT(job.err(), HasSubstr(text));
  }
}

TEST(Launch, AMasterPortInUseIsSaidAtOnce) {
  RunningProcess holder({LAUNCH_RANK, "listen"});
  ASSERT_TRUE(holder.wait_for_text("\n"));
  const std::string port = holder.out_lines().front();
  Launch job({"--nproc", "2", "--master_port", port}, {"/bin/ls"});
  EXPECT_EQ(job.exit_code(), 2);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("--master_port " + port + " is in use"), HasSubstr("omit it")));
}

TEST(Launch, AProgramThatCannotBeExecutedIsSaid) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/program";
  std::ofstream(file) << "no #! line and no ELF header";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  Launch job({"--nproc", "2", "--max_restarts", "3"}, {file});
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("process 1 of 2 could not be started"), HasSubstr("Exec format error"),
                               Not(HasSubstr("restart"))));
}

}  // namespace
}  // namespace concord::testing_processes
