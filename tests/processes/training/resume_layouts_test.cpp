// Every ordered pair of layouts: a checkpoint saved by one is read and saved again by the other, byte for byte.
// resume_test chains them, and would miss a defect that only one pair shows.
#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

// A list of layouts, and the one of them that saves.
struct Saver {
  std::vector<Layout> (*all)();
  int tokens;
  Layout layout;
};

class ResumeLayouts : public TrainResume, public ::testing::WithParamInterface<Saver> {};

TEST_P(ResumeLayouts, LoadWhatThisOneHasSaved) {
  tokens_ = GetParam().tokens;
  run("saved", GetParam().layout.args + Args{"--max_steps", "5"});
  for (const Layout& layout : GetParam().all()) {
    SCOPED_TRACE(layout.name);
    run(layout.name, layout.args + Args{"--max_steps", "5", "--resume_from_checkpoint", path("saved/checkpoint-5")});
    expect_same_tensors("saved/checkpoint-5", layout.name + "/checkpoint-5");
    fs::remove_all(path(layout.name));
  }
}

std::vector<Saver> savers() {
  std::vector<Saver> savers;
  for (const Layout& layout : layouts()) savers.push_back({layouts, 300, layout});
  for (const Layout& layout : expert_layouts()) savers.push_back({expert_layouts, kExpertTokens, layout});
  return savers;
}

INSTANTIATE_TEST_SUITE_P(All, ResumeLayouts, ::testing::ValuesIn(savers()),
                         [](const auto& saver) { return saver.param.layout.name; });

}  // namespace
}  // namespace concord::testing_processes
