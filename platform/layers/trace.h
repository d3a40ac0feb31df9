// The trace layer: every call as a slice on its thread's row, with its arguments, results and status; queued work
// also as a slice on a row of its stream, if the plugin can time it (trace_timeline.h). The file is
// trace_file.h's. Threads: any.
#pragma once

#include <string>
#include <tuple>

#include "platform/layers/interpose.h"
#include "platform/layers/trace_file.h"
#include "platform/layers/trace_timeline.h"
#include "platform/loader/arguments.h"

namespace concord::layers {

// Slots that put work on a stream that takes time there.
constexpr bool queues_work(const loader::SlotInfo& slot) {
  const std::string_view table = slot.table;
  const std::string_view name = slot.name;
  const std::string_view arguments = slot.arguments;
  const bool has_stream = arguments == "stream" || arguments.ends_with(",stream");
  return has_stream && (table == "comm" || table == "rng" || (table == "memory" && name != "release_on_stream"));
}

// Appends "name": value to an open JSON object.
template <class Type>
void append_json_argument(std::string& object, std::string_view name, const Type& value) {
  const std::string text = loader::argument_text(name, value);
  const bool number = std::is_arithmetic_v<Type> && text.find_first_not_of("-0123456789.e+") == std::string::npos;
  if (!object.empty()) object += ',';
  object += loader::cat(json_string(name), ":", number ? text : json_string(text));
}

// The arguments of a call that has ended; with |results|, what it gave back too.
template <auto Member, class... Arguments>
std::string json_arguments(bool results, const Arguments&... arguments) {
  std::string object;
  loader::for_each_argument<Member>(
      [&]<class Type>(std::string_view name, const Type& value) {
        if (!name.starts_with("out_")) {
          append_json_argument(object, name, value);
        } else if constexpr (std::is_pointer_v<Type>) {
          using Result = std::remove_pointer_t<Type>;
          if constexpr (std::is_arithmetic_v<Result> || std::is_pointer_v<Result>) {
            if (results && value != nullptr) append_json_argument(object, name.substr(4), *value);
          }
        }
      },
      arguments...);
  return object;
}

class Trace {
 public:
  Trace(const loader::Tables& next, TraceFile& file);

  const loader::Tables& next() const { return next_; }

  template <auto Member, class Next, class... Arguments>
  concord_status around(const Next& call_next, Arguments... arguments) {
    constexpr const loader::SlotInfo& slot = loader::Slot<Member>::kInfo;
    Timeline::Mark mark;
    if constexpr (queues_work(slot)) mark = timeline_.begin(last(arguments...));
    loader::take_error_detail();  // discards the error messages of the timeline's own calls
    const double start = TraceFile::now();
    const concord_status status = call_next();
    const double stop = TraceFile::now();
    const std::string detail = loader::take_error_detail();
    const bool good = status == CONCORD_STATUS_OK;
    const std::string described = json_arguments<Member>(good, arguments...);
    if constexpr (queues_work(slot)) {
      timeline_.end(mark, last(arguments...), good, slot.full_name, loader::cat("{", described, "}"));
    }
    if (good) learn(loader::Slot<Member>{}, arguments...);
    write_slice(slot.full_name, slot.table, start, stop, status, described, detail);
    loader::set_error_detail(detail);
    return status;
  }

 private:
  template <class... Arguments>
  static auto last(Arguments... arguments) {
    return std::get<sizeof...(arguments) - 1>(std::tuple(arguments...));
  }

  // Which stream belongs to which device.
  template <class AnySlot, class... Arguments>
  void learn(AnySlot, Arguments...) {}
  void learn(loader::Slot<&concord_stream_table::create>, int32_t device, int32_t, concord_stream* out_stream) {
    timeline_.stream_created(*out_stream, device);
  }
  void learn(loader::Slot<&concord_stream_table::destroy>, concord_stream stream) {
    timeline_.stream_destroyed(stream);
  }

  void write_slice(const char* name, const char* category, double start, double stop, concord_status status,
                   const std::string& arguments, const std::string& detail);
  void finish();

  loader::Tables next_;
  TraceFile& file_;
  Timeline timeline_;
};

}  // namespace concord::layers
