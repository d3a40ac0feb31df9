#include "trainer/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <string_view>
#include <vector>

#include "core/base/bytes_text.h"

namespace concord {
namespace {

constexpr int64_t kColumnsUnknown = 80;
constexpr int64_t kMinBar = 8;
constexpr int64_t kMaxBar = 30;
constexpr double kRedrawSeconds = 0.1;
constexpr double kSecondsBetweenCalls = 0.7;  // after which the line is redrawn without a call

struct Field {
  std::string text;
  int importance;  // 0: always shown; the largest is dropped first
};

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";  // without the sign that some NaNs have
  if (std::isinf(value)) return fmt::format("{}", value);
  return std::abs(value) >= 1e5 ? fmt::format("{:.3e}", value) : fmt::format("{:.4f}", value);
}

std::string step_text(const Progress& progress) {
  if (progress.max_steps <= 0) return fmt::format("step {}", progress.step);
  const std::string most = fmt::format("{}", progress.max_steps);
  return fmt::format("step {:>{}}/{}", progress.step, most.size(), most);
}

// Returns the fields in display order.
std::vector<Field> fields_of(const Progress& progress) {
  std::vector<Field> fields = {{step_text(progress), 0}};
  if (progress.loss) fields.push_back({"loss " + number_text(*progress.loss), 0});
  for (const auto& [name, value] : progress.of_pairs) fields.push_back({name + " " + number_text(value), 2});
  if (progress.learning_rate) fields.push_back({fmt::format("lr {:.2e}", *progress.learning_rate), 3});
  const bool has_norm = progress.grad_norm && (progress.skipped.empty() || std::isfinite(*progress.grad_norm));
  if (has_norm) fields.push_back({"grad norm " + number_text(*progress.grad_norm), 4});
  if (!progress.skipped.empty()) fields.push_back({progress.skipped, 0});
  if (progress.tokens_per_second) fields.push_back({count_text(*progress.tokens_per_second) + " tokens/s", 2});
  if (progress.mfu) fields.push_back({fmt::format("MFU {:.1f} %", 100 * *progress.mfu), 5});
  if (progress.memory_bytes > 0) fields.push_back({bytes_text(progress.memory_bytes), 6});
  if (progress.seconds_left) fields.push_back({duration_text(*progress.seconds_left) + " left", 1});
  return fields;
}

int64_t length_of(const std::vector<Field>& fields) {
  int64_t length = 0;
  for (const Field& field : fields) length += static_cast<int64_t>(field.text.size()) + 2;
  return length - 2;
}

// Drops the least important fields if there is not enough space.
std::vector<Field> fitting_fields(const Progress& progress, int64_t columns) {
  std::vector<Field> fields = fields_of(progress);
  while (length_of(fields) > columns) {
    const auto least = std::max_element(fields.begin(), fields.end(),
                                        [](const Field& a, const Field& b) { return a.importance < b.importance; });
    if (least->importance == 0) break;
    fields.erase(least);
  }
  return fields;
}

std::string joined(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) text.append(text.empty() ? "" : "  ").append(field.text);
  return text;
}

std::string bar_text(const Progress& progress, int64_t room) {
  const double done =
      std::clamp(static_cast<double>(progress.step) / static_cast<double>(progress.max_steps), 0.0, 1.0);
  const int64_t cells = std::min(room - 2, kMaxBar);
  const auto filled = static_cast<int64_t>(std::floor(done * static_cast<double>(cells)));
  return fmt::format("[{}{}]", std::string(static_cast<size_t>(filled), '='),
                     std::string(static_cast<size_t>(cells - filled), ' '));
}

int64_t columns_of(int file) {
  winsize size{};
  return ::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kColumnsUnknown;
}

