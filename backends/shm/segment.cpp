#include "backends/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "platform/base/thread_safety.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::shm {
namespace {

constexpr int64_t kSlotBytes = 512 << 10;
constexpr int64_t kMaxChannelBytes = 256 << 10;
constexpr int64_t kChannelBudget = 1 << 20;  // bytes of all channels that leave one rank
constexpr int64_t kMinChannelBytes = 4 << 10;
constexpr int64_t kPageBytes = 4096;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t channel_bytes_for(int32_t world) {
  return std::clamp(kChannelBudget / (world - 1) / kLineBytes * kLineBytes, kMinChannelBytes, kMaxChannelBytes);
}

[[noreturn]] void fail_with_errno(concord_status status, const std::string& what) {
  sdk::fail(status, what + ": " + std::strerror(errno));
}

// Growing a file past RLIMIT_FSIZE raises a signal; so look first.
void check_file_limit(int64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    sdk::fail(CONCORD_STATUS_OUT_OF_MEMORY,
              sdk::text("%lld bytes of shared memory are needed, but the limit on file sizes (ulimit -f) allows %llu",
                        static_cast<long long>(bytes), static_cast<unsigned long long>(limit.rlim_cur)));
  }
}

void reserve(int file, int64_t bytes) {
  check_file_limit(bytes);
  int result = 0;
  do {
    result = ::fallocate(file, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    fail_with_errno(CONCORD_STATUS_OUT_OF_MEMORY,
                    sdk::text("cannot reserve %lld bytes of shared memory", static_cast<long long>(bytes)));
  }
}

// Mappings of this process by the file's identity, so that ranks that are threads share one.
using FileKey = std::pair<dev_t, ino_t>;
struct Registry {
  std::mutex mutex;
  std::map<FileKey, std::weak_ptr<Segment>> segments CONCORD_GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* instance = new Registry();  // never destroyed: communicators may outlive main
  return *instance;
}

}  // namespace

Geometry::Geometry(int32_t ranks) : world(ranks) {
  // A communicator of one rank never stages anything.
  slot_bytes = world > 1 ? kSlotBytes : 0;
  channel_bytes = world > 1 ? channel_bytes_for(world) : 0;
  progress_offset = round_up(sizeof(FailureRecord), kLineBytes);
  bedside_offset = progress_offset + world * static_cast<int64_t>(sizeof(Progress));
  member_offset = bedside_offset + world * static_cast<int64_t>(sizeof(Bedside));
  slots_offset = round_up(member_offset + world * static_cast<int64_t>(sizeof(Member)), kPageBytes);
  channels_offset = slots_offset + world * 2 * slot_bytes;
  const int64_t channels = static_cast<int64_t>(world) * (world - 1);
  total_bytes = channels_offset + channels * (static_cast<int64_t>(sizeof(ChannelControl)) + channel_bytes);
  total_bytes = round_up(total_bytes, kPageBytes);
}

std::shared_ptr<Segment> Segment::create(int32_t world, UniqueFd* out_file) {
  UniqueFd file(::memfd_create("concord-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) fail_with_errno(CONCORD_STATUS_OUT_OF_MEMORY, "cannot create a shared memory file (memfd_create)");
  if (::fchmod(file.get(), 0600) != 0) fail_with_errno(CONCORD_STATUS_INTERNAL, "fchmod of the shared memory file");
  reserve(file.get(), Geometry(world).total_bytes);
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail_with_errno(CONCORD_STATUS_INTERNAL, "cannot fix the size of the shared memory file (F_ADD_SEALS)");
  }
  auto segment = map(file, world);
  *out_file = std::move(file);
  return segment;
}

std::shared_ptr<Segment> Segment::adopt(const UniqueFd& file, int32_t world) {
  struct stat status{};
  const int64_t expected = Geometry(world).total_bytes;
  const bool sized = ::fstat(file.get(), &status) == 0 && status.st_size == expected;
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (!sized || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    sdk::fail(CONCORD_STATUS_INTERNAL,
              sdk::text("the shared memory of rank 0 has %lld bytes and seals %d; expected %lld bytes that cannot "
                        "shrink. Do all ranks run the same build?",
                        static_cast<long long>(status.st_size), seals, static_cast<long long>(expected)));
  }
  return map(file, world);
}

std::shared_ptr<Segment> Segment::map(const UniqueFd& file, int32_t world) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail_with_errno(CONCORD_STATUS_INTERNAL, "fstat of the shared memory file");
  const FileKey key{status.st_dev, status.st_ino};
  const std::lock_guard lock(registry().mutex);
  auto& segments = registry().segments;
  std::erase_if(segments, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = segments.find(key); found != segments.end()) {
    if (auto existing = found->second.lock()) return existing;
  }
  std::shared_ptr<Segment> segment(new Segment(file, world));
  segments[key] = segment;
  return segment;
}

Segment::Segment(const UniqueFd& file, int32_t world) : geometry_(world) {
  void* base = ::mmap(nullptr, static_cast<size_t>(geometry_.total_bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (base == MAP_FAILED) {
    fail_with_errno(CONCORD_STATUS_OUT_OF_MEMORY, "cannot map the shared memory of a communicator");
  }
  base_ = static_cast<std::byte*>(base);
}

Segment::~Segment() { ::munmap(base_, static_cast<size_t>(geometry_.total_bytes)); }

std::byte* Segment::slot(int32_t rank, uint64_t parity) const {
  return base_ + geometry_.slots_offset + (2 * rank + static_cast<int64_t>(parity & 1)) * geometry_.slot_bytes;
}

int64_t Segment::channel_offset(int32_t from, int32_t to) const {
  const int64_t index = static_cast<int64_t>(from) * (geometry_.world - 1) + (to < from ? to : to - 1);
  return geometry_.channels_offset + index * (static_cast<int64_t>(sizeof(ChannelControl)) + geometry_.channel_bytes);
}

ChannelControl& Segment::channel(int32_t from, int32_t to) const {
  return at<ChannelControl>(channel_offset(from, to));
}

std::byte* Segment::ring(int32_t from, int32_t to) const {
  return base_ + channel_offset(from, to) + sizeof(ChannelControl);
}

}  // namespace concord::shm
