#include "trainer/cli/serve_report.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include "core/base/config_error.h"
#include "trainer/report/http_server.h"
#include "trainer/report/page/page.h"
#include "trainer/report/progress.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr int kRefreshSeconds = 2;

// The history in a folder, read again only when a file has changed. Threads: one at a time.
class WatchedHistory {
 public:
  explicit WatchedHistory(std::string folder) : folder_(std::move(folder)) {}

  const RunHistory& now() {
    const std::string state = state_of_files();
    if (state != state_) {
      history_ = read_history(folder_);
      state_ = state;  // not if reading throws
    }
    return history_;
  }

 private:
  std::string state_of_files() const {
    std::string state = " ";
    for (const char* const name : {kMetricsFile, kEvalMetricsFile, kSamplesFile, kRankTimesFile}) {
      std::error_code missing;
      const fs::path file = fs::path(folder_) / name;
      const uintmax_t size = fs::file_size(file, missing);
      if (missing) continue;
      state += fmt::format("{} {} {}\n", name, size, fs::last_write_time(file, missing).time_since_epoch().count());
    }
    return state;
  }

  std::string folder_;
  std::string state_;
  RunHistory history_;
};

std::string reason_of(const RunHistory& history) {
  if (history.steps.empty()) return "live; no step logged yet";
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return fmt::format("live; step {} logged {} ago", history.steps.back().step,
                     duration_text(std::max(0.0, now - history.steps.back().time)));
}

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

void serve_report(const RunDescription& run, int port) {
  if (!fs::is_directory(run.output_dir))
    throw ConfigError(fmt::format("{} is not a folder; give the output_dir of a run", run.output_dir));
  const sigset_t signals = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before a client can see that it runs
  WatchedHistory history(run.output_dir);
  const HttpServer server("report --serve", "127.0.0.1", port, [&](const std::string& path) -> HttpResponse {
    if (path != "/") return {.status = 404, .body = "the page is at /\n"};
    const RunHistory& now = history.now();
    return {.type = "text/html; charset=utf-8",
            .body = report_page(run, now, {.reason = reason_of(now)}, kRefreshSeconds)};
  });
  std::printf("%s: %s (Ctrl-C ends it)\n", run.output_dir.c_str(), server.url().c_str());
  std::fflush(stdout);
  int received = 0;
  while (::sigwait(&signals, &received) != 0) {
  }
}

}  // namespace concord
