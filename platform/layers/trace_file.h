// The file of the trace layer: events in Chrome's JSON format, which Perfetto and chrome://tracing open.
//
// One file per process: CONCORD_TRACE, or concord-trace-<pid>.json. If another live process already writes that
// file, or the process is a fork of one that does, -<pid> comes before the ending. Between two writes the file is valid
// JSON, so that a process that dies early, even by SIGKILL, leaves a trace that can be read. The kernel may cut a write
// short when SIGKILL arrives within it: then the file ends inside its last line, and it is valid again once that line
// and the comma before it are replaced by "]" (each line is one event). Threads: any. Memory: at most a buffer of
// kBufferBytes and one event.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/base/unique_fd.hpp"

namespace concord::layers {

// |text| as a JSON string with its quotes. Bytes outside ASCII are escaped one by one, so that any input is valid.
std::string json_string(std::string_view text);

class TraceFile {
 public:
  static constexpr size_t kBufferBytes = 256 * 1024;
  static constexpr std::chrono::milliseconds kFlushAfter{1000};

  // |path| may be empty: the default name. Throws Error (INVALID_ARGUMENT) if it cannot be written.
  explicit TraceFile(std::string path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Adds one event, a JSON object without line breaks.
  void add(std::string_view event);

  // Called by finish() before it writes, to add what is still outstanding.
  void before_finish(std::function<void()> callback);
  // Writes everything. Also called when the process exits.
  void finish() noexcept;

  // For fork: no lock may be held by another thread in the child, which has its own trace file.
  void lock_for_fork() CONCORD_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void unlock_after_fork() CONCORD_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }
  void restart_in_child() noexcept;  // unlocks too

  const std::string& path() const { return path_; }
  // Microseconds of a clock that all processes of this host share.
  static double now();

 private:
  void open() CONCORD_REQUIRES(mutex_);
  void write_buffer() CONCORD_REQUIRES(mutex_);

  std::mutex mutex_;
  std::string wanted_;
  std::string path_;
  std::string buffer_ CONCORD_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> callbacks_ CONCORD_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point last_write_ CONCORD_GUARDED_BY(mutex_);
  UniqueFd descriptor_ CONCORD_GUARDED_BY(mutex_);
  long offset_ CONCORD_GUARDED_BY(mutex_) = 0;    // where the next event goes: before the closing bracket
  bool first_ CONCORD_GUARDED_BY(mutex_) = true;  // no event in the file yet
};

// The process's file, opened at the first call. Throws as the constructor does.
TraceFile& trace_file();

}  // namespace concord::layers
