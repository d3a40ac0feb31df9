#include "trainer/cli/conform/zip_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/processes/ended_process.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using testing_processes::EndedProcess;
using testing_processes::run_to_end;

// Python's zipfile checks the structure and the checksums.
TEST(ZipFile, IsReadByPythonWithItsNamesAndContents) {
  const tests::TemporaryFolder folder;
  ZipFile zip;
  std::string noise;
  for (uint32_t i = 0, x = 1; i < 100000; ++i) noise.push_back(static_cast<char>((x = x * 1664525 + 1013904223) >> 24));
  zip.add("empty.txt", "");
  zip.add("a folder/zeros.bin", std::string(3'000'000, '\0'));
  zip.add("a folder/noise.bin", noise);
  const std::string bytes = zip.archive();
  EXPECT_LT(bytes.size(), 120'000u);
  std::ofstream(folder / "a.zip", std::ios::binary) << bytes;
  const EndedProcess python = run_to_end({"/usr/bin/env", "python3", "-c", R"(
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive:
    assert archive.testzip() is None
    assert archive.namelist() == ['empty.txt', 'a folder/zeros.bin', 'a folder/noise.bin'], archive.namelist()
    assert archive.read('empty.txt') == b''
    assert archive.read('a folder/zeros.bin') == bytes(3000000)
    noise, x = bytearray(), 1
    for i in range(100000):
        x = (x * 1664525 + 1013904223) % 2**32
        noise.append(x >> 24)
    assert archive.read('a folder/noise.bin') == bytes(noise)
)",
                                          folder / "a.zip"});
  EXPECT_EQ(python.exit_code, 0) << python.err;
}

}  // namespace
}  // namespace concord
