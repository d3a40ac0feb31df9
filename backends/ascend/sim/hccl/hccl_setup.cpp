// Communicators: creation, queries and destruction.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "backends/ascend/sim/hccl/edge.h"
#include "backends/ascend/sim/hccl/hccl.h"
#include "backends/ascend/sim/hccl/rank.h"
#include "backends/shm/communicator.h"
#include "platform/base/thread_safety.hpp"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;
namespace sdk = concord::sdk;
namespace shm = concord::shm;

namespace {

constexpr char kRootMagic[] = "sim-npu root info";

// All communicators of the process, and how many calls are inside each.
struct Entry {
  std::shared_ptr<Rank> rank;
  int callers = 0;
};
struct Registry {
  std::mutex mutex;
  std::map<HcclComm, Entry> entries CONCORD_GUARDED_BY(mutex);
  std::set<int32_t> setting_up CONCORD_GUARDED_BY(mutex);  // devices
  uint64_t last CONCORD_GUARDED_BY(mutex) = 0;
};

Registry& registry() {
  static Registry& instance = *new Registry;  // never destroyed: communicators may outlive main
  return instance;
}

Entry& entry_of(HcclComm comm) CONCORD_REQUIRES(registry().mutex) {
  require(comm, "comm");
  const auto found = registry().entries.find(comm);
  if (found == registry().entries.end()) {
    refuse(kHcclPara, sdk::text("%p is not a communicator: it was destroyed, or not created by this library", comm));
  }
  return found->second;
}

HcclComm enlist(std::shared_ptr<Rank> rank) {
  const std::lock_guard lock(registry().mutex);
  auto* handle = reinterpret_cast<HcclComm>(uint64_t{0x1b} << 56 | ++registry().last << 4);
  registry().entries.emplace(handle, Entry{std::move(rank)});
  return handle;
}

// One card must not set up two communicators at the same time. The vendor does not document what happens then; here it
// is an error.
class SetUp {
 public:
  explicit SetUp(int32_t device) : device_(device) {
    const std::lock_guard lock(registry().mutex);
    if (!registry().setting_up.insert(device).second) {
      refuse(kHcclUnavail,
             sdk::text("another thread is setting up a communicator on device %d; only one may at a time", device));
    }
  }
  ~SetUp() {
    const std::lock_guard lock(registry().mutex);
    registry().setting_up.erase(device_);
  }
  SetUp(const SetUp&) = delete;
  SetUp& operator=(const SetUp&) = delete;

 private:
  const int32_t device_;
};

void count_call(const char* name) {
  const int32_t code = concord_sim_count_call(name);
  if (code == kAclSuccess) return;
  refuse(code < kAclInvalidParam ? static_cast<HcclResult>(code) : kHcclRuntime, aclGetRecentErrMsg());
}

int32_t current_device() {
  const int32_t device = concord_sim_device_of(nullptr);
  if (device < 0) refuse(kHcclRuntime, "this thread has no device: call aclrtSetDevice first");
  return device;
}

Rank::Id id_of(const HcclRootInfo& root) {
  if (std::memcmp(root.internal, kRootMagic, sizeof kRootMagic) != 0) {
    refuse(kHcclPara, "the root info is not from HcclGetRootInfo, or was not copied completely");
  }
  Rank::Id id;
  std::memcpy(id.data(), root.internal + sizeof kRootMagic, id.size());
  return id;
}

void check_rank(uint32_t world, uint32_t rank) {
  if (world == 0 || rank >= world) refuse(kHcclPara, sdk::text("rank %u of %u", rank, world));
}

void init(uint32_t world, const HcclRootInfo* root, uint32_t rank, const HcclCommConfig* config, HcclComm* comm) {
  require(root, "rootInfo");
  require(comm, "comm");
  *comm = nullptr;
  check_rank(world, rank);
  const RankOptions options = read_options(config);
  const Rank::Id id = id_of(*root);
  const int32_t device = current_device();
  const SetUp alone(device);
  *comm = enlist(Rank::join(device, world, rank, id, {}, options));
}

// The meeting place of a sub-communicator follows from the world's and the number that the caller gave it: members find
// each other without a word between them. FNV-1a, stretched over the id, whose end names the host and stays.
Rank::Id derived_id(const Rank::Id& world, uint64_t number) {
  Rank::Id id = world;
  uint64_t hash = 14695981039346656037u ^ number;
  for (size_t i = 0; i < id.size() - shm::kHostBytes; ++i) {
    hash = (hash ^ static_cast<uint64_t>(world[i])) * 1099511628211u;
    hash ^= hash >> 29;
    id[i] = world[i] ^ static_cast<std::byte>(hash >> 24);
  }
  return id;
}

void check_members(const Rank& world, const std::vector<uint32_t>& members, uint32_t sub_rank) {
  if (!world.is_world())
    refuse(kHcclNotSupport, "a sub-communicator can only be created from the world's communicator");
  if (!std::is_sorted(members.begin(), members.end()) ||
      std::adjacent_find(members.begin(), members.end()) != members.end()) {
    refuse(kHcclPara, "the ranks of a sub-communicator must be distinct and in ascending order");
  }
  if (members.back() >= world.size()) refuse(kHcclPara, sdk::text("rank %u of %u", members.back(), world.size()));
  if (sub_rank >= members.size() || members[sub_rank] != world.rank()) {
    refuse(kHcclPara, sdk::text("rank %u of the world is not number %u of the list", world.rank(), sub_rank));
  }
}

}  // namespace

