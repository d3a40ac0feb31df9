#include "core/base/process_list.h"

#include <dirent.h>
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "platform/base/unique_fd.hpp"

namespace concord {

bool parse_process_stat(std::string_view line, ProcessEntry* entry) {
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return false;
  entry->name = line.substr(open + 1, close - open - 1);
  const std::string rest(line.substr(close + 1));
  long long threads = 0;
  unsigned long long start = 0;
  // Fields 3 to 22 of proc(5).
  if (std::sscanf(rest.c_str(), " %c %d %*d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld %*s %llu",
                  &entry->state, &entry->parent, &entry->session, &threads, &start) != 5)
    return false;
  entry->threads = threads;
  entry->start_time = start;
  entry->pid = static_cast<pid_t>(std::strtol(std::string(line.substr(0, open)).c_str(), nullptr, 10));
  return entry->pid > 0;
}

std::string read_process_file(pid_t pid, const char* file) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + file;
  const UniqueFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t length = opened ? ::read(opened.get(), buffer, sizeof buffer) : 0;
    if (length <= 0) return text;
    text.append(buffer, static_cast<size_t>(length));
  }
}

std::vector<ProcessEntry> list_processes() {
  std::vector<ProcessEntry> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) return entries;
  while (const dirent* item = ::readdir(folder.get())) {
    if (item->d_name[0] < '1' || item->d_name[0] > '9') continue;
    const auto pid = static_cast<pid_t>(std::strtol(item->d_name, nullptr, 10));
    ProcessEntry entry;
    if (parse_process_stat(read_process_file(pid, "stat"), &entry)) entries.push_back(std::move(entry));
  }
  return entries;
}

bool is_stopped(pid_t pid) {
  ProcessEntry entry;
  return parse_process_stat(read_process_file(pid, "stat"), &entry) && (entry.state == 'T' || entry.state == 't');
}

}  // namespace concord
