#include "core/launch/processes/process_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/config_error.h"
#include "core/base/process_list.h"

namespace concord {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const char* name, const char* path) {
  try {
    return "found " + find_program(name, path);
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(FindProgram, SearchesTheFoldersOfThePathInTheirOrder) {
  EXPECT_EQ(find_program("sh", "/nowhere:/bin:/usr/bin"), "/bin/sh");
  EXPECT_EQ(find_program("sh", "/usr/bin:/bin"), "/usr/bin/sh");
}

TEST(FindProgram, TakesAPathAsItIs) { EXPECT_EQ(find_program("/bin/sh", ""), "/bin/sh"); }

TEST(FindProgram, SaysWhatItTriedAndWhatToDo) {
  EXPECT_THAT(error_of("no-such-program", "/bin:/nowhere"),
              AllOf(HasSubstr("'no-such-program'"), HasSubstr("/bin:/nowhere"), HasSubstr("./no-such-program")));
  EXPECT_THAT(error_of("/no/such/program", "/bin"), HasSubstr("No such file"));
  EXPECT_THAT(error_of("/etc", "/bin"), HasSubstr("a folder"));
  EXPECT_THAT(error_of("/etc/passwd", "/bin"), HasSubstr("not executable"));
}

TEST(ProcessList, ReadsALineWhoseNameHasBlanksAndParentheses) {
  ProcessEntry entry;
  ASSERT_TRUE(parse_process_stat("42 (a) (b c) S 7 41 40 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 3 0 777 9 9", &entry));
  EXPECT_EQ(entry.pid, 42);
  EXPECT_EQ(entry.name, "a) (b c");
  EXPECT_EQ(entry.state, 'S');
  EXPECT_EQ(entry.threads, 3);
  EXPECT_EQ(entry.start_time, 777u);
  EXPECT_EQ(entry.parent, 7);
  EXPECT_EQ(entry.session, 40);
  EXPECT_FALSE(parse_process_stat("", &entry));
  EXPECT_FALSE(parse_process_stat("42 (a", &entry));
  EXPECT_FALSE(parse_process_stat("42 (a) S", &entry));
}

TEST(ProcessList, HoldsThisProcess) {
  bool found = false;
  for (const ProcessEntry& entry : list_processes()) {
    if (entry.pid != getpid()) continue;
    found = true;
    EXPECT_EQ(entry.parent, getppid());
    EXPECT_EQ(entry.session, getsid(0));
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace concord
