// What `concord train` tells the person who started it, and what it leaves for the programs that come after it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <pty.h>

#include <memory>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

class TrainOutput : public Train {
 protected:
  // |words| of a run that has to end well; what it said.
  std::string said_by(const std::vector<std::string>& more) {
    TrainProgram program(words(more));
    EXPECT_EQ(program.exit_code(), 0) << program.err();
    return program.out() + program.err();
  }
  std::vector<nlohmann::json> evaluations() const { return read_lines(path("out/eval_metrics.jsonl")); }
};

// As srun starts them: nobody ends the others.
TEST_F(TrainOutput, AnErrorThatAllRanksShareIsPrintedOnce) {
  std::vector<std::unique_ptr<TrainProgram>> ranks;
  for (const std::string rank : {"0", "1", "2"}) {
    ranks.push_back(std::make_unique<TrainProgram>(
        words({"--learning_rate", "fast"}),
        ProcessSettings{.environment = {"RANK=" + rank, "LOCAL_RANK=" + rank, "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3",
                                        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29557"}}));
  }
  std::string said;
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->exit_code(), 2);
    said += rank->err();
  }
  EXPECT_EQ(count_of(said, "learning_rate is 'fast'"), 1u) << said;
}

TEST_F(TrainOutput, NothingThatItAdvisesNeedsTheSources) {
  TrainProgram program({"--output_dir", path("first"), "--max_steps", "2", "--logging_steps", "1"});
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  const std::string said = program.out() + program.err();
  EXPECT_THAT(said, AllOf(Not(HasSubstr("./run")), HasSubstr("next: "), HasSubstr("concord train --max_steps 1000")));
  RunningProcess doctor({LAUNCH_PROGRAM, "doctor"});
  doctor.wait();
  EXPECT_THAT(doctor.out(), Not(HasSubstr("./run")));
}

TEST_F(TrainOutput, AWordThatIsNearlyASubcommandIsToldWhich) {
  RunningProcess process({LAUNCH_PROGRAM, "trian", "--max_steps", "3"});
  const int status = process.wait();
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(process.err(), HasSubstr("there is no subcommand 'trian'; did you mean train?"));
}

}  // namespace
}  // namespace concord::testing_processes
