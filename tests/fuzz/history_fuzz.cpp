// Any bytes as the metrics of a run: either rejected with the file and the line, or steps that survive a round trip.
#include <cstdint>

#include "tests/fuzz/folder.h"
#include "trainer/report/history.h"

namespace concord::fuzz {
namespace {

std::string lines_of(const RunHistory& history) {
  std::string text;
  for (const LoggedStep& step : history.steps) text += metrics_line(step) + "\n";
  return text;
}

}  // namespace
}  // namespace concord::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  static const fuzz::Folder folder;
  const std::string file = folder.path() + "/" + kMetricsFile;
  fuzz::write(file, data, size);
  RunHistory history;
  try {
    history = read_history(folder.path());
  } catch (const std::runtime_error& error) {
    fuzz::check_error(error.what(), file);
    return 0;
  }
  const std::string text = fuzz::lines_of(history);
  fuzz::write(file, text.data(), text.size());
  fuzz::check(fuzz::lines_of(read_history(folder.path())) == text, "written and read again, they are the same");
  return 0;
}
