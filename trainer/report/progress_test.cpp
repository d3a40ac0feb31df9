#include "trainer/report/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

namespace concord {
namespace {

using testing::HasSubstr;
using testing::Not;

Progress whole() {
  return {.step = 120,
          .max_steps = 1000,
          .loss = 3.21459,
          .learning_rate = 3e-4,
          .grad_norm = 1.2345,
          .tokens_per_second = 12345,
          .mfu = 0.4123,
          .memory_bytes = int64_t{3} << 29,
          .seconds_left = 3723};
}

TEST(Progress, APlainLineHasAllThatIsKnown) {
  EXPECT_EQ(plain_line(whole()),
            "step  120/1000  loss 3.2146  lr 3.00e-04  grad norm 1.2345  12.3k tokens/s  MFU 41.2 %  1.50 GiB  "
            "1:02:03 left");
  EXPECT_EQ(plain_line({.step = 3}), "step 3");
}

TEST(Progress, ALineWithRoomHasABarOfTheShareDone) {
  Progress progress = whole();
  progress.step = 500;
  EXPECT_EQ(progress_line(progress, 200).substr(0, 50), "step  500/1000  [===============               ]  ");
  progress.step = 1000;
  EXPECT_THAT(progress_line(progress, 200), HasSubstr("[==============================]"));
  progress.step = 0;
  EXPECT_THAT(progress_line(progress, 200), HasSubstr("[                              ]"));
}

TEST(Progress, ALineIsNeverLongerThanTheTerminal) {
  for (int64_t columns = 0; columns <= 200; ++columns)
    EXPECT_LE(progress_line(whole(), columns).size(), static_cast<size_t>(columns));
}

TEST(Progress, TheLeastImportantGoesFirst) {
  std::vector<std::string> words = {"GiB", "MFU", "grad norm", "lr", "tokens/s", "left"};
  size_t gone = 0;
  for (int64_t columns = 120; columns >= 27; --columns) {
    const std::string line = progress_line(whole(), columns);
    while (gone < words.size() && line.find(words[gone]) == std::string::npos) ++gone;
    for (size_t i = gone; i < words.size(); ++i) EXPECT_THAT(line, HasSubstr(words[i])) << columns << " columns";
    EXPECT_THAT(line, HasSubstr("loss 3.2146")) << columns << " columns";
  }
  EXPECT_EQ(gone, words.size());
}

TEST(Progress, LossesThatAreNotFiniteOrHugeAreShown) {
  EXPECT_THAT(plain_line({.step = 1, .loss = std::nan("")}), HasSubstr("loss nan"));
  EXPECT_THAT(plain_line({.step = 1, .loss = INFINITY}), HasSubstr("loss inf"));
  EXPECT_THAT(plain_line({.step = 1, .loss = 1.5e30}), HasSubstr("loss 1.500e+30"));
}

TEST(Progress, NumbersAreShort) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(999.7), "1.00k");
  EXPECT_EQ(count_text(9996), "10.0k");
  EXPECT_EQ(count_text(84600), "84.6k");
  EXPECT_EQ(count_text(999'600), "1.00M");
  EXPECT_EQ(count_text(1.5e12), "1.50T");
  EXPECT_EQ(duration_text(59.6), "1:00");
  EXPECT_EQ(duration_text(3600), "1:00:00");
  EXPECT_EQ(duration_text(2 * 86400 + 3 * 3600 + 240), "2 d 03:04");
  EXPECT_EQ(duration_text(NAN), "?");
  EXPECT_EQ(duration_text(-1), "?");
}

TEST(Progress, AStepThatWasSkippedSaysSoInsteadOfANormThatIsNone) {
  Progress progress = whole();
  progress.grad_norm = -std::nan("");
  EXPECT_THAT(plain_line(progress), HasSubstr("grad norm nan")) << "without a sign";
  progress.skipped = "skipped, loss scale halved to 1024";
  EXPECT_THAT(plain_line(progress), testing::AllOf(HasSubstr("  skipped, loss scale halved to 1024  "),
                                                   testing::Not(HasSubstr("grad norm"))));
}

// The values that the redrawn line shows.
Progress brief() {
  Progress progress = whole();
  progress.learning_rate = progress.grad_norm = progress.mfu = std::nullopt;
  progress.memory_bytes = 0;
  return progress;
}

std::string drawn(int64_t columns) { return fmt::format("\r{}\x1b[K", progress_line(brief(), columns)); }
std::string logged(int64_t columns) {
  return fmt::format("\r{}\x1b[K\r\n{}", plain_line(whole(), columns), drawn(columns));
}

// The program's end of a terminal of |columns| columns, and its output.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = columns;
    if (::openpty(&outside_, &inside_, nullptr, nullptr, &size) != 0) throw std::runtime_error("no pseudo terminal");
    ::fcntl(outside_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    ::close(inside_);
    ::close(outside_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int file() const { return inside_; }
  void resize(unsigned short columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = columns;
    ::ioctl(inside_, TIOCSWINSZ, &size);
  }
  std::string seen() const {
    std::array<char, 8192> bytes{};
    const ssize_t count = ::read(outside_, bytes.data(), bytes.size());
    return count > 0 ? std::string(bytes.data(), static_cast<size_t>(count)) : "";
  }

 private:
  int outside_ = -1;
  int inside_ = -1;
};

TEST(Progress, OnATerminalTheLineIsRedrawnInPlaceWithoutClearingFirst) {
  const Terminal terminal(60);
  ProgressDisplay display(terminal.file(), ProgressMode::automatic);
  display.moved(whole());
  EXPECT_EQ(terminal.seen(), drawn(59));
  display.moved(whole());
  EXPECT_EQ(terminal.seen(), "") << "the same line was drawn twice";
  display.logged(whole());
  EXPECT_EQ(terminal.seen(), logged(59)) << "what was logged stays above the line";
  terminal.resize(40);
  display.logged(whole());
  EXPECT_EQ(terminal.seen(), logged(39));
  display.end();
  EXPECT_EQ(terminal.seen(), "\r\x1b[K") << "it would say what was logged once more";
  ProgressDisplay unlogged(terminal.file(), ProgressMode::automatic);
  unlogged.moved(whole());
  terminal.seen();
  unlogged.end();
  EXPECT_EQ(terminal.seen(), "\r\n");  // the terminal's own return
}

TEST(Progress, TheTimeLeftRunsDownDuringALongStep) {
  const Terminal terminal(60);
  ProgressDisplay display(terminal.file(), ProgressMode::automatic);
  display.moved(whole());
  EXPECT_THAT(terminal.seen(), HasSubstr("1:02:03 left"));
  std::string seen;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (seen.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    seen = terminal.seen();
  }
  EXPECT_THAT(seen, testing::AllOf(HasSubstr("loss 3.2146"), HasSubstr(" left"), Not(HasSubstr("1:02:03"))));
  display.end();
  terminal.seen();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(terminal.seen(), "") << "drawn after the end";
}

TEST(Progress, ANoteStandsAboveTheLine) {
  const Terminal terminal(60);
  ProgressDisplay display(terminal.file(), ProgressMode::automatic);
  display.note("before");
  EXPECT_EQ(terminal.seen(), "before\r\n");
  display.logged(whole());
  terminal.seen();
  display.note("checkpoint saved");
  EXPECT_EQ(terminal.seen(), fmt::format("\r\x1b[Kcheckpoint saved\r\n{}", progress_line(brief(), 59)));
}

TEST(Progress, ElsewhereEveryLoggedStepIsAPlainLine) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_NONBLOCK), 0);
  {
    ProgressDisplay display(ends[1], ProgressMode::automatic);
    display.moved(whole());
    display.logged(whole());
    display.note("note");
    ProgressDisplay silent(ends[1], ProgressMode::none);
    silent.logged(whole());
    silent.note("not seen");
  }
  std::array<char, 1024> bytes{};
  const ssize_t count = ::read(ends[0], bytes.data(), bytes.size());
  EXPECT_EQ(std::string(bytes.data(), static_cast<size_t>(std::max<ssize_t>(count, 0))),
            plain_line(whole()) + "\nnote\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Progress, ATerminalThatIsGoneEndsNothing) {
  ProgressDisplay display(-1, ProgressMode::line);
  EXPECT_NO_THROW(display.logged(whole()));
  EXPECT_NO_THROW(display.note("nobody reads this"));
}

}  // namespace
}  // namespace concord
