#include "core/base/recovery_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "core/base/job_board.h"

namespace concord {
namespace {

double now() { return static_cast<double>(monotonic_nanoseconds()) * 1e-9; }

// Escapes quotes and backslashes. The texts are messages of this program, without control characters.
std::string json_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result;
}

}  // namespace

RecoveryLog::RecoveryLog() {
  const char* name = std::getenv(kRecoveryLogVariable);
  if (name != nullptr && *name != 0) file_ = UniqueFd(::open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

void RecoveryLog::fault(int attempt, int fault, const std::string& kind, int64_t rank, int64_t step) {
  write(fmt::format(R"({{"event":"fault","time":{:.6f},"attempt":{},"fault":{},"kind":"{}","rank":{},"step":{}}})",
                    now(), attempt, fault, json_text(kind), rank, step));
}

void RecoveryLog::failed(int attempt, int64_t rank, int64_t step, const std::string& how) {
  write(fmt::format(R"({{"event":"failed","time":{:.6f},"attempt":{},"rank":{},"step":{},"how":"{}"}})", now(), attempt,
                    rank, step, json_text(how)));
}

void RecoveryLog::hung(int attempt, int64_t rank, const std::string& how) {
  write(fmt::format(R"({{"event":"hung","time":{:.6f},"attempt":{},"rank":{},"how":"{}"}})", now(), attempt, rank,
                    json_text(how)));
}

void RecoveryLog::wrong(int64_t step, std::optional<int64_t> rank, const std::string& how) {
  write(fmt::format(R"({{"event":"wrong","time":{:.6f},"step":{},"rank":{},"how":"{}"}})", now(), step,
                    rank.value_or(-1), json_text(how)));
}

void RecoveryLog::repaired(int64_t step, std::optional<int64_t> rank, const std::string& how) {
  write(fmt::format(R"({{"event":"repaired","time":{:.6f},"step":{},"rank":{},"how":"{}"}})", now(), step,
                    rank.value_or(-1), json_text(how)));
}

void RecoveryLog::training(int attempt, int64_t step, int64_t nanoseconds) {
  write(fmt::format(R"({{"event":"training","time":{:.6f},"attempt":{},"step":{}}})",
                    static_cast<double>(nanoseconds) * 1e-9, attempt, step));
}

void RecoveryLog::ended(int attempt, int exit_code) {
  write(fmt::format(R"({{"event":"ended","time":{:.6f},"attempt":{},"exit_code":{}}})", now(), attempt, exit_code));
}

void RecoveryLog::write(const std::string& line) noexcept {
  if (file_.get() < 0) return;
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(file_.get(), text.data(), text.size());
}

}  // namespace concord
