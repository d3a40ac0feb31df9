#include "backends/ascend/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "backends/ascend/status.h"

namespace concord::ascend {
namespace {

constexpr int64_t kWordBytes = 64;
constexpr int kDestroyTries = 200;  // 5 ms apart
constexpr int64_t kMinScratch = 4096;

// Set-up on one device, one thread at a time. Never freed: communicators may outlive main.
std::mutex& set_up_lock(int32_t device) {
  static std::mutex guard;
  static auto* locks = new std::unordered_map<int32_t, std::mutex>();
  const std::lock_guard lock(guard);
  return (*locks)[device];
}

abi::HcclCommConfig default_config() {
  abi::HcclCommConfig config{};
  config.size = abi::kHcclConfigBytes;
  config.magic = abi::kHcclConfigMagic;
  config.version = abi::kHcclConfigVersion;
  config.hcclBufferSize = abi::kHcclConfigNotSet;
  config.hcclDeterministic = abi::kHcclConfigNotSet;
  config.hcclRdmaTrafficClass = abi::kHcclConfigNotSet;
  config.hcclRdmaServiceLevel = abi::kHcclConfigNotSet;
  return config;
}

// FNV-1a over words: the same on every member, because all of them have passed the same.
uint64_t mix(uint64_t hash, uint64_t word) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ ((word >> (8 * i)) & 0xff)) * 0x100000001b3;
  return hash;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------- joining, ending

Communicator::Link::~Link() {
  try {
    const DeviceGuard here(devices, device);
    abi::HcclResult result = abi::kHcclAgain;  // while another thread is inside it
    for (int i = 0; i < kDestroyTries && result == abi::kHcclAgain; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      result = hccl.HcclCommDestroy(handle);
    }
    check_hccl(hccl, result, "HcclCommDestroy");
  } catch (const std::exception& error) {
    sdk::log(CONCORD_LOG_WARN, std::string("a communicator was not freed: ") + error.what());
  }
}

Communicator::Communicator(Memory& memory, Devices& devices, const Hccl& hccl, int32_t device, int32_t size,
                           int32_t rank, const sdk::CommConfig& config)
    : memory_(memory),
      devices_(devices),
      hccl_(hccl),
      device_(device),
      size_(size),
      rank_(rank),
      who_(sdk::text("communicator '%s', rank %d of %d", config.name.c_str(), rank, size)),
      word_(memory.allocate(device, kWordBytes)) {}

std::unique_ptr<Communicator> Communicator::join(Memory& memory, Devices& devices, const Hccl& hccl, int32_t device,
                                                 int32_t world, int32_t rank, const abi::HcclRootInfo& root,
                                                 const sdk::CommConfig& config) {
  const DeviceGuard here(devices, device);
  std::unique_ptr<Communicator> made(new Communicator(memory, devices, hccl, device, world, rank, config));
  if (world == 1) return made;
  const std::lock_guard lock(set_up_lock(device));
  abi::HcclComm handle = nullptr;
  const abi::HcclResult result =
      hccl.HcclCommInitRootInfo(static_cast<uint32_t>(world), &root, static_cast<uint32_t>(rank), &handle);
  if (result != abi::kHcclSuccess) {
    const concord_status status = status_of(result);
    const char* advice = status == CONCORD_STATUS_OUT_OF_MEMORY
                             ? "; a communicator needs 2 x HCCL_BUFFSIZE (200 MB by default) on the device"
                             : "; do all ranks have the same unique id and their own device, and can they reach this "
                               "machine (HCCL_SOCKET_IFNAME, HCCL_IF_IP) within HCCL_CONNECT_TIMEOUT?";
    sdk::fail(status, made->who_ + ": " + describe(hccl, result, "HcclCommInitRootInfo") + advice);
  }
  made->link_ = std::make_shared<Link>(devices, hccl, device, handle);
  made->first_ = made->link_;
  for (int32_t r = 0; r < world; ++r) made->first_ranks_.push_back(static_cast<uint32_t>(r));
  return made;
}

Communicator::~Communicator() {
  try {
    const DeviceGuard here(devices_, device_);
    for (const concord_stream stream : streams_) {  // a stream that has failed has no queued operations either
      devices_.acl().aclrtSynchronizeStream(vendor(stream));
    }
    if (turn_ != nullptr) devices_.acl().aclrtDestroyEvent(turn_);
    link_.reset();  // before its scratch memory
    first_.reset();
    for (const auto& [stream, scratch] : scratch_) memory_.release(device_, scratch.data);
    for (void* data : outgrown_) memory_.release(device_, data);
    memory_.release(device_, word_);
  } catch (const std::exception& error) {
    sdk::log(CONCORD_LOG_WARN, who_ + ": not everything was freed: " + error.what());
  }
}

// -------------------------------------------------------------------------------------------------------------- split

std::unique_ptr<Communicator> Communicator::split(const int32_t* ranks, int32_t count, const sdk::CommConfig& config) {
  sdk::check_split(ranks, count, rank_, size_);
  check();
  ++splits_;
  const DeviceGuard here(devices_, device_);
  if (count == 0) {
    stay_out();
    return nullptr;
  }
  const auto place = static_cast<int32_t>(std::find(ranks, ranks + count, rank_) - ranks);
  std::vector<uint32_t> members;  // as ranks of the first communicator
  if (count > 1) {
    for (int32_t i = 0; i < count; ++i) members.push_back(first_ranks_[static_cast<size_t>(ranks[i])]);
  }
  const bool ascending = std::is_sorted(members.begin(), members.end());
  if (count == 1 || !ascending) stay_out();
  if (count > 1 && (!ascending || hccl_.HcclCreateSubCommConfig == nullptr)) {
    return join(memory_, devices_, hccl_, device_, count, place, exchange_root(ranks, count), config);
  }
  std::unique_ptr<Communicator> made(new Communicator(memory_, devices_, hccl_, device_, count, place, config));
  if (count == 1) return made;
  made->id_ = mix(mix(0xcbf29ce484222325, id_), splits_);
  for (const uint32_t member : members) made->id_ = mix(made->id_, member);
  made->link_ = std::make_shared<Link>(devices_, hccl_, device_, cut(members, place, made->id_));
  made->first_ = first_;
  made->first_ranks_ = std::move(members);
  return made;
}

abi::HcclComm Communicator::cut(std::vector<uint32_t> members, int32_t place, uint64_t id) {
  const std::lock_guard lock(set_up_lock(device_));
  abi::HcclCommConfig config = default_config();
  abi::HcclComm handle = nullptr;
  finish("HcclCreateSubCommConfig",
         hccl_.HcclCreateSubCommConfig(&first_->handle, static_cast<uint32_t>(members.size()), members.data(), id,
                                       static_cast<uint32_t>(place), &config, &handle));
  return handle;
}

// HCCL wants the call from every rank, also from one that is not a member, or not by HCCL.
void Communicator::stay_out() {
  if (first_ == nullptr || hccl_.HcclCreateSubCommConfig == nullptr) return;
  const std::lock_guard lock(set_up_lock(device_));
  abi::HcclCommConfig config = default_config();
  abi::HcclComm none = nullptr;
  finish("HcclCreateSubCommConfig (not a member)",
         hccl_.HcclCreateSubCommConfig(&first_->handle, 0, nullptr, abi::kHcclNoSubComm, 0, &config, &none));
}

// The root info of a communicator of |ranks|: made by the first of them and sent to the others.
abi::HcclRootInfo Communicator::exchange_root(const int32_t* ranks, int32_t count) {
  const Acl& acl = devices_.acl();
  abi::HcclRootInfo root{};
  const bool leads = rank_ == ranks[0];
  if (leads) check_hccl(hccl_, hccl_.HcclGetRootInfo(&root), "HcclGetRootInfo");
  struct Temporary {  // freed whatever happens
    Memory& memory;
    const Acl& runtime;
    int32_t device;
    void* data = nullptr;
    abi::aclrtStream stream = nullptr;
    ~Temporary() {
      if (stream != nullptr) runtime.aclrtDestroyStream(stream);
      if (data != nullptr) memory.release(device, data);
    }
  } own{memory_, acl, device_};
  own.data = memory_.allocate(device_, sizeof root);
  check_acl(acl, acl.aclrtCreateStreamWithConfig(&own.stream, 0, 0), "aclrtCreateStreamWithConfig");
  if (leads) memory_.copy(own.data, &root, sizeof root, CONCORD_COPY_HOST_TO_DEVICE);
  std::vector<abi::HcclSendRecvItem> items;
  for (int32_t i = 1; i < count; ++i) {
    if (leads)
      items.push_back({abi::kHcclSend, own.data, sizeof root, abi::kHcclInt8, static_cast<uint32_t>(ranks[i])});
  }
  if (!leads) items.push_back({abi::kHcclRecv, own.data, sizeof root, abi::kHcclInt8, static_cast<uint32_t>(ranks[0])});
  finish("HcclBatchSendRecv (of a root info)",
         hccl_.HcclBatchSendRecv(items.data(), static_cast<uint32_t>(items.size()), link_->handle, own.stream));
  check_acl(acl, acl.aclrtSynchronizeStream(own.stream), "aclrtSynchronizeStream (of a root info)");
  memory_.copy(&root, own.data, sizeof root, CONCORD_COPY_DEVICE_TO_HOST);
  return root;
}

// --------------------------------------------------------------------------------------------------------- operations

void Communicator::finish(const char* call, abi::HcclResult result) {
  if (result == abi::kHcclSuccess) return;
  std::string detail = who_ + ": " + describe(hccl_, result, call);
  const concord_status status = status_of(result);
  // Refused before anything was queued: the communicator is as good as before.
  const bool refused = status == CONCORD_STATUS_INVALID_ARGUMENT || status == CONCORD_STATUS_UNIMPLEMENTED;
  if (!refused) {
    const std::lock_guard lock(mutex_);
    fail(status, detail);
  }
  sdk::fail(status, std::move(detail));
}

bool Communicator::is_captured(concord_stream stream) const {
  const Acl& acl = devices_.acl();
  if (acl.aclmdlRICaptureGetInfo == nullptr) return false;
  abi::aclmdlRICaptureStatus status = abi::kCaptureNone;
  abi::aclmdlRI graph = nullptr;
  check_acl(acl, acl.aclmdlRICaptureGetInfo(vendor(stream), &status, &graph), "aclmdlRICaptureGetInfo");
  return status != abi::kCaptureNone;
}

void Communicator::turn_to(concord_stream stream) {
  check();
  const concord_stream last = last_stream_.load(std::memory_order_relaxed);
  if (last == stream) return;
  // Work that is captured waits for nothing outside of its graph, nor anything outside for it.
  if (last != nullptr && is_captured(last) == is_captured(stream)) {
    const Acl& acl = devices_.acl();
    if (turn_ == nullptr) {
      check_acl(acl, acl.aclrtCreateEventExWithFlag(&turn_, abi::kEventSync), "aclrtCreateEventExWithFlag");
    }
    check_acl(acl, acl.aclrtRecordEvent(turn_, vendor(last)), "aclrtRecordEvent");
    check_acl(acl, acl.aclrtStreamWaitEvent(vendor(stream), turn_), "aclrtStreamWaitEvent");
  }
  note(stream);
}

void Communicator::note(concord_stream stream) {
  if (last_stream_.load(std::memory_order_relaxed) == stream) return;
  const std::lock_guard lock(mutex_);
  last_stream_.store(stream, std::memory_order_relaxed);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void Communicator::forget(concord_stream stream) {
  const std::lock_guard lock(mutex_);
  std::erase(streams_, stream);
  if (last_stream_.load(std::memory_order_relaxed) == stream) last_stream_.store(nullptr, std::memory_order_relaxed);
}

void* Communicator::scratch(int64_t bytes, concord_stream stream) {
  Scratch& own = scratch_[stream];
  if (own.bytes >= bytes) return own.data;
  // Twice the previous size: so that all outgrown buffers together are no larger than the one in use.
  const int64_t grown = std::max({bytes, 2 * own.bytes, kMinScratch});
  void* data = memory_.allocate(device_, grown);
  if (own.data != nullptr) outgrown_.push_back(own.data);
  own = {data, grown};
  return data;
}

// ----------------------------------------------------------------------------------------------------------- failures

void Communicator::check() {
  if (failed_.load(std::memory_order_acquire)) throw_failure();
}

void Communicator::throw_failure() {
  const std::lock_guard lock(mutex_);
  sdk::fail(failure_, failure_detail_);
}

void Communicator::fail(concord_status status, std::string detail) {
  if (failure_ != CONCORD_STATUS_OK) return;
  failure_ = status;
  failure_detail_ = std::move(detail);
  failed_.store(true, std::memory_order_release);
}

void Communicator::look_at_hccl() {
  if (failure_ != CONCORD_STATUS_OK || link_ == nullptr) return;
  abi::HcclResult state = abi::kHcclSuccess;
  const abi::HcclResult asked = hccl_.HcclGetCommAsyncError(link_->handle, &state);
  if (asked != abi::kHcclSuccess) state = asked;
  if (state == abi::kHcclSuccess) return;
  fail(status_of(state), who_ + ": " + describe(hccl_, state, "an operation queued earlier"));
}

concord_status Communicator::error(std::string* out_detail) {
  const DeviceGuard here(devices_, device_);
  const std::lock_guard lock(mutex_);
  look_at_hccl();
  *out_detail = failure_detail_;
  return failure_;
}

bool Communicator::used(concord_stream stream) {
  const std::lock_guard lock(mutex_);
  return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
}

}  // namespace concord::ascend
