#include "platform/layers/trace_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "platform/loader/text.h"

namespace concord::layers {
namespace {

using loader::cat;

constexpr std::string_view kHead = "[\n";
constexpr std::string_view kTail = "\n]\n";

// "run/trace.json" -> "run/trace-4711.json"
std::string with_pid(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t dot = path.rfind('.');
  const bool has_ending = dot != std::string::npos && (slash == std::string::npos || dot > slash + 1) && dot > 0;
  const size_t at = has_ending ? dot : path.size();
  return cat(path.substr(0, at), "-", static_cast<int>(getpid()), path.substr(at));
}

// A descriptor that holds the lock of |path|; none with errno EWOULDBLOCK where another process has it.
UniqueFd open_locked(const std::string& path) {
  UniqueFd descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!descriptor || flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) return descriptor;
  const int reason = errno;
  descriptor.reset();
  errno = reason;
  return descriptor;
}

bool write_at(int descriptor, std::string_view bytes, long offset) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return true;
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (byte < 0x20 || byte >= 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(byte));
      result += escaped;
    } else {
      result += letter;
    }
  }
  return result += '"';
}

TraceFile::TraceFile(std::string path) : wanted_(std::move(path)) { open(); }

TraceFile::~TraceFile() { finish(); }

void TraceFile::open() {
  path_ = wanted_.empty() ? with_pid("concord-trace.json") : wanted_;
  descriptor_ = open_locked(path_);
  if (!descriptor_ && errno == EWOULDBLOCK) {
    path_ = with_pid(path_);
    descriptor_ = open_locked(path_);
  }
  if (!descriptor_) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT, cat("the trace file '", path_, "' cannot be written: ",
                                                     std::strerror(errno), "; set CONCORD_TRACE to a writable file"));
  }
  if (ftruncate(descriptor_.get(), 0) != 0 || !write_at(descriptor_.get(), cat(kHead, kTail), 0)) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
                cat("the trace file '", path_, "' cannot be written: ", std::strerror(errno)));
  }
  offset_ = static_cast<long>(kHead.size());
  first_ = true;
  last_write_ = std::chrono::steady_clock::now();
}

void TraceFile::add(std::string_view event) {
  const std::lock_guard lock(mutex_);
  if (!descriptor_) return;
  if (!first_ || !buffer_.empty()) buffer_ += ",\n";
  buffer_ += event;
  const bool full = buffer_.size() >= kBufferBytes;
  if (full || std::chrono::steady_clock::now() - last_write_ >= kFlushAfter) write_buffer();
}

void TraceFile::write_buffer() {
  last_write_ = std::chrono::steady_clock::now();
  if (buffer_.empty() || !descriptor_) return;
  buffer_ += kTail;
  if (!write_at(descriptor_.get(), buffer_, offset_)) {
    loader::log(CONCORD_LOG_WARN, "trace",
                cat("tracing stopped: ", path_, " cannot be written: ", std::strerror(errno)));
    descriptor_.reset();
  }
  offset_ += static_cast<long>(buffer_.size() - kTail.size());
  first_ = false;
  buffer_.clear();
}

void TraceFile::before_finish(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  callbacks_.push_back(std::move(callback));
}

void TraceFile::finish() noexcept {
  try {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      callbacks = callbacks_;
    }
    for (const auto& callback : callbacks) callback();
    const std::lock_guard lock(mutex_);
    write_buffer();
  } catch (...) {  // the end of the process is not a place to fail
  }
}

void TraceFile::restart_in_child() noexcept CONCORD_NO_THREAD_SAFETY_ANALYSIS {
  try {
    buffer_.clear();  // the parent writes what it had
    callbacks_.clear();
    descriptor_.reset();
    open();
  } catch (const std::exception& error) {
    loader::log(CONCORD_LOG_WARN, "trace", cat("no trace of this process: ", error.what()));
  }
  mutex_.unlock();
}

double TraceFile::now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

TraceFile& trace_file() {
  static TraceFile* file = [] {
    auto* made = new TraceFile(loader::setting("trace").value_or(""));  // never destroyed: threads may outlive main
    std::atexit([] { trace_file().finish(); });
    pthread_atfork([] { trace_file().lock_for_fork(); }, [] { trace_file().unlock_after_fork(); },
                   [] { trace_file().restart_in_child(); });
    return made;
  }();
  return *file;
}

}  // namespace concord::layers
