#include "trainer/metrics/step_profile.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/models/layers/backward_ranges.h"
#include "platform/loader/host.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxSpans = 4'000'000;  // some 600 MB of text; the rest is counted and left out
constexpr uint64_t kFirstRow =
    1'000'000;  // rows of devices' streams; those of threads are libtorch's numbers, starting at 1

using Profiler = std::optional<concord_profiler_table>;

// Open and close a range of the vendor's profiler. A range that it refuses is missing there, no more.
void push(const Profiler& profiler, const std::string& name) {
  if (profiler) profiler->range_push(profiler->self, name.c_str());
}
void pop(const Profiler& profiler) {
  if (profiler) profiler->range_pop(profiler->self);
}

// When an operator began; libtorch gives it back at its end, which may be after the recording's.
struct Begin : at::ObserverContext {
  explicit Begin(const Profiler& given) : profiler(given) {}
  Profiler profiler;  // whose range it has opened
  Clock::time_point time = Clock::now();
  uint64_t thread = at::RecordFunction::currentThreadId();
};

int64_t whole_number(const std::string& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

bool names_rank(const std::vector<std::string>& ranks, int64_t rank, int64_t world) {
  bool is_named = false;
  for (const std::string& text : ranks) {
    const int64_t number = whole_number(text);
    if (number < 0 || number >= world) {
      throw ConfigError(
          fmt::format("profile_ranks has {}, but the ranks of this job are 0 to {}", quoted(text), world - 1));
    }
    is_named |= number == rank;
  }
  return is_named || ranks.empty();
}

}  // namespace

// One at a time in a process: libtorch's callbacks are plain functions.
class StepProfile::Recording {
 public:
  explicit Recording(const Profiler& profiler) : profiler_(profiler) {
    set_current(this);
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&Recording::began, &Recording::ended)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  }
  ~Recording() { stop(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void stop() {
    if (std::exchange(is_stopped_, true)) return;
    at::removeCallback(handle_);
    set_current(nullptr);  // waits for threads that add to this one
  }

  const Profiler& profiler() const { return profiler_; }

  void add(std::string name, const char* kind, Clock::time_point begin, Clock::time_point end) {
    add({std::move(name), kind, at::RecordFunction::currentThreadId(), begin, end});
  }
  // Clock is CLOCK_MONOTONIC, as the activity's times are.
  void add(const concord_activity& activity) {
    const auto time = [](int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); };
    const auto [row, is_new] = rows_.try_emplace({activity.device, activity.stream}, kFirstRow + rows_.size());
    add({activity.name, kind_name(activity.kind), row->second, time(activity.begin_ns), time(activity.end_ns)});
  }
  void add_left_out(int64_t count) { left_out_ += count; }

  std::string text(int64_t rank) const {
    const auto micros = [](Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); };
    std::string text = fmt::format(
        "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
        "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"args\": {{\"name\": \"rank {}\"}}}}",
        rank, rank);
    for (const auto& [stream, row] : rows_) {
      text += fmt::format(
          ",\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": \"device {}, "
          "stream {}\"}}}}",
          rank, row, stream.first, stream.second);
    }
    for (const Span& span : spans_) {
      const std::string name = nlohmann::json(span.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      text += fmt::format(
          ",\n{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": "
          "{:.3f}}}",
          name, span.kind, rank, span.thread, micros(span.begin - begin_), micros(span.end - span.begin));
    }
    return text + "\n]}\n";
  }
  int64_t left_out() const { return left_out_; }

 private:
  struct Span {
    std::string name;
    const char* kind;
    uint64_t thread;
    Clock::time_point begin, end;
  };

  static const char* kind_name(concord_activity_kind kind) {
    switch (kind) {
      case CONCORD_ACTIVITY_COPY: return "copy";
      case CONCORD_ACTIVITY_FILL: return "fill";
      default: return "kernel";
    }
  }
  void add(Span span) {
    const std::lock_guard lock(mutex_);
    if (spans_.size() >= kMaxSpans) {
      ++left_out_;
      return;
    }
    spans_.push_back(std::move(span));
  }

  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
    constexpr std::string_view kNode = "autograd::engine::evaluate_function: ";
    const std::string_view name = function.name();
    if (name.starts_with(kNode)) turn_backward_range(name.substr(kNode.size()));  // comes back with another name
    Profiler profiler;
    {
      const std::lock_guard lock(current_mutex_);
      if (current_ != nullptr) profiler = current_->profiler_;
    }
    push(profiler, function.name());
    return std::make_unique<Begin>(profiler);
  }
  static void ended(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto* begin = static_cast<Begin*>(context);
    // Ranges belong to threads; that of an operator that ends in another one stays open there.
    if (begin->thread == at::RecordFunction::currentThreadId()) pop(begin->profiler);
    const bool is_user = function.scope() == at::RecordScope::USER_SCOPE;
    const std::lock_guard lock(current_mutex_);
    if (current_ != nullptr) current_->add(function.name(), is_user ? "part" : "operator", begin->time, Clock::now());
  }
  static void set_current(Recording* recording) {
    const std::lock_guard lock(current_mutex_);
    current_ = recording;
  }

  static std::mutex current_mutex_;  // other threads run operators, too
  static Recording* current_;
  const Profiler profiler_;
  bool is_stopped_ = false;
  at::CallbackHandle handle_ = 0;
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  std::vector<Span> spans_;
  std::map<std::pair<int32_t, int64_t>, uint64_t> rows_;  // of a device's streams
  int64_t left_out_ = 0;
};

