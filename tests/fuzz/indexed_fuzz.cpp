// Any bytes as the .idx of Megatron data: either rejected with a ConfigError, or a data set that can be read
// completely.
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config_error.h"
#include "tests/fuzz/folder.h"
#include "trainer/data/sources/indexed_dataset.h"

namespace concord::fuzz {
namespace {

constexpr size_t kBinBytes = 264;  // size of the corpus's .bin

class Corpus {
 public:
  Corpus() {
    const std::vector<char> tokens(kBinBytes, 1);
    write(prefix() + ".bin", tokens.data(), tokens.size());
  }
  std::string prefix() const { return folder_.path() + "/fuzz"; }

 private:
  Folder folder_;
};

void read_all(const IndexedDataset& data) {
  for (int64_t i = 0; i < data.size(); ++i) {
    std::vector<int64_t> ids(static_cast<size_t>(data.length(i)));
    data.read(i, 0, data.length(i), ids.data());
    check(!data.place(i).empty(), "a sequence has a place");
  }
}

}  // namespace
}  // namespace concord::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  static const fuzz::Corpus corpus;
  fuzz::write(corpus.prefix() + ".idx", data, size);
  try {
    fuzz::read_all(IndexedDataset(corpus.prefix()));
  } catch (const ConfigError& error) {
    fuzz::check_error(error.what(), corpus.prefix());
  }
  return 0;
}
