// A simulated libmspti.so: it records what the simulated devices do, while the kind of it is enabled. Records are kept
// until they are flushed, and delivered in buffers of the caller, as many as fit.
#include "backends/ascend/sim/profiler/mspti.h"

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {
namespace {

using namespace abi;

constexpr msptiResult kMultipleSubscribers = 2;  // besides those in mspti_abi.h

struct Record {
  msptiActivityKind kind;
  concord_sim_work work;  // its name is in names
};

struct Mspti {
  std::mutex mutex;
  bool has_subscriber CONCORD_GUARDED_BY(mutex) = false;
  msptiBuffersCallbackRequestFunc* give CONCORD_GUARDED_BY(mutex) = nullptr;
  msptiBuffersCallbackCompleteFunc* take CONCORD_GUARDED_BY(mutex) = nullptr;
  std::set<msptiActivityKind> enabled CONCORD_GUARDED_BY(mutex);
  std::vector<Record> records CONCORD_GUARDED_BY(mutex);
  std::set<std::string> names CONCORD_GUARDED_BY(mutex);  // stay where they are: records refer to them
};

Mspti& mspti() {
  static Mspti& only = *new Mspti;  // never destroyed: streams work until the process ends
  return only;
}

msptiActivityKind kind_of(const std::string& name) {
  if (name.starts_with("Hccl")) return kMsptiHccl;
  if (name.starts_with("aclrtMemcpy")) return kMsptiMemcpy;
  if (name.starts_with("aclrtMemset")) return kMsptiMemset;
  return kMsptiKernel;
}

// On the stream's thread.
void observe(const concord_sim_work* work) {
  const msptiActivityKind kind = kind_of(work->name);
  Mspti& state = mspti();
  const std::lock_guard lock(state.mutex);
  if (!state.enabled.contains(kind)) return;
  Record record{kind, *work};
  record.work.name = state.names.emplace(work->name).first->c_str();
  state.records.push_back(record);
}

// Every record has its kind first, and these sizes.
size_t size_of(msptiActivityKind kind) {
  switch (kind) {
    case kMsptiHccl: return sizeof(msptiActivityHccl);
    case kMsptiMemset: return sizeof(msptiActivityMemset);
    case kMsptiMemcpy: return sizeof(msptiActivityMemcpy);
    default: return sizeof(msptiActivityKernel);
  }
}

template <class Activity>
Activity with_times(const Record& record) {
  Activity activity{};
  activity.kind = record.kind;
  activity.start = static_cast<uint64_t>(record.work.begin_ns);
  activity.end = static_cast<uint64_t>(record.work.end_ns);
  activity.device = static_cast<uint32_t>(record.work.device);
  activity.stream = record.work.stream < 0 ? kMsptiNoStream : static_cast<uint32_t>(record.work.stream);
  return activity;
}

template <class Activity>
void put(uint8_t* to, const Activity& activity) {
  std::memcpy(to, &activity, sizeof activity);
}

void write(const Record& record, uint8_t* to) {
  const auto bytes = static_cast<uint64_t>(record.work.bytes);
  if (record.kind == kMsptiHccl) {
    auto activity = with_times<msptiActivityHccl>(record);
    activity.name = record.work.name;
    activity.communicator = "";
    put(to, activity);
  } else if (record.kind == kMsptiMemset) {
    auto activity = with_times<msptiActivityMemset>(record);
    activity.bytes = bytes;
    activity.is_async = record.work.stream >= 0 ? 1 : 0;
    put(to, activity);
  } else if (record.kind == kMsptiMemcpy) {
    auto activity = with_times<msptiActivityMemcpy>(record);
    activity.copy_kind = 0;  // unknown: the report of the work does not tell them apart
    activity.bytes = bytes;
    activity.is_async = record.work.stream >= 0 ? 1 : 0;
    put(to, activity);
  } else {
    auto activity = with_times<msptiActivityKernel>(record);
    activity.type = "AI_CORE";
    activity.name = record.work.name;
    put(to, activity);
  }
}

}  // namespace
}  // namespace concord::ascend::sim

