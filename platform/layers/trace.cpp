#include "platform/layers/trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "platform/loader/error.h"
#include "platform/loader/text.h"

namespace concord::layers {
namespace {

using loader::cat;

std::string process_name(const concord_core_table& core) {
  const char* rank = std::getenv("RANK");  // as torchrun gives it
  return rank != nullptr ? cat("rank ", rank, " (", core.name, ")") : cat("concord (", core.name, ")");
}

}  // namespace

Trace::Trace(const loader::Tables& next, TraceFile& file) : next_(next), file_(file), timeline_(next_, file) {
  file_.add(cat("{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":", static_cast<int>(getpid()),
                ",\"tid\":0,\"args\":{\"name\":", json_string(process_name(next_.core)), "}}"));
  file_.before_finish([this] { finish(); });
}

void Trace::write_slice(const char* name, const char* category, double start, double stop, concord_status status,
                        const std::string& arguments, const std::string& detail) {
  char times[96];
  std::snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", start, stop - start);
  std::string text =
      cat("{\"name\":\"", name, "\",\"cat\":\"", category, "\",\"ph\":\"X\",\"pid\":", static_cast<int>(getpid()),
          ",\"tid\":", syscall(SYS_gettid), ",", times, ",\"args\":{", arguments);
  if (status != CONCORD_STATUS_OK) {
    text += cat(arguments.empty() ? "" : ",", "\"status\":", json_string(status_name(status)),
                ",\"detail\":", json_string(detail));
  }
  text += "}}";
  file_.add(text);
}

void Trace::finish() {
  timeline_.resolve();
  if (const size_t lost = timeline_.left_out(); lost > 0) {
    file_.add(cat("{\"name\":\"device slices dropped\",\"ph\":\"I\",\"s\":\"p\",\"pid\":", static_cast<int>(getpid()),
                  ",\"tid\":0,\"ts\":", static_cast<int64_t>(TraceFile::now()), ",\"args\":{\"count\":", lost, "}}"));
  }
}

}  // namespace concord::layers
