// `concord train` for a model that fits into no machine.
#include <gmock/gmock.h>

#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MemoryCheck : public Train {
 protected:
  // 16 TB of state, in a few layers, so that a test need not wait for many.
  std::vector<std::string> huge_run(const std::vector<std::string>& more) {
    std::ofstream(path("config.json")) << R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
 "hidden_size": 262144, "intermediate_size": 1048576, "num_hidden_layers": 1, "num_attention_heads": 2048,
 "num_key_value_heads": 256, "vocab_size": 1024, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
 "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "float32"})";
    std::vector<std::string> args = train_args(more);
    args[0] = "--model_config";
    args[1] = path("config.json");
    return args;
  }
};

TEST_F(MemoryCheck, ARunThatCannotFitIsRefusedAtItsStart) {
  for (const char* ranks : {"1", "2"}) {
    TrainProgram program(huge_run({"--nproc", ranks}));
    EXPECT_EQ(program.exit_code(), 2) << program.err();
    EXPECT_THAT(program.err(), AllOf(HasSubstr("the run needs at least 14.3"), HasSubstr("TiB"),
                                     HasSubstr("first moments in fp32"), HasSubstr("check_memory false")));
    EXPECT_FALSE(std::filesystem::exists(path("out/metrics.jsonl")));
  }
}

// Then allocating the first weight fails.
TEST_F(MemoryCheck, CheckMemoryFalseStartsTheRun) {
  int overcommits = 1;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommits;
  if (overcommits == 1) GTEST_SKIP() << "this system grants any memory and ends processes that use it";
  TrainProgram program(huge_run({"--check_memory", "false"}));
  EXPECT_NE(program.exit_code(), 0);
  EXPECT_THAT(program.err(), Not(HasSubstr("the run needs at least")));
}

}  // namespace
}  // namespace concord::testing_processes
