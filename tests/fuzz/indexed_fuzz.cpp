// Any bytes as the .idx of Megatron data: refused with a ConfigError, or a data set all of which can be read.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/config_error.h"
#include "tests/fuzz/check.h"
#include "trainer/data/indexed_dataset.h"

namespace concord::fuzz {
namespace {

constexpr size_t kBinBytes = 264;  // as the corpus's

void write(const std::string& path, const void* bytes, size_t count) {
  FILE* const file = std::fopen(path.c_str(), "wb");
  check(file != nullptr && std::fwrite(bytes, 1, count, file) == count && std::fclose(file) == 0,
        "the file is written");
}

// In memory where that is possible; goes away with the process.
class Folder {
 public:
  Folder() {
    path_ =
        (::access("/dev/shm", W_OK) == 0 ? std::string("/dev/shm") : std::filesystem::temp_directory_path().string());
    path_ += "/concord_fuzz_XXXXXX";
    check(::mkdtemp(path_.data()) != nullptr, "the folder is made");
    const std::vector<char> tokens(kBinBytes, 1);
    write(prefix() + ".bin", tokens.data(), tokens.size());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string prefix() const { return path_ + "/fuzz"; }

 private:
  std::string path_;
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
  static const fuzz::Folder folder;
  fuzz::write(folder.prefix() + ".idx", data, size);
  try {
    fuzz::read_all(IndexedDataset(folder.prefix()));
  } catch (const ConfigError& error) {
    fuzz::check_error(error.what(), folder.prefix());
  }
  return 0;
}
