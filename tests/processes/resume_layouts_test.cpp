// Every ordered pair of layouts: what one has saved, another reads and writes again, to the last byte. resume_test has
// them in a row; a defect that only one pair shows would be missed there.
#include "tests/processes/resume_runs.h"

namespace concord::testing_processes {
namespace {

class ResumeLayouts : public TrainResume, public ::testing::WithParamInterface<Layout> {};

TEST_P(ResumeLayouts, LoadWhatThisOneHasSaved) {
  run("saved", GetParam().words + Words{"--max_steps", "5"});
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    run(layout.name, layout.words + Words{"--max_steps", "5", "--resume_from_checkpoint", path("saved/checkpoint-5")});
    expect_same_tensors("saved/checkpoint-5", layout.name + "/checkpoint-5");
    fs::remove_all(path(layout.name));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ResumeLayouts, ::testing::ValuesIn(layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace concord::testing_processes
