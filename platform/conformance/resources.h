// Objects of the plugin that tests create, freed when they leave scope: streams, events, communicators, memory with
// guard bytes around it, and a gate that holds a stream back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/conformance/context.h"

namespace concord::conformance {

using Bytes = std::vector<uint8_t>;

uint64_t digest(const Bytes& bytes);  // FNV-1a

void record(Context& t, concord_event event, concord_stream stream);

// A handle and how to destroy it. The destructor ignores failures: a test that cares destroys by destroy().
template <class Handle>
class Owned {
 public:
  using Destroy = concord_status (*)(const Context&, Handle);
  Owned(Context& t, Handle handle, Destroy how) : t_(&t), handle_(handle), destroy_(how) {}
  Owned(Owned&& other) noexcept
      : t_(other.t_), handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (handle_ != nullptr) destroy_(*t_, handle_);
  }

  Handle get() const { return handle_; }
  concord_status destroy() { return destroy_(*t_, std::exchange(handle_, nullptr)); }
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Context* t_;
  Handle handle_;
  Destroy destroy_;
};

class Stream : public Owned<concord_stream> {
 public:
  explicit Stream(Context& t, int32_t priority = 0);
};

class Event : public Owned<concord_event> {
 public:
  explicit Event(Context& t, uint32_t flags = 0);
};

class Comm : public Owned<concord_comm> {
 public:
  // All ranks of the test. Skips if the ranks do not fit the devices.
  static Comm connect(Context& t, int64_t timeout_ms = 0, const char* name = "conformance");
  // The members of |ranks|; must be called by every rank of |parent|. Null inside for the others.
  static Comm split(Context& t, concord_comm parent, const std::vector<int32_t>& ranks, int64_t timeout_ms = 0);

 private:
  using Owned<concord_comm>::Owned;
};

// A unique id created on rank 0 and sent to all ranks outside the plugin.
std::string shared_unique_id(Context& t);
concord_comm_config comm_config(const char* name, int64_t timeout_ms);

// Device memory of |bytes|, from allocate.
class DeviceMemory {
 public:
  DeviceMemory(Context& t, int64_t bytes) : DeviceMemory(t, bytes, t.device()) {}
  DeviceMemory(Context& t, int64_t bytes, int32_t device);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory();

  void* get() const { return pointer_; }
  uint8_t* at(int64_t offset) const { return static_cast<uint8_t*>(pointer_) + offset; }
  int64_t bytes() const { return bytes_; }
  void write(const void* from, int64_t bytes, int64_t offset = 0);  // and waits
  void write(const Bytes& from) { write(from.data(), static_cast<int64_t>(from.size())); }
  Bytes read(int64_t bytes, int64_t offset = 0) const;  // and waits
  Bytes read() const { return read(bytes_); }

 private:
  Context* t_;
  int32_t device_;
  int64_t bytes_;
  void* pointer_ = nullptr;
};

// |bytes| of device memory between guard bytes, |shift| bytes off the allocation's alignment. The guard bytes differ
// from buffer to buffer and from place to place, so that copying one over another is detected.
class Guarded {
 public:
  static constexpr int64_t kGuard = 256;
  static constexpr uint8_t kPoison = 0x5c;

  Guarded(Context& t, int64_t bytes, int64_t shift = 0);
  // As a fresh one of that size, in the same allocation, which has to be large enough.
  void reset(int64_t bytes, int64_t shift = 0);

  uint8_t* get() const { return memory_.at(kGuard + shift_); }
  int64_t bytes() const { return bytes_; }
  void write(const Bytes& from);       // all bytes, from.size() == bytes()
  Bytes read(const char* what) const;  // all bytes; Failed if a guard byte was changed

 private:
  uint8_t guard_byte(int64_t index) const;

  Context* t_;
  DeviceMemory memory_;
  int64_t bytes_;
  int64_t shift_;
  uint32_t seed_;
};

// Pinned host memory, zeroed.
class HostMemory {
 public:
  HostMemory(Context& t, int64_t bytes);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();
  uint8_t* get() const { return static_cast<uint8_t*>(pointer_); }

 private:
  Context& t_;
  void* pointer_ = nullptr;
};

// Holds a stream back until open(). With stream.host_functions it is a host function that waits, and nothing after it
// can have run before open(): holds() is then true. Otherwise it is a long series of copies: a delay, which cannot be
// opened. Only one gate may be closed at a time (a vendor may run all host functions on one thread), and nothing that
// allocates or loads a kernel for the first time may be called while it is (a vendor may wait for the device there):
// warm up first. A gate opens itself after a long time, so that a call that wrongly waits for the stream is a failure
// and not a hang.
class Gate {
 public:
  Gate(Context& t, concord_stream stream);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();

  bool holds() const { return holds_; }
  void open();                        // Failed if it had opened itself
  void open_later(int milliseconds);  // by another thread
  // Failed if the gate opened itself, because |call| waited for the stream though it must not.
  void require_closed(const char* call) const;

 private:
  struct State;
  Context& t_;
  bool holds_;
  std::shared_ptr<State> state_;
  std::vector<DeviceMemory> busy_;
  std::vector<std::shared_ptr<void>> openers_;
};

// Gives a plugin that runs work too early the time to do so. No verdict depends on it if the plugin is correct.
void linger();

// Waits until |done|() is true; false if it did not become so in a long time.
bool eventually(const std::function<bool()>& done);

void fill(Context& t, void* destination, int value, int64_t bytes, concord_stream stream);
void copy_async(Context& t, void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                concord_stream stream);
void synchronize(Context& t, concord_stream stream);
bool is_done(Context& t, concord_stream stream);
bool all_are(const Bytes& bytes, uint8_t value);

}  // namespace concord::conformance