using namespace concord::ascend::sim;
using namespace concord::ascend::abi;

msptiResult msptiSubscribe(msptiSubscriberHandle* subscriber, msptiCallbackFunc*, void*) {
  if (subscriber == nullptr) return kMsptiInvalidParameter;
  const std::lock_guard lock(mspti().mutex);
  if (mspti().has_subscriber) return kMultipleSubscribers;
  mspti().has_subscriber = true;
  *subscriber = &mspti();
  return kMsptiSuccess;
}

msptiResult msptiUnsubscribe(msptiSubscriberHandle subscriber) {
  const std::lock_guard lock(mspti().mutex);
  if (subscriber != &mspti() || !mspti().has_subscriber) return kMsptiInvalidParameter;
  mspti().has_subscriber = false;
  return kMsptiSuccess;
}

msptiResult msptiActivityRegisterCallbacks(msptiBuffersCallbackRequestFunc* give,
                                           msptiBuffersCallbackCompleteFunc* take) {
  if (give == nullptr || take == nullptr) return kMsptiInvalidParameter;
  const std::lock_guard lock(mspti().mutex);
  mspti().give = give;
  mspti().take = take;
  return kMsptiSuccess;
}

msptiResult msptiActivityEnable(msptiActivityKind kind) {
  if (kind <= 0 || kind > 8) return kMsptiInvalidParameter;
  const std::lock_guard lock(mspti().mutex);
  mspti().enabled.insert(kind);
  concord_sim_observe_work(&observe);
  return kMsptiSuccess;
}

msptiResult msptiActivityDisable(msptiActivityKind kind) {
  if (kind <= 0 || kind > 8) return kMsptiInvalidParameter;
  const std::lock_guard lock(mspti().mutex);
  mspti().enabled.erase(kind);
  if (mspti().enabled.empty()) concord_sim_observe_work(nullptr);
  return kMsptiSuccess;
}

msptiResult msptiActivityFlushAll(uint32_t) {
  std::vector<Record> records;
  msptiBuffersCallbackRequestFunc* give = nullptr;
  msptiBuffersCallbackCompleteFunc* take = nullptr;
  {
    const std::lock_guard lock(mspti().mutex);
    records.swap(mspti().records);
    give = mspti().give;
    take = mspti().take;
  }
  if (give == nullptr || take == nullptr) return kMsptiInvalidParameter;
  for (size_t next = 0; next < records.size();) {
    uint8_t* buffer = nullptr;
    size_t size = 0, most = 0, used = 0;
    give(&buffer, &size, &most);
    if (buffer == nullptr) return kMsptiSuccess;  // the caller declines: the rest is dropped
    for (size_t count = 0; next < records.size() && (most == 0 || count < most); ++next, ++count) {
      if (used + size_of(records[next].kind) > size) break;
      write(records[next], buffer + used);
      used += size_of(records[next].kind);
    }
    const bool is_stuck = used == 0;
    take(buffer, size, used);
    if (is_stuck) return kMsptiInvalidParameter;
  }
  return kMsptiSuccess;
}

msptiResult msptiActivityGetNextRecord(uint8_t* buffer, size_t valid_size, msptiActivity** record) {
  if (buffer == nullptr || record == nullptr) return kMsptiInvalidParameter;
  uint8_t* next = buffer;
  if (*record != nullptr) {
    next = reinterpret_cast<uint8_t*>(*record);
    msptiActivityKind kind = 0;
    std::memcpy(&kind, next, sizeof kind);
    next += size_of(kind);
  }
  if (next >= buffer + valid_size) return kMsptiMaxLimitReached;
  *record = reinterpret_cast<msptiActivity*>(next);
  return kMsptiSuccess;
}
