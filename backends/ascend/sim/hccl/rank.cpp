#include "backends/ascend/sim/hccl/rank.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "platform/sdk/plugin.hpp"

namespace concord::ascend::sim {
namespace {

constexpr abi::aclError kRtFftsPlusTimeout = 507048;
constexpr abi::aclError kRtSuspectRemoteError = 507057;

// The description of a rank that all ranks exchange during set-up.
struct Card {
  int32_t physical_device;
  uint32_t world_rank;  // world rank of a member of a sub-communicator
};

int64_t read_number(const char* name, int64_t fallback, int64_t least, int64_t most) {
  const char* given = std::getenv(name);
  if (given == nullptr || *given == '\0') return fallback;
  char* end = nullptr;
  const long long value = std::strtoll(given, &end, 10);
  if (*end != '\0' || value < least || value > most) {
    refuse(abi::kHcclPara, sdk::text("%s is '%s'; it must be a number from %lld to %lld", name, given,
                                     static_cast<long long>(least), static_cast<long long>(most)));
  }
  return value;
}

// The engine's status as HCCL's code.
abi::HcclResult result_of(concord_status status) {
  switch (status) {
    case CONCORD_STATUS_OK: return abi::kHcclSuccess;
    case CONCORD_STATUS_INVALID_ARGUMENT: return abi::kHcclPara;
    case CONCORD_STATUS_UNIMPLEMENTED: return abi::kHcclNotSupport;
    case CONCORD_STATUS_OUT_OF_MEMORY: return abi::kHcclMemory;
    case CONCORD_STATUS_TIMEOUT: return abi::kHcclTimeout;
    case CONCORD_STATUS_PEER_LOST:
    case CONCORD_STATUS_ABORTED: return abi::kHcclRemote;
    default: return abi::kHcclInternal;
  }
}

// And the runtime's, for what the stream reports.
abi::aclError stream_code_of(abi::HcclResult code) {
  switch (code) {
    case abi::kHcclTimeout: return kRtFftsPlusTimeout;
    case abi::kHcclRemote: return kRtSuspectRemoteError;
    case abi::kHcclMemory: return abi::kRtDeviceMemError;
    default: return abi::kRtInternalError;
  }
}

}  // namespace

void refuse(abi::HcclResult code, std::string sentence) { throw HcclError(code, std::move(sentence)); }

RankOptions read_options(const abi::HcclCommConfig* config) {
  RankOptions options;
  int64_t megabytes = read_number("HCCL_BUFFSIZE", 200, 1, 1 << 20);
  // The vendor asks for at least 120 s to connect; here less is fine, so that tests need not wait so long.
  options.connect_timeout = std::chrono::seconds(read_number("HCCL_CONNECT_TIMEOUT", 120, 1, 7200));
  options.execute_timeout = std::chrono::seconds(read_number("HCCL_EXEC_TIMEOUT", 1836, 1, INT32_MAX));
  if (config != nullptr) {
    constexpr size_t kMinBytes = offsetof(abi::HcclCommConfig, hcclUdi);
    if (config->magic != abi::kHcclConfigMagic || config->size < kMinBytes) {
      refuse(abi::kHcclPara, "the configuration was not initialised: its magic word or its size is wrong");
    }
    if (config->hcclBufferSize != abi::kHcclConfigNotSet) {
      if (config->hcclBufferSize == 0) refuse(abi::kHcclPara, "hcclBufferSize is 0; it must be 1 MB or more");
      megabytes = config->hcclBufferSize;
    }
    options.name.assign(config->hcclCommName, strnlen(config->hcclCommName, sizeof config->hcclCommName));
  }
  options.buffer_bytes = static_cast<uint64_t>(megabytes) << 20;
  return options;
}

// -------------------------------------------------------------------------------------------------------------- set-up

std::shared_ptr<Rank> Rank::join(int32_t device, uint32_t world, uint32_t rank, const Id& id,
                                 const std::vector<uint32_t>& members, const RankOptions& options) {
  RankOptions named = options;
  if (named.name.empty()) {
    uint64_t number = 0;
    std::memcpy(&number, id.data(), sizeof number);
    named.name = sdk::text("sim-hccl-%016llx", static_cast<unsigned long long>(number));
  }
  std::shared_ptr<Rank> made(new Rank(device, id, members.empty(), named));
  if (concord_sim_charge(device, 2 * static_cast<int64_t>(options.buffer_bytes)) != abi::kAclSuccess) {
    refuse(abi::kHcclOom,
           sdk::text("no room on device %d for the communicator's buffers of 2 x %llu MB (HCCL_BUFFSIZE)", device,
                     static_cast<unsigned long long>(options.buffer_bytes >> 20)));
  }
  made->charged_ = true;
  try {
    made->connect(world, rank);
    made->compare_ranks(members);
  } catch (const sdk::Failure& failure) {
    refuse(result_of(failure.status()), failure.what());
  }
  return made;
}

// The engine waits in set-up as long as in operations, so there is one for the meeting and one made from it.
void Rank::connect(uint32_t world, uint32_t rank) {
  auto meeting =
      shm::Communicator::connect(static_cast<int32_t>(world), static_cast<int32_t>(rank), id_.data(),
                                 static_cast<int64_t>(id_.size()), {options_.name, options_.connect_timeout});
  std::vector<int32_t> all(world);
  std::iota(all.begin(), all.end(), 0);
  engine_ = meeting->split(all, {options_.name, options_.execute_timeout});
  receipts_ = meeting->split(all, {options_.name + " (receipts)", options_.execute_timeout});
}

// Ranks of one communicator have a device each, and the members of a sub-communicator agree who they are.
void Rank::compare_ranks(const std::vector<uint32_t>& members) {
  const Card own{concord_sim_physical_device(device_), members.empty() ? rank() : members[rank()]};
  std::vector<Card> cards(size());
  std::vector<uint32_t> lists(members.size() * size());
  engine_->all_gather(&own, cards.data(), sizeof own, CONCORD_DTYPE_U8);
  if (!members.empty()) {
    engine_->all_gather(members.data(), lists.data(), static_cast<int64_t>(members.size() * sizeof members[0]),
                        CONCORD_DTYPE_U8);
  }
  for (size_t other = 0; other < cards.size(); ++other) {
    if (other != rank() && cards[other].physical_device == own.physical_device) {
      refuse(abi::kHcclPara, sdk::text("ranks %u and %zu of communicator '%s' are both on device %d; each needs its "
                                       "own",
                                       rank(), other, name().c_str(), own.physical_device));
    }
    if (!std::equal(members.begin(), members.end(),
                    lists.begin() + static_cast<std::ptrdiff_t>(other * members.size()))) {
      refuse(abi::kHcclPara, sdk::text("ranks %u and %zu of communicator '%s' were given different members", rank(),
                                       other, name().c_str()));
    }
  }
}

Rank::~Rank() {
  if (charged_) concord_sim_charge(device_, -2 * static_cast<int64_t>(options_.buffer_bytes));
}

// ---------------------------------------------------------------------------------------------------------- operations

void Rank::submit(const char* operation, void* stream, const Traffic& traffic, std::function<void(shm::Engine&)> work) {
  if (stream == nullptr) refuse(abi::kHcclPtr, "the stream is null; HCCL does not accept the default stream");
  if (suspended_.load()) refuse(abi::kHcclSuspending, "the communicator is suspended");
  const int32_t stream_device = concord_sim_device_of(stream);
  if (stream_device < 0) refuse(abi::kHcclPara, "the stream is invalid, or this thread has no context");
  if (stream_device != device_) {
    refuse(abi::kHcclPara, sdk::text("a stream of device %d; the communicator '%s' is on device %d", stream_device,
                                     name().c_str(), device_));
  }
  // Counted from the call to the end of its work, whether that runs or is dropped.
  pending_.fetch_add(1);
  const std::shared_ptr<Rank> counted(this, [self = shared_from_this()](Rank*) { self->pending_.fetch_sub(1); });
  const int32_t code = launch(
      stream, operation,
      [counted, operation, traffic, work = std::move(work)] {
        const int32_t result = counted->run(work);
        if (result == abi::kAclSuccess) concord_sim_count_work(operation, traffic.read, traffic.written);
        return result;
      },
      [counted] { counted->stop(); });
  if (code == abi::kAclSuccess) return;
  if (code < abi::kAclInvalidParam) {  // injected, as one of HCCL's own
    refuse(static_cast<abi::HcclResult>(code), "injected failure");
  }
  refuse(abi::kHcclRuntime, aclGetRecentErrMsg());
}

int32_t Rank::run(const std::function<void(shm::Engine&)>& work) {
  const std::lock_guard lock(turn_);
  try {
    work(*engine_);
    return abi::kAclSuccess;
  } catch (const HcclError& error) {
    return note_failure(error.code(), error.what());
  } catch (const sdk::Failure& failure) {
    std::string detail;
    const concord_status first = engine_->error(&detail);  // the transfers report what ended the receipts
    if (first != CONCORD_STATUS_OK) return note_failure(result_of(first), detail);
    return note_failure(result_of(failure.status()), failure.what());
  } catch (const std::exception& error) {
    return note_failure(abi::kHcclInternal, error.what());
  }
}

// When one engine fails the other is aborted too, so that no rank keeps waiting there.
int32_t Rank::note_failure(abi::HcclResult code, const std::string& text) {
  abi::HcclResult none = abi::kHcclSuccess;
  failure_.compare_exchange_strong(none, code);
  engine_->abort();
  receipts_->abort();
  concord_sim_set_message(text.c_str());
  return stream_code_of(code);
}

void Rank::stop() {
  engine_->abort();
  receipts_->abort();
}

void Rank::transfer(std::span<const concord_p2p_item> items) {
  engine_->batch_p2p(items);
  std::vector<std::byte> words(items.size());
  std::vector<concord_p2p_item> receipts;
  for (size_t i = 0; i < items.size(); ++i) {
    const concord_p2p_kind kind = items[i].kind == CONCORD_P2P_SEND ? CONCORD_P2P_RECV : CONCORD_P2P_SEND;
    receipts.push_back({kind, items[i].peer, &words[i], 1, CONCORD_DTYPE_U8, 0});
  }
  receipts_->batch_p2p(receipts);
}

abi::HcclResult Rank::failure() const {
  const abi::HcclResult own = failure_.load();
  return own != abi::kHcclSuccess ? own : result_of(engine_->error(nullptr));
}

}  // namespace concord::ascend::sim
