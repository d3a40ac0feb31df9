#include "trainer/report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <filesystem>

#include "trainer/report/crc32c.h"

namespace concord {
namespace {

// Protocol Buffers on the wire: a key is field * 8 + type.
enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
// Fields of tensorflow/core/util/event.proto and summary.proto.
constexpr uint64_t kEventTime = 1, kEventStep = 2, kEventVersion = 3, kEventSummary = 5, kEventSession = 7;
constexpr uint64_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;
constexpr std::string_view kNamePrefix = "events.out.tfevents.";

void put_fixed(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

void put_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void put_key(std::string* out, uint64_t field, WireType type) { put_varint(out, field * 8 + type); }

void put_number(std::string* out, uint64_t field, uint64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, value);
}

void put_text(std::string* out, uint64_t field, std::string_view text) {
  put_key(out, field, kBytes);
  put_varint(out, text.size());
  out->append(text);
}

std::string event_at(double time, int64_t step) {
  std::string event;
  put_key(&event, kEventTime, kFixed64);
  put_fixed(&event, std::bit_cast<uint64_t>(time), 8);
  if (step != 0) put_number(&event, kEventStep, static_cast<uint64_t>(step));
  return event;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

std::string prepared_path(const std::string& folder, int64_t first_step, double time) {
  make_folder(folder);
  if (first_step == 0) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with(kNamePrefix)) std::filesystem::remove(entry.path());
    }
  }
  return fmt::format("{}/{}{:010}.{}.{}.{}", folder, kNamePrefix, static_cast<int64_t>(time), host_name(), ::getpid(),
                     first_step);
}

}  // namespace

std::string tf_record(std::string_view data) {
  std::string record;
  put_fixed(&record, data.size(), 8);
  put_fixed(&record, masked_crc32c(record), 4);
  record.append(data);
  put_fixed(&record, masked_crc32c(data), 4);
  return record;
}

std::string version_event(double time) {
  std::string event = event_at(time, 0);
  put_text(&event, kEventVersion, "brain.Event:2");
  return event;
}

std::string scalars_event(double time, int64_t step, const NamedValues& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_text(&value, kValueTag, tag);
    put_key(&value, kValueSimple, kFixed32);
    put_fixed(&value, std::bit_cast<uint32_t>(static_cast<float>(number)), 4);
    put_text(&summary, kSummaryValue, value);
  }
  std::string event = event_at(time, step);
  put_text(&event, kEventSummary, summary);
  return event;
}

std::string restart_event(double time, int64_t step) {
  std::string session;
  put_number(&session, kSessionStatus, kSessionStart);
  std::string event = event_at(time, step);
  put_text(&event, kEventSession, session);
  return event;
}

EventFile::EventFile(const std::string& folder, int64_t first_step, double time)
    : file_(prepared_path(folder, first_step, time), /*truncate=*/false) {
  file_.append(tf_record(version_event(time)));
  if (first_step > 0) file_.append(tf_record(restart_event(time, first_step + 1)));
}

void EventFile::add(double time, int64_t step, const NamedValues& scalars) {
  file_.append(tf_record(scalars_event(time, step, scalars)));
}

}  // namespace concord
