#include "platform/loader/probe.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace concord::loader {
namespace {

// Two pages, of which the second cannot be touched.
class Cliff : public testing::Test {
 protected:
  Cliff() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    begin_ = static_cast<char*>(mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(begin_ + page_, page_, PROT_NONE);
    edge_ = begin_ + page_;
  }
  ~Cliff() override { munmap(begin_, 2 * page_); }

  size_t page_;
  char* begin_;
  char* edge_;
};

TEST_F(Cliff, MemoryIsReadUpToTheEdgeAndRefusedBeyond) {
  std::memset(begin_, 7, page_);
  std::string into(page_, 0);
  EXPECT_TRUE(read_memory(begin_, into.data(), page_));
  EXPECT_EQ(into, std::string(page_, 7));
  EXPECT_TRUE(read_memory(edge_ - 16, into.data(), 16));
  EXPECT_FALSE(read_memory(edge_ - 16, into.data(), 17));
  EXPECT_FALSE(read_memory(nullptr, into.data(), 1));
  EXPECT_TRUE(read_memory(nullptr, into.data(), 0));
}

TEST_F(Cliff, StringThatEndsAtTheEdgeIsReadAndOneThatRunsOverIsNot) {
  std::memcpy(edge_ - 6, "hello", 6);
  EXPECT_EQ(read_string(edge_ - 6), "hello");
  edge_[-1] = '!';
  EXPECT_EQ(read_string(edge_ - 6), std::nullopt);
  EXPECT_EQ(read_string(nullptr), std::nullopt);
}

TEST_F(Cliff, StringBeyondTheLimitIsNone) {
  std::memset(begin_, 'x', page_);
  EXPECT_EQ(read_string(begin_, 100), std::nullopt);
}

TEST_F(Cliff, CodeIsToldFromData) {
  int on_the_stack = 0;
  EXPECT_TRUE(is_code(reinterpret_cast<const void*>(&read_memory)));
  EXPECT_FALSE(is_code(&on_the_stack));
  EXPECT_FALSE(is_code(begin_));
  EXPECT_FALSE(is_code(nullptr));
}

TEST_F(Cliff, CodeMadeAtRunTimeCounts) {
  ASSERT_EQ(mprotect(begin_, page_, PROT_READ | PROT_EXEC), 0);
  EXPECT_TRUE(is_code(begin_ + 8));
}

}  // namespace
}  // namespace concord::loader
