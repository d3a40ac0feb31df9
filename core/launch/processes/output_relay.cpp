#include "core/launch/processes/output_relay.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr size_t kTail = 8192;  // minimum bytes of standard error kept for the report

int milliseconds_until(OutputRelay::Deadline deadline) {
  if (!deadline) return -1;
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(rest.count(), 0, 1'000'000));
}

void keep_tail(std::string_view bytes, std::string* tail) {
  *tail += bytes;
  if (tail->size() > 2 * kTail) tail->erase(0, tail->size() - kTail);
}

}  // namespace

OutputRelay::OutputRelay(const OutputStyle& style, int first_rank, int ranks)
    : style_(style),
      first_rank_(first_rank),
      stdout_(1, "standard output"),
      stderr_(2, "standard error"),
      tails_(static_cast<size_t>(ranks)) {
  if (style_.log_dir.empty()) return;
  try {
    std::filesystem::create_directories(style_.log_dir);
    for (int i = 0; i < ranks; ++i) logs_.emplace_back(fmt::format("{}/rank-{}.log", style_.log_dir, first_rank + i));
  } catch (const std::system_error& error) {
    throw ConfigError(fmt::format("--log_dir {}: {}; choose a writable folder", style_.log_dir, error.what()));
  }
}

void OutputRelay::attach(int index, StartedProcess* process) {
  const auto slot = static_cast<size_t>(index);
  const bool to_log = !logs_.empty();
  const bool prefixed = style_.prefix && !to_log;
  const std::string prefix = prefixed ? fmt::format("[rank {}] ", first_rank_ + index) : "";
  const LinePrefixer lines(prefix, prefixed || to_log);
  tails_[slot].clear();
  streams_.push_back({std::move(process->out), to_log ? &logs_[slot] : &stdout_, lines, nullptr});
  streams_.push_back({std::move(process->err), to_log ? &logs_[slot] : &stderr_, lines, &tails_[slot]});
}

std::vector<OutputSink*> OutputRelay::sinks() {
  std::vector<OutputSink*> all = {&stdout_, &stderr_};
  for (OutputSink& log : logs_) all.push_back(&log);
  return all;
}

OutputRelay::Waited OutputRelay::wait(int signal_fd, Deadline deadline) {
  const std::vector<OutputSink*> all_sinks = sinks();
  std::vector<pollfd> polled = {{signal_fd, POLLIN, 0}};
  // A negative descriptor is skipped: a hang-up would be reported repeatedly even without requested events.
  for (OutputSink* sink : all_sinks) polled.push_back({sink->empty() ? -1 : sink->fd(), POLLOUT, 0});
  for (const Stream& stream : streams_) polled.push_back({stream.sink->full() ? -1 : stream.pipe.get(), POLLIN, 0});

  const int ready = ::poll(polled.data(), polled.size(), milliseconds_until(deadline));
  if (ready < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "poll");
  if (ready <= 0) return {};
  const pollfd* next = polled.data() + 1;
  for (OutputSink* sink : all_sinks) {
    if ((next++)->revents) sink->write_some();
  }
  for (Stream& stream : streams_) {
    if ((next++)->revents) read_some(&stream);
  }
  report_broken_sinks();
  return {true, polled[0].revents != 0};
}

void OutputRelay::read_some(Stream* stream) {
  char buffer[65536];
  const ssize_t length = ::read(stream->pipe.get(), buffer, sizeof buffer);
  if (length < 0 && (errno == EINTR || errno == EAGAIN)) return;
  std::string lines;
  if (length <= 0) {
    stream->pipe.reset();
    stream->lines.finish(&lines);
  } else {
    const std::string_view bytes(buffer, static_cast<size_t>(length));
    if (stream->tail) keep_tail(bytes, stream->tail);
    stream->lines.feed(bytes, &lines);
  }
  stream->sink->append(lines);
}

void OutputRelay::detach_all() {
  for (Stream& stream : streams_) {
    std::string rest;
    stream.lines.finish(&rest);
    stream.sink->append(rest);
  }
  streams_.clear();
}

bool OutputRelay::has_backlog() const {
  return !stdout_.empty() || !stderr_.empty() ||
         std::any_of(logs_.begin(), logs_.end(), [](const OutputSink& log) { return !log.empty(); });
}

void OutputRelay::say(std::string_view line) { stderr_.append(fmt::format("{}\n", line)); }

void OutputRelay::note_in_logs(std::string_view line) {
  for (OutputSink& log : logs_) log.append(fmt::format("{}\n", line));
}

void OutputRelay::report_broken_sinks() {
  for (OutputSink* sink : sinks()) {
    const std::string error = sink->take_error();
    if (!error.empty()) say(fmt::format("concord launch: {}", error));
  }
}

std::vector<std::string> OutputRelay::last_error_lines(int index, size_t lines) const {
  std::string_view tail = tails_[static_cast<size_t>(index)];
  while (!tail.empty() && tail.back() == '\n') tail.remove_suffix(1);
  std::vector<std::string> result;
  while (!tail.empty() && result.size() < lines) {
    const size_t newline = tail.rfind('\n');
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    result.emplace_back(tail.substr(begin, 500));
    tail = tail.substr(0, begin ? begin - 1 : 0);
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace concord
