#include "core/base/refused_combinations.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace concord {
namespace {

TEST(RefusedCombinations, ThePageOfTheDocsIsTheTableOfTheChecks) {
  const std::string file = CONCORD_DOCS "/refused-combinations.md";
  if (std::getenv("CONCORD_WRITE_DOCS") != nullptr) std::ofstream(file) << refused_combinations_page();
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_EQ(text.str(), refused_combinations_page()) << "write it again, as it says";
}

TEST(RefusedCombinations, AMessageHasTheValuesTheReasonAndTheRemedy) {
  const RefusedCombination& first = refused_combinations().front();
  EXPECT_EQ(refusal_message(first.key), std::string(first.settings) + " is not supported: " + first.why + "; " + first.remedy);
  EXPECT_THAT(refusal_message(first.key, "use_dora with fp8 hybrid"),
              ::testing::StartsWith("use_dora with fp8 hybrid is not supported: "));
}

}  // namespace
}  // namespace concord
