#include "platform/conformance/resources.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

namespace concord::conformance {
namespace {

using std::chrono::milliseconds;

concord_stream make_stream(Context& t, int32_t priority) {
  concord_stream stream = nullptr;
  CHECK_OK(t.streams().create(t.streams().self, t.device(), priority, &stream));
  CHECK(stream != nullptr, "stream.create returned null");
  return stream;
}

concord_event make_event(Context& t, uint32_t flags) {
  concord_event event = nullptr;
  CHECK_OK(t.events().create(t.events().self, t.device(), flags, &event));
  CHECK(event != nullptr, "event.create returned null");
  return event;
}

concord_status destroy_stream(const Context& t, concord_stream stream) {
  return t.streams().destroy(t.streams().self, stream);
}
concord_status destroy_event(const Context& t, concord_event event) {
  return t.events().destroy(t.events().self, event);
}
concord_status destroy_comm(const Context& t, concord_comm comm) { return t.comms().destroy(t.comms().self, comm); }

}  // namespace

uint64_t digest(const Bytes& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

void record(Context& t, concord_event event, concord_stream stream) {
  CHECK_OK(t.events().record(t.events().self, event, stream));
}

Stream::Stream(Context& t, int32_t priority) : Owned(t, make_stream(t, priority), destroy_stream) {}

Event::Event(Context& t, uint32_t flags) : Owned(t, make_event(t, flags), destroy_event) {}

concord_comm_config comm_config(const char* name, int64_t timeout_ms) {
  concord_comm_config config{};
  config.struct_size = sizeof config;
  config.name = name;
  config.timeout_ms = timeout_ms;
  return config;
}

std::string shared_unique_id(Context& t) {
  int64_t bytes = 0;
  CHECK_OK(t.comms().unique_id_size(t.comms().self, &bytes));
  CHECK(bytes > 0 && bytes <= 1 << 20, "a unique id has %lld bytes", static_cast<long long>(bytes));
  std::string id(static_cast<size_t>(bytes), '\0');
  if (t.rank() == 0) CHECK_OK(t.comms().unique_id_create(t.comms().self, id.data(), bytes));
  return t.gather(t.rank() == 0 ? id : "")[0];
}

Comm Comm::connect(Context& t, int64_t timeout_ms, const char* name) {
  if (t.world() > t.device_count() && t.capability(CONCORD_CAP_COMM_SHARED_DEVICE) == 0) {
    t.skip_here(text("%d ranks need one device each, found %d, and ranks cannot share one: %s", t.world(),
                     t.device_count(), t.plugin().why_not(CONCORD_CAP_COMM_SHARED_DEVICE).c_str()));
  }
  const std::string id = shared_unique_id(t);
  const concord_comm_config config = comm_config(name, timeout_ms);
  concord_comm comm = nullptr;
  CHECK_OK(t.comms().init(t.comms().self, t.device(), t.world(), t.rank(), id.data(), static_cast<int64_t>(id.size()),
                          &config, &comm));
  CHECK(comm != nullptr, "comm.init returned null");
  return Comm(t, comm, destroy_comm);
}

Comm Comm::split(Context& t, concord_comm parent, const std::vector<int32_t>& ranks, int64_t timeout_ms) {
  const concord_comm_config config = comm_config("split", timeout_ms);
  concord_comm comm = nullptr;
  CHECK_OK(t.comms().split(t.comms().self, parent, ranks.data(), static_cast<int32_t>(ranks.size()), &config, &comm));
  CHECK((comm != nullptr) == !ranks.empty(), "comm.split returned %s to a rank that is %s member",
        comm != nullptr ? "a communicator" : "null", ranks.empty() ? "not a" : "a");
  return Comm(t, comm, destroy_comm);
}

DeviceMemory::DeviceMemory(Context& t, int64_t bytes, int32_t device) : t_(&t), device_(device), bytes_(bytes) {
  CHECK_OK(t.memory().allocate(t.memory().self, device, bytes, &pointer_));
  CHECK((pointer_ != nullptr) == (bytes > 0), "memory.allocate of %lld bytes returned %p",
        static_cast<long long>(bytes), pointer_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : t_(other.t_), device_(other.device_), bytes_(other.bytes_), pointer_(std::exchange(other.pointer_, nullptr)) {}

DeviceMemory::~DeviceMemory() {
  if (pointer_ != nullptr) t_->memory().release(t_->memory().self, device_, pointer_);
}

void DeviceMemory::write(const void* from, int64_t bytes, int64_t offset) {
  Context& t = *t_;
  CHECK_OK(t.memory().copy(t.memory().self, at(offset), from, bytes, CONCORD_COPY_HOST_TO_DEVICE));
}

Bytes DeviceMemory::read(int64_t bytes, int64_t offset) const {
  Context& t = *t_;
  Bytes result(static_cast<size_t>(bytes), 0xee);
  CHECK_OK(t.memory().copy(t.memory().self, result.data(), at(offset), bytes, CONCORD_COPY_DEVICE_TO_HOST));
  return result;
}

Guarded::Guarded(Context& t, int64_t bytes, int64_t shift)
    : t_(&t), memory_(t, bytes + shift + 2 * kGuard), bytes_(0), shift_(0), seed_(0) {
  static std::atomic<uint32_t> count{0};
  seed_ = ++count * 2654435761u;
  reset(bytes, shift);
}

uint8_t Guarded::guard_byte(int64_t index) const {
  return static_cast<uint8_t>((seed_ + static_cast<uint32_t>(index) * 0x9e3779b1u) >> 23);
}

void Guarded::reset(int64_t bytes, int64_t shift) {
  if (bytes + shift + 2 * kGuard > memory_.bytes()) t_->fail("the kit requested more guarded memory than it allocated");
  bytes_ = bytes;
  shift_ = shift;
  Bytes image(static_cast<size_t>(bytes + 2 * kGuard), kPoison);
  for (int64_t i = 0; i < kGuard; ++i) {
    image[static_cast<size_t>(i)] = guard_byte(i);
    image[static_cast<size_t>(kGuard + bytes + i)] = guard_byte(kGuard + i);
  }
  memory_.write(image.data(), static_cast<int64_t>(image.size()), shift);
}

void Guarded::write(const Bytes& from) {
  t_->require(static_cast<int64_t>(from.size()) == bytes_, "the kit writes a guarded buffer of another size");
  if (bytes_ > 0) memory_.write(from.data(), bytes_, kGuard + shift_);
}

Bytes Guarded::read(const char* what) const {
  const Bytes image = memory_.read(bytes_ + 2 * kGuard, shift_);
  for (int64_t i = 0; i < kGuard; ++i) {
    const bool before = image[static_cast<size_t>(i)] == guard_byte(i);
    const bool after = image[static_cast<size_t>(kGuard + bytes_ + i)] == guard_byte(kGuard + i);
    if (before && after) continue;
    t_->fail(text("bytes %s the %s buffer of %lld bytes were changed", before ? "after" : "before", what,
                  static_cast<long long>(bytes_)));
  }
  return Bytes(image.begin() + kGuard, image.begin() + kGuard + bytes_);
}

HostMemory::HostMemory(Context& t, int64_t bytes) : t_(t) {
  CHECK_OK(t.memory().allocate_host(t.memory().self, bytes, &pointer_));
  if (bytes > 0) std::memset(pointer_, 0, static_cast<size_t>(bytes));
}

HostMemory::~HostMemory() { t_.memory().release_host(t_.memory().self, pointer_); }

struct Gate::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = false;
  bool expired = false;

  void wait() {
    std::unique_lock lock(mutex);
    expired = !changed.wait_for(lock, patience() * 3 / 2, [&] { return is_open; });
    is_open = true;
  }
  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    changed.notify_all();
  }
  static void wait_and_drop(void* user) {
    const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(user));
    (*state)->wait();
  }
};

Gate::Gate(Context& t, concord_stream stream)
    : t_(t), holds_(t.capability(CONCORD_CAP_STREAM_HOST_FUNCTIONS) != 0), state_(std::make_shared<State>()) {
  if (holds_) {
    CHECK_OK(t.streams().launch_host(t.streams().self, stream, &State::wait_and_drop, new std::shared_ptr(state_)));
    return;
  }
  constexpr int64_t kBlock = int64_t{64} << 20;
  busy_.emplace_back(t, kBlock);
  busy_.emplace_back(t, kBlock);
  for (int i = 0; i < 64; ++i) {
    copy_async(t, busy_[0].get(), busy_[1].get(), kBlock, CONCORD_COPY_DEVICE_TO_DEVICE, stream);
  }
}

// What was queued after the gate still uses memory that the test is about to free.
Gate::~Gate() {
  state_->open();
  t_.device_table().synchronize(t_.device_table().self, t_.device());
}

void Gate::open() {
  require_closed("a call that must not wait");
  state_->open();
}

void Gate::open_later(int delay) {
  auto thread = new std::thread([state = state_, delay] {
    std::this_thread::sleep_for(milliseconds(delay));
    state->open();
  });
  openers_.emplace_back(thread, [](std::thread* opener) {
    opener->join();
    delete opener;
  });
}

void Gate::require_closed(const char* call) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->expired) t_.fail(text("%s waited for work that was held back", call));
}

// Many short sleeps rather than a long one: on a busy machine this thread gets the processor as late as the plugin's
// threads do, so that the time given to them grows with the load.
void linger() {
  for (int i = 0; i < 50; ++i) std::this_thread::sleep_for(milliseconds(1));
}

bool eventually(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + patience();
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

void fill(Context& t, void* destination, int value, int64_t bytes, concord_stream stream) {
  CHECK_OK(t.memory().fill_on_stream(t.memory().self, destination, value, bytes, stream));
}

void copy_async(Context& t, void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                concord_stream stream) {
  CHECK_OK(t.memory().copy_on_stream(t.memory().self, destination, source, bytes, kind, stream));
}

void synchronize(Context& t, concord_stream stream) { CHECK_OK(t.streams().synchronize(t.streams().self, stream)); }

bool is_done(Context& t, concord_stream stream) {
  int32_t done = -1;
  CHECK_OK(t.streams().query(t.streams().self, stream, &done));
  CHECK(done == 0 || done == 1, "stream.query returned %d", done);
  return done == 1;
}

bool all_are(const Bytes& bytes, uint8_t value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](uint8_t byte) { return byte == value; });
}

}  // namespace concord::conformance
