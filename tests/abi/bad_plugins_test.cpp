// Files and plugins that cannot be used: each gives a message with the reason, none a crash.
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "platform/loader/registry.h"
#include "tests/abi/test_plugins.h"

namespace {

using namespace concord;
using test::plugin_path;
using test::ScratchFolder;
using testing::HasSubstr;
using testing::MatchesRegex;

std::string why_not(const std::string& path) {
  return test::error_of([&] { loader::open_plugin(path); });
}

concord_status status_of(const std::string& path) {
  try {
    loader::open_plugin(path);
  } catch (const Error& error) {
    return error.status();
  }
  return CONCORD_STATUS_OK;
}

// ----------------------------------------------------------------------------------------------------------- files

TEST(BadFiles, MissingFileIsSaidToBeMissing) {
  EXPECT_THAT(why_not("/nowhere/libconcord_x.so"), HasSubstr("no such file"));
}

TEST(BadFiles, FolderIsNoPlugin) { EXPECT_THAT(why_not(TEST_PLUGINS "/"), HasSubstr("it is a folder, not a file")); }

TEST(BadFiles, PipeIsNoPluginAndIsNotWaitedFor) {
  ScratchFolder folder;
  ASSERT_EQ(mkfifo(folder.file("libconcord_pipe.so").c_str(), 0600), 0);
  EXPECT_THAT(why_not(folder.file("libconcord_pipe.so")), HasSubstr("it is not a regular file"));
}

TEST(BadFiles, EmptyFileIsNoPlugin) {
  ScratchFolder folder;
  EXPECT_THAT(why_not(folder.write("libconcord_x.so", "")), HasSubstr("the file is empty"));
}

TEST(BadFiles, TextFileIsNoElfFile) {
  ScratchFolder folder;
  EXPECT_THAT(why_not(folder.write("libconcord_x.so", "INPUT ( libconcord_cpu.so )\n")),
              HasSubstr("it is not an ELF file"));
}

TEST(BadFiles, ElfHeaderCutShortIsSaidSo) {
  ScratchFolder folder;
  const std::string whole = test::read_file(plugin_path("sample"));
  EXPECT_THAT(why_not(folder.write("libconcord_a.so", whole.substr(0, 10))), HasSubstr("the ELF header is truncated"));
  EXPECT_THAT(why_not(folder.write("libconcord_b.so", whole.substr(0, 40))), HasSubstr("the ELF header is truncated"));
}

TEST(BadFiles, ElfFileCutShortAnywhereNeverReachesTheDynamicLinker) {
  ScratchFolder folder;
  const std::string whole = test::read_file(plugin_path("sample"));
  for (const size_t size : {size_t{70}, size_t{600}, whole.size() / 4, whole.size() / 2, whole.size() - 1}) {
    const std::string path = folder.write("libconcord_" + std::to_string(size) + ".so", whole.substr(0, size));
    EXPECT_THAT(why_not(path), HasSubstr("truncated: it has " + std::to_string(size) + " bytes"));
  }
}

std::string patched(size_t offset, uint16_t value, size_t bytes) {
  std::string whole = test::read_file(plugin_path("sample"));
  std::memcpy(whole.data() + offset, &value, bytes);
  return whole;
}

TEST(BadFiles, ElfFileOfAnotherArchitectureNamesBoth) {
  ScratchFolder folder;
#if defined(__x86_64__)
  const uint16_t other = EM_AARCH64;
  const char* words = "it is built for aarch64, this machine is x86-64";
#else
  const uint16_t other = EM_X86_64;
  const char* words = "it is built for x86-64, this machine is aarch64";
#endif
  EXPECT_THAT(why_not(folder.write("libconcord_x.so", patched(offsetof(Elf64_Ehdr, e_machine), other, 2))),
              HasSubstr(words));
}

TEST(BadFiles, ElfFileOfAnotherWidthOrByteOrderNamesBoth) {
  ScratchFolder folder;
  EXPECT_THAT(why_not(folder.write("libconcord_a.so", patched(EI_CLASS, ELFCLASS32, 1))),
              HasSubstr("it is built for 32-bit programs, this one has 64 bits"));
  EXPECT_THAT(why_not(folder.write("libconcord_b.so", patched(EI_DATA, ELFDATA2MSB, 1))),
              HasSubstr("it is built for big-endian machines, this one is little-endian"));
}

TEST(BadFiles, ProgramOrObjectFileIsNoSharedLibrary) {
  ScratchFolder folder;
  const size_t type = offsetof(Elf64_Ehdr, e_type);
  EXPECT_THAT(why_not(folder.write("libconcord_a.so", patched(type, ET_EXEC, 2))), HasSubstr("it is a program, not"));
  EXPECT_THAT(why_not(folder.write("libconcord_b.so", patched(type, ET_REL, 2))), HasSubstr("it is an object file"));
}

// ----------------------------------------------------------------------------------------------------- plugins

struct Defect {
  const char* plugin;
  concord_status status;
  const char* words;
};

class BadPlugin : public testing::TestWithParam<Defect> {};

TEST_P(BadPlugin, IsRefusedWithItsReason) {
  const Defect& defect = GetParam();
  const std::string path = plugin_path(defect.plugin);
  EXPECT_THAT(why_not(path), HasSubstr(defect.words));
  EXPECT_THAT(why_not(path), HasSubstr(path));
  EXPECT_EQ(status_of(path), defect.status);
}

constexpr concord_status kMismatch = CONCORD_STATUS_ABI_MISMATCH;

// The minor version that the bad plugins and this host were built with, as text.
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define MINOR TEXT(CONCORD_ABI_MINOR)

constexpr Defect kDefects[] = {
    {"no_entry", kMismatch, "it does not export concord_plugin_open"},
    {"open_throws", CONCORD_STATUS_INTERNAL,
     "concord_plugin_open threw an exception, which is not allowed for plugins: the vendor's library is in a bad mood"},
    {"open_throws_a_number", CONCORD_STATUS_INTERNAL,
     "concord_plugin_open threw an exception, which is not allowed for plugins"},
    {"open_fails", CONCORD_STATUS_UNAVAILABLE, "UNAVAILABLE: the driver is 3.1, at least 4.0 is needed"},
    {"open_fails_in_silence", CONCORD_STATUS_VENDOR_ERROR, "VENDOR_ERROR: the plugin gave no reason"},
    {"open_returns_an_unknown_code", 4711, "concord_plugin_open failed with unknown status 4711"},
    {"open_gives_null", CONCORD_STATUS_INTERNAL, "returned OK, but no plugin (null)"},
    {"open_gives_a_wild_pointer", kMismatch, "concord_plugin: the plugin's pointer to it cannot be read"},
    {"root_of_a_newer_major", kMismatch, "the plugin has ABI version 2." MINOR ", this program version 1." MINOR},
    {"root_too_small", kMismatch,
     "concord_plugin: struct_size is 16 bytes, but what version 1." MINOR " requires takes 24"},
    {"find_table_is_null", kMismatch, "find_table is null"},
    {"find_table_throws", CONCORD_STATUS_INTERNAL,
     "find_table threw an exception, which is not allowed for plugins: no tables today"},
    {"find_table_gives_a_wild_pointer", kMismatch, "table 'core': the plugin's pointer to it cannot be read"},
    {"table_of_a_newer_major", kMismatch,
     "table 'stream': the plugin has ABI version 2." MINOR ", this program version 1." MINOR},
    {"table_of_an_older_major", kMismatch,
     "table 'stream': the plugin has ABI version 0." MINOR ", this program version 1." MINOR},
    {"table_missing", kMismatch, "table 'comm' is missing"},
    {"size_below_the_head", kMismatch, "table 'stream': struct_size is 4 bytes, less than the header of a table (8)"},
    {"size_absurd", kMismatch, "table 'stream': struct_size is 1073741824 bytes, which is implausible"},
    {"size_without_required_slots", kMismatch,
     "table 'stream': struct_size is 24 bytes, but what version 1." MINOR " requires takes 64"},
    {"size_beyond_its_version", kMismatch,
     "table 'stream': struct_size is 80 bytes, but version 1." MINOR " of it has 72"},
    {"slot_null", kMismatch, "table 'comm': slot 'all_gather' is null, but version 1.0 requires it"},
    {"size_that_covers_foreign_data", kMismatch, "table 'event': slot 'query' does not point to a function"},
    {"size_that_covers_no_memory", kMismatch,
     "table 'event': struct_size is 64 bytes, but not all of them can be read"},
    {"name_null", kMismatch, "table 'core': name is null, but required"},
    {"name_with_spaces", kMismatch, "table 'core': name is 'My Device'; it must consist of lower-case letters"},
    {"label_null", kMismatch, "table 'core': label is null, but required"},
    {"version_wild", kMismatch, "table 'core': version does not point to a string"},
    {"capabilities_null", kMismatch, "capability_count is 4, but capabilities is null"},
    {"capabilities_negative", kMismatch, "capability_count is -1; it must be 0 to"},
    {"capability_without_a_name", kMismatch, "the name of a capability is null"},
};

INSTANTIATE_TEST_SUITE_P(Each, BadPlugin, testing::ValuesIn(kDefects),
                         [](const auto& instance) { return std::string(instance.param.plugin); });

TEST(BadPlugins, EveryDefectThatIsBuiltIsTested) {
  std::set<std::string> tested;
  for (const Defect& defect : kDefects) tested.insert(plugin_path(defect.plugin));
  const std::set<std::string> good = {"sample", "low", "high", "high_too", "empty", "driverless", "layered", "frozen"};
  for (const auto& entry : std::filesystem::directory_iterator(TEST_PLUGINS)) {
    const std::string name = loader::plugin_name_of_file(entry.path());
    if (name.starts_with("fine_") || good.count(name) != 0) continue;
    EXPECT_EQ(tested.count(entry.path()), 1u) << name;
  }
}

TEST(BadPlugins, FailureStaysTheSameWhenAskedAgain) {
  const std::string path = plugin_path("open_fails");
  EXPECT_EQ(why_not(path), why_not(path));
}

}  // namespace
