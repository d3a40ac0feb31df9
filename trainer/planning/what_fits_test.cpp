#include "trainer/planning/what_fits.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/models/config.h"

namespace concord {
namespace {

TEST(WhatFits, ThePageOfTheDocsIsPlannedByTheProgram) {
  const std::string file = CONCORD_DOCS "/what-fits.md", page = what_fits_page();
  if (std::getenv("CONCORD_WRITE_DOCS") != nullptr) std::ofstream(file) << page;
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(text.str(), page) << "write it again, as it says";
}

// The numbers of parameters in the models' files.
TEST(WhatFits, ShapesAreThoseOfThePublishedModels) {
  std::vector<int64_t> counts;
  for (const PublishedModel& model : published_models()) {
    counts.push_back(parameter_count(parse_model_config(config_text(model), model.name)));
  }
  EXPECT_THAT(counts, testing::ElementsAre(494032768, 1543714304, 3085938688, 7615616512, 8030261248, 14770033664,
                                           32763876352, 70553706496));
}

}  // namespace
}  // namespace concord