namespace concord::ascend::sim {

InUse::InUse(HcclComm comm) : comm_(comm) {
  const std::lock_guard lock(registry().mutex);
  Entry& entry = entry_of(comm);
  ++entry.callers;
  rank_ = entry.rank;
}

InUse::~InUse() {
  const std::lock_guard lock(registry().mutex);
  --registry().entries.at(comm_).callers;
}

}  // namespace concord::ascend::sim

// -------------------------------------------------------------------------------------------------------------- making

HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  return hccl_call(__func__, [&] {
    count_call("HcclGetRootInfo");
    require(root, "rootInfo");
    current_device();
    std::memset(root, 0, sizeof *root);
    std::memcpy(root->internal, kRootMagic, sizeof kRootMagic);
    shm::create_unique_id(root->internal + sizeof kRootMagic, shm::kUniqueIdBytes);
  });
}

HcclResult HcclCommInitRootInfo(uint32_t world, const HcclRootInfo* root, uint32_t rank, HcclComm* comm) {
  return hccl_call(__func__, [&] {
    count_call("HcclCommInitRootInfo");
    init(world, root, rank, nullptr, comm);
  });
}

HcclResult HcclCommInitRootInfoConfig(uint32_t world, const HcclRootInfo* root, uint32_t rank,
                                      const HcclCommConfig* config, HcclComm* comm) {
  return hccl_call(__func__, [&] {
    count_call("HcclCommInitRootInfoConfig");
    require(config, "config");
    init(world, root, rank, config, comm);
  });
}

HcclResult HcclCreateSubCommConfig(HcclComm* world, uint32_t count, uint32_t* ranks, uint64_t number, uint32_t sub_rank,
                                   HcclCommConfig* config, HcclComm* comm) {
  return hccl_call(__func__, [&] {
    count_call("HcclCreateSubCommConfig");
    require(world, "comm");
    require(comm, "subComm");
    *comm = nullptr;
    const InUse whole(*world);
    if (ranks == nullptr && number == kHcclNoSubComm) return;  // no member
    require(ranks, "rankIds");
    require(config, "config");
    if (count == 0) refuse(kHcclPara, "a sub-communicator of 0 ranks");
    const std::vector<uint32_t> members(ranks, ranks + count);
    check_members(*whole.shared(), members, sub_rank);
    const RankOptions options = read_options(config);
    const SetUp alone(whole->device());
    *comm = enlist(Rank::join(whole->device(), count, sub_rank, derived_id(whole->id(), number), members, options));
  });
}

HcclResult HcclCommDestroy(HcclComm comm) {
  return hccl_call(__func__, [&] {
    count_call("HcclCommDestroy");
    std::shared_ptr<Rank> ending;  // ends after the lock
    const std::lock_guard lock(registry().mutex);
    Entry& entry = entry_of(comm);
    if (entry.callers > 0 || entry.rank->busy()) {
      refuse(kHcclAgain, "the communicator is in use: another thread is inside a call, or operations are still queued");
    }
    ending = std::move(entry.rank);
    registry().entries.erase(comm);
  });
}

HcclResult HcclCommSuspend(HcclComm comm) {
  return hccl_call(__func__, [&] { InUse(comm)->set_suspended(true); });
}

HcclResult HcclCommResume(HcclComm comm) {
  return hccl_call(__func__, [&] { InUse(comm)->set_suspended(false); });
}

// -------------------------------------------------------------------------------------------------------------- asking

HcclResult HcclGetRankSize(HcclComm comm, uint32_t* size) {
  return hccl_call(__func__, [&] {
    require(size, "rankSize");
    *size = InUse(comm)->size();
  });
}

HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank) {
  return hccl_call(__func__, [&] {
    require(rank, "rank");
    *rank = InUse(comm)->rank();
  });
}

HcclResult HcclGetCommName(HcclComm comm, char* name) {
  return hccl_call(__func__, [&] {
    require(name, "commName");
    std::snprintf(name, 128, "%s", InUse(comm)->name().c_str());
  });
}

HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult* error) {
  return hccl_call(__func__, [&] {
    require(error, "asyncError");
    *error = InUse(comm)->failure();
  });
}

const char* HcclGetErrorString(HcclResult code) {
  static constexpr std::array kNames = {
      "no error",         "parameter error",    "empty pointer",       "memory error",        "internal error",
      "not supported",    "not found",          "unavailable",         "system call failed",  "timeout",
      "cannot open file", "tcp connect failed", "roce connect failed", "tcp transfer failed", "roce transfer failed",
      "runtime error",    "driver error",       "profiling error",     "cce error",           "network error",
      "try again",        "remote error",       "suspending",          "retry failed",        "out of memory"};
  return code < kNames.size() ? kNames[code] : "unknown error";
}

// Buffer size, determinism, name and expansion mode: what HcclCommConfig up to version 5 is read for.
uint32_t HcclGetCommConfigCapability() { return 4; }

// Results are always deterministic here.
HcclResult HcclSetConfig(int32_t /*config*/, int32_t /*value*/) { return kHcclSuccess; }
