#include "trainer/trackers/tracker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "trainer/report/report.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

constexpr const char* kTrackerScript =
#include "tracker_script.inc"
    ;

constexpr size_t kMaxWaiting = size_t{16} << 20;
constexpr size_t kMaxLine = 1 << 16;
constexpr size_t kMaxNote = 600;
constexpr auto kStartTime = std::chrono::seconds(120);
constexpr auto kFinishTime = std::chrono::seconds(60);

std::string json_text(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Python's json accepts NaN and Infinity, which JSON does not have.
std::string python_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

int64_t left_until(std::chrono::steady_clock::time_point end) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
}

}  // namespace

TrackerProcess::TrackerProcess(std::string service)
    : service_(std::move(service)), process_(kTrackerScript, {service_}, "report_to " + service_) {
  to_ = process_.take_input();
  from_ = process_.take_output();
  ::fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  const auto end = std::chrono::steady_clock::now() + kStartTime;
  while (!is_ready_ && refusal_.empty() && to_ && left_until(end) > 0) {
    wait_for(from_.get(), POLLIN, left_until(end));
    receive();
  }
  if (is_ready_) return;
  throw ConfigError(
      fmt::format("report_to {}: {}", service_,
                  !refusal_.empty() ? refusal_
                  : to_ ? fmt::format("{} has not started within {} s", process_.python(), kStartTime.count())
                        : fmt::format("{} exited; see its output above", process_.python())));
}

void TrackerProcess::wait_for(int fd, short events, int64_t milliseconds) const {
  pollfd wanted{.fd = fd, .events = events, .revents = 0};
  ::poll(&wanted, 1, static_cast<int>(milliseconds));
}

void TrackerProcess::begin(const RunDescription& run) {
  ordered_json config = ordered_json::object();
  for (const auto& [name, text] : run.configuration) config[name] = text;
  const ordered_json begin = {
      {"name", run.run_name}, {"folder", run.output_dir}, {"first_step", run.first_step}, {"config", config}};
  send_line(json_text({{"begin", begin}}), 0);
}

void TrackerProcess::log(const TrackedValues& logged) {
  std::string values;
  for (const auto& [name, value] : logged.values)
    values += fmt::format("{}{}:{}", values.empty() ? "" : ",", json_text(name), python_number(value));
  send_line(fmt::format("{{\"log\":{{{}}},\"step\":{},\"time\":{}}}", values, logged.step, python_number(logged.time)),
            static_cast<int64_t>(logged.values.size()));
}

void TrackerProcess::send_line(std::string line, int64_t values) {
  if (!to_ || waiting_.size() + line.size() > kMaxWaiting) {
    dropped_ += values;
    return;
  }
  waiting_ += std::move(line) + "\n";
  send_waiting();
}

void TrackerProcess::send_waiting() {
  size_t sent = 0;
  while (to_ && sent < waiting_.size()) {
    const ssize_t count =
        ::send(to_.get(), waiting_.data() + sent, waiting_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      end_early(std::strerror(errno));
    }
  }
  waiting_.erase(0, sent);
}

void TrackerProcess::end_early(const std::string& why) {
  if (!to_) return;
  to_.reset();
  if (is_ready_ && !is_done_)
    notes_.push_back(fmt::format("its process has exited ({}); training continues without it", why));
}

void TrackerProcess::receive() {
  char bytes[4096];
  while (from_) {
    const ssize_t got = ::read(from_.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got > 0) received_.append(bytes, static_cast<size_t>(got));
    if (got <= 0 || received_.size() > kMaxLine) {
      from_.reset();
      break;
    }
    for (size_t end = received_.find('\n'); end != std::string::npos; end = received_.find('\n')) {
      parse_line(received_.substr(0, end));
      received_.erase(0, end + 1);
    }
  }
  if (!from_) end_early("its output is closed");
}

void TrackerProcess::parse_line(const std::string& line) {
  const ordered_json message = json_or_discarded<ordered_json>(line);
  if (!message.is_object()) return end_early("it sent an invalid message");
  const auto text_of = [](const ordered_json& value) {
    return value.is_string() ? one_line(value.get<std::string>(), kMaxNote) : std::string();
  };
  if (message.contains("ready")) is_ready_ = true;
  if (message.contains("error")) refusal_ = text_of(message["error"]);
  if (message.contains("note")) notes_.push_back(text_of(message["note"]));
  if (const auto done = message.find("done"); done != message.end() && done->is_object()) {
    is_done_ = true;
    place_ = text_of(done->value("place", ordered_json()));
    const ordered_json lost = done->value("lost", ordered_json());
    if (lost.is_number_integer()) lost_ = lost.get<int64_t>();
  }
}

std::vector<std::string> TrackerProcess::take_notes() {
  send_waiting();
  receive();
  return std::exchange(notes_, {});
}

std::string TrackerProcess::finish() {
  send_line("{\"finish\":true}", 0);
  const auto end = std::chrono::steady_clock::now() + kFinishTime;
  while (!is_done_ && to_ && left_until(end) > 0) {
    send_waiting();
    // It may send messages while it does not accept more input.
    pollfd wanted[] = {{from_.get(), POLLIN, 0}, {waiting_.empty() ? -1 : to_.get(), POLLOUT, 0}};
    ::poll(wanted, 2, static_cast<int>(left_until(end)));
    receive();
  }
  const int64_t lost = lost_ + dropped_;
  std::string text = is_done_ ? place_
                     : to_    ? fmt::format("not finished within {} s", kFinishTime.count())
                              : "its process exited early";
  if (lost > 0) text += fmt::format("{}{} values could not be reported", text.empty() ? "" : "; ", lost);
  return text.empty() ? "nothing was reported" : text;
}

}  // namespace concord
