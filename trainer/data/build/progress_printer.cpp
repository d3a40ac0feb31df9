#include "trainer/data/build/progress_printer.h"

#include <fmt/core.h>

#include "core/base/bytes_text.h"

namespace concord {

void ProgressPrinter::show_bytes(uint64_t done, uint64_t all) {
  show([&](double now) {
    const double speed = now > 0 ? static_cast<double>(done) / now : 0;
    return fmt::format("{} of {}, {}/s, {:.0f} s left", bytes_text(done), bytes_text(all),
                       bytes_text(static_cast<int64_t>(speed)),
                       speed > 0 ? static_cast<double>(all - done) / speed : 0);
  });
}

}  // namespace concord
