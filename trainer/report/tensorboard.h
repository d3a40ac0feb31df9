// Event files that TensorBoard reads: TFRecord framing around the few fields of tensorflow.Event that scalars need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/report/files.h"
#include "trainer/report/history.h"

namespace concord {

// Pure: the bytes of one record, u64 length, masked checksum of it, |data|, masked checksum of that.
std::string tf_record(std::string_view data);

// Pure: serialised tensorflow.Event messages.
std::string version_event(double time);
std::string scalars_event(double time, int64_t step, const NamedValues& scalars);
// Tells TensorBoard that a run starts again at |step|: it ignores what other files say about this step and later ones.
std::string restart_event(double time, int64_t step);

// Writes events.out.tfevents.* in |folder|, which it makes. A run that starts at step 0 removes those of others, which
// TensorBoard would draw as one run with it. Threads: one at a time.
class EventFile {
 public:
  EventFile(const std::string& folder, int64_t first_step, double time);

  void add(double time, int64_t step, const NamedValues& scalars);
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace concord
