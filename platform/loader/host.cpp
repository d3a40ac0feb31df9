#include "platform/loader/host.h"

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "platform/abi/concord.h"
#include "platform/base/thread_safety.hpp"
#include "platform/loader/text.h"

namespace concord::loader {
namespace {

std::string& thread_detail() {
  thread_local std::string detail;
  return detail;
}

struct Settings {
  std::mutex mutex;
  std::map<std::string, std::string> overrides CONCORD_GUARDED_BY(mutex);
  std::unordered_set<std::string> given_out
      CONCORD_GUARDED_BY(mutex);  // config() promises that its answers live for ever
};

Settings& settings() {
  static auto* all = new Settings();  // never destroyed: threads of plugins may outlive main
  return *all;
}

std::string environment_name(std::string_view name) {
  std::string result = "CONCORD_";
  for (const char letter : name) {
    result += letter == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return result;
}

constexpr const char* kLevels[] = {"debug", "info", "warn", "error"};

std::atomic<concord_log_level>& threshold() {
  static std::atomic<concord_log_level> level{0};  // 0: not read yet
  return level;
}

void write_line(concord_log_level level, std::string_view source, std::string_view text) {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  char stamp[48];
  std::snprintf(stamp, sizeof stamp, "%02d:%02d:%02d.%03d", local.tm_hour, local.tm_min, local.tm_sec,
                static_cast<int>(now.tv_usec / 1000));
  const int index = level < CONCORD_LOG_DEBUG ? 0 : level > CONCORD_LOG_ERROR ? 3 : level - 1;
  std::string line = cat(stamp, " concord[", static_cast<int>(getpid()), "] ", kLevels[index], " ");
  if (!source.empty()) line += cat(source, ": ");
  for (const char letter : text) line += letter == '\n' ? ' ' : letter;
  line += '\n';
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nowhere left to say so
}

concord_log_level read_threshold() {
  const auto wanted = setting("log");
  if (!wanted) return CONCORD_LOG_WARN;
  for (int i = 0; i < 4; ++i) {
    if (*wanted == kLevels[i]) return i + 1;
  }
  write_line(CONCORD_LOG_WARN, "",
             cat("CONCORD_LOG is '", *wanted, "'; it must be one of ", join(kLevels, ", "), "; using warn"));
  return CONCORD_LOG_WARN;
}

struct PluginHost {
  concord_host table;
  std::string source;
};

void host_set_error_detail(void*, const char* text) { set_error_detail(text != nullptr ? text : ""); }

void host_log(void* self, concord_log_level level, const char* text) {
  log(level, static_cast<PluginHost*>(self)->source, text != nullptr ? text : "");
}

const char* host_config(void*, const char* name) { return config(name); }

}  // namespace

void set_error_detail(std::string_view sentence) noexcept {
  try {
    thread_detail() = sentence;
  } catch (...) {  // out of memory: a failure without its message is still a failure
  }
}

std::string take_error_detail() {
  std::string result;
  result.swap(thread_detail());
  return result;
}

void log(concord_log_level level, std::string_view source, std::string_view text) noexcept {
  try {
    concord_log_level least = threshold().load(std::memory_order_relaxed);
    if (least == 0) {
      least = read_threshold();
      threshold().store(least, std::memory_order_relaxed);
    }
    if (level >= least) write_line(level, source, text);
  } catch (...) {  // a line lost is better than a program lost
  }
}

const char* config(const char* name) noexcept {
  if (name == nullptr) return nullptr;
  try {
    Settings& all = settings();
    const std::lock_guard lock(all.mutex);
    const auto found = all.overrides.find(name);
    const char* value = found != all.overrides.end() ? found->second.c_str() : getenv(environment_name(name).c_str());
    return value != nullptr ? all.given_out.insert(value).first->c_str() : nullptr;
  } catch (...) {
    return nullptr;
  }
}

std::optional<std::string> setting(const char* name) {
  const char* value = config(name);
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

void override_config(const std::string& name, std::optional<std::string> value) {
  Settings& all = settings();
  const std::lock_guard lock(all.mutex);
  if (value) {
    all.overrides[name] = *value;
  } else {
    all.overrides.erase(name);
  }
  threshold().store(0, std::memory_order_relaxed);
}

const concord_host* make_host(std::string source) {
  // Kept reachable, so that a leak checker can distinguish what lives forever from what was leaked.
  static std::mutex mutex;
  static auto& hosts = *new std::vector<std::unique_ptr<PluginHost>>;
  const std::lock_guard lock(mutex);
  PluginHost* host = hosts.emplace_back(new PluginHost{{}, std::move(source)}).get();
  host->table.header = {sizeof(concord_host), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR};
  host->table.self = host;
  host->table.set_error_detail = &host_set_error_detail;
  host->table.log = &host_log;
  host->table.config = &host_config;
  return &host->table;
}

}  // namespace concord::loader