void write_out(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Returns the values for the redrawn line; the log lines above it show the rest.
Progress brief(const Progress& progress) {
  return {.step = progress.step,
          .max_steps = progress.max_steps,
          .loss = progress.loss,
          .tokens_per_second = progress.tokens_per_second,
          .seconds_left = progress.seconds_left};
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const int64_t whole = std::llround(seconds);
  const int64_t days = whole / 86'400;
  const int64_t hours = whole / 3600 % 24;
  const int64_t minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{} d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string count_text(double count) {
  if (!std::isfinite(count)) return "?";
  constexpr std::array<std::string_view, 5> kUnits = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(count) >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  const int digits = unit == 0 ? 0 : count < 9.995 ? 2 : count < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", count, digits, kUnits[unit]);
}

std::string progress_line(const Progress& progress, int64_t columns) {
  std::vector<Field> fields = fitting_fields(progress, columns);
  const int64_t room = columns - length_of(fields) - 2;
  if (progress.max_steps > 0 && room >= kMinBar + 2) fields.insert(fields.begin() + 1, {bar_text(progress, room), 0});
  return joined(fields).substr(0, static_cast<size_t>(std::max<int64_t>(columns, 0)));
}

std::string plain_line(const Progress& progress) { return joined(fields_of(progress)); }

std::string plain_line(const Progress& progress, int64_t columns) {
  return joined(fitting_fields(progress, columns)).substr(0, static_cast<size_t>(std::max<int64_t>(columns, 0)));
}

ProgressDisplay::ProgressDisplay(int file, ProgressMode mode) : file_(file), mode_(mode) {
  if (mode_ == ProgressMode::automatic) mode_ = ::isatty(file) == 1 ? ProgressMode::line : ProgressMode::plain;
}

ProgressDisplay::~ProgressDisplay() {
  end();
  {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
  }
  ended_.notify_all();
  if (redrawing_.joinable()) redrawing_.join();
}

void ProgressDisplay::draw(const Progress& progress, const std::string& above) {
  if (!redrawing_.joinable()) redrawing_ = std::thread(&ProgressDisplay::redraw_every_second, this);
  // The last column stays free: some terminals wrap once it is filled.
  const std::string line = progress_line(brief(progress), columns_of(file_) - 1);
  repeats_log_ = !above.empty() || (repeats_log_ && line == drawn_);
  drawn_at_ = monotonic_seconds();
  if (line == drawn_ && above.empty()) return;
  drawn_ = line;
  write_out(file_, fmt::format("{}\r{}\x1b[K", above, line));
}

void ProgressDisplay::redraw_every_second() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::milliseconds(250), [this] { return is_ended_; })) {
    const double now = monotonic_seconds();
    if (drawn_.empty() || now - drawn_at_ < kSecondsBetweenCalls) continue;
    Progress progress = shown_;
    if (progress.seconds_left) progress.seconds_left = std::max(0.0, *progress.seconds_left - (now - shown_at_));
    const bool repeats_log = repeats_log_;
    draw(progress, "");
    repeats_log_ = repeats_log;  // only the time left may differ
  }
}

void ProgressDisplay::show(const Progress& progress) {
  shown_ = progress;
  shown_at_ = monotonic_seconds();
}

void ProgressDisplay::logged(const Progress& progress) {
  const std::lock_guard lock(mutex_);
  if (mode_ == ProgressMode::plain) write_out(file_, plain_line(progress) + "\n");
  if (mode_ != ProgressMode::line) return;
  show(progress);
  draw(progress, fmt::format("\r{}\x1b[K\n", plain_line(progress, columns_of(file_) - 1)));
}

void ProgressDisplay::moved(const Progress& progress) {
  if (mode_ != ProgressMode::line) return;
  const std::lock_guard lock(mutex_);
  show(progress);
  if (monotonic_seconds() - drawn_at_ >= kRedrawSeconds) draw(progress, "");
}

void ProgressDisplay::note(const std::string& text) {
  if (mode_ == ProgressMode::none) return;
  const std::lock_guard lock(mutex_);
  if (drawn_.empty()) return write_out(file_, text + "\n");
  write_out(file_, "\r\x1b[K" + text + "\n" + drawn_);
}

void ProgressDisplay::end() {
  const std::lock_guard lock(mutex_);
  if (!drawn_.empty()) write_out(file_, repeats_log_ ? "\r\x1b[K" : "\n");
  drawn_.clear();
}

}  // namespace concord