std::mutex StepProfile::Recording::current_mutex_;
StepProfile::Recording* StepProfile::Recording::current_ = nullptr;

StepProfile::StepProfile(const TrainingArguments& arguments, int64_t rank, int64_t world, StepTimers& timers,
                         DeviceActivities device)
    : first_(arguments.logging.profile_step_start),
      end_(arguments.logging.profile_step_end),
      timers_(timers),
      device_(std::move(device)) {
  if (!arguments.logging.profile) return;
  is_asked_ = names_rank(arguments.logging.profile_ranks, rank, world);
  file_ = (std::filesystem::path(arguments.output.dir) / "profile" / fmt::format("rank_{}.json", rank)).string();
}

StepProfile::~StepProfile() {
  timers_.listen({}, {});
  if (!device_records_) return;  // else the run has failed within the steps
  int64_t dropped = 0;
  device_.table->stop(device_.table->self, [](void*, const concord_activity*) {}, nullptr, &dropped);
}

void StepProfile::begin_step(int64_t done) {
  if (!is_asked_ || done < first_ || done >= end_) return;
  if (!recording_) {
    recording_ = std::make_unique<Recording>(device_.profiler);
    timers_.listen([this](const std::string& name) { push(recording_->profiler(), name); },
                   [this](std::string name, Clock::time_point begin, Clock::time_point end) {
                     pop(recording_->profiler());
                     recording_->add(std::move(name), "part", begin, end);
                   });
    start_device();
  }
  push(recording_->profiler(), fmt::format("step {}", done + 1));
  begin_ = Clock::now();
}

void StepProfile::end_step(int64_t done) {
  if (!recording_) return;
  pop(recording_->profiler());
  recording_->add(fmt::format("step {}", done + 1), "step", begin_, Clock::now());
  if (done + 1 >= end_) finish();
}

// What the device can not tell is no reason to end a run: the timeline is then that of the host.
void StepProfile::start_device() {
  if (!device_.table) return;
  device_.synchronize();  // work of earlier steps is not in it
  device_records_ = device_.table->start(device_.table->self) == CONCORD_STATUS_OK;
  if (!device_records_) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("the profile has no kernels of the device: {}", loader::take_error_detail()));
  }
}

void StepProfile::stop_device() {
  if (!std::exchange(device_records_, false)) return;
  device_.synchronize();
  const auto add = [](void* recording, const concord_activity* activity) {
    static_cast<Recording*>(recording)->add(*activity);
  };
  int64_t dropped = 0;
  if (device_.table->stop(device_.table->self, add, recording_.get(), &dropped) != CONCORD_STATUS_OK) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("the profile has no kernels of the device: {}", loader::take_error_detail()));
  }
  recording_->add_left_out(dropped);
}

void StepProfile::finish() {
  if (!recording_) return;
  is_asked_ = false;
  timers_.listen({}, {});
  recording_->stop();
  stop_device();
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path());
  const std::string name = std::filesystem::path(file_).stem().string();
  replace_file(file_, recording_->text(whole_number(name.substr(name.find('_') + 1))));
  if (recording_->left_out() > 0) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("{}: {} more spans are left out; profile fewer steps", file_, recording_->left_out()));
  }
  recording_.reset();
}

}  // namespace concord
