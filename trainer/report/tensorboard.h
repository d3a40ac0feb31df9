// TensorBoard event files: TFRecord framing around the few fields of tensorflow.Event that scalars need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/report/files.h"
#include "trainer/report/history.h"

namespace concord {

// Returns the bytes of one record: u64 length, its masked checksum, |data|, its masked checksum. Pure.
std::string tf_record(std::string_view data);

// Return serialised tensorflow.Event messages. Pure.
std::string version_event(double time);
std::string scalars_event(double time, int64_t step, const NamedValues& scalars);
// Tells TensorBoard that a run restarts at |step|: it ignores values of this and later steps in other files.
std::string restart_event(double time, int64_t step);

// Writes events.out.tfevents.* in |folder|, which it creates. A run that starts at step 0 removes existing ones, which
// TensorBoard would merge with it. Threads: one at a time.
class EventFile {
 public:
  EventFile(const std::string& folder, int64_t first_step, double time);

  void add(double time, int64_t step, const NamedValues& scalars);
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace concord
