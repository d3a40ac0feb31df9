#include "platform/bridge/bridge.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "platform/base/thread_safety.hpp"
#include "platform/bridge/host_work.h"
#include "platform/bridge/staged_table.h"
#include "platform/loader/host.h"
#include "platform/loader/negotiate.h"
#include "platform/loader/text.h"
#include "platform/sdk/checks.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::bridge {
namespace {

// The memory of one device, which is number 0 here.
class Memory {
 public:
  Memory(Device device, Platform host) : device_(device), host_(host) {}

  void* allocate(int32_t device, int64_t bytes) {
    check(device);
    void* pointer = nullptr;
    forward<&concord_memory_table::allocate>(device_.index(), bytes, &pointer);
    return pointer;
  }
  void release(int32_t device, void* pointer) {
    check(device);
    forward<&concord_memory_table::release>(device_.index(), pointer);
  }
  void* allocate_host(int64_t bytes) {
    void* pointer = nullptr;
    forward<&concord_memory_table::allocate_host>(bytes, &pointer);
    return pointer;
  }
  void release_host(void* pointer) { forward<&concord_memory_table::release_host>(pointer); }
  void copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind) {
    forward<&concord_memory_table::copy>(destination, source, bytes, kind);
  }
  void copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                      concord_stream stream) {
    sdk::check_copy(destination, source, bytes, kind);
    enqueue(stream, [device = device_, destination, source, bytes, kind] {
      concord::copy(device.platform(), destination, source, bytes, static_cast<CopyKind>(kind));
    });
  }
  void fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream stream) {
    sdk::check_fill(destination, bytes);
    enqueue(stream, [device = device_, destination, value, bytes] {
      const Stream filling(device);
      fill(filling, destination, value, bytes);
      filling.synchronize();
    });
  }
  void info(int32_t device, int64_t* out_free, int64_t* out_total) {
    check(device);
    forward<&concord_memory_table::info>(device_.index(), out_free, out_total);
  }
  void describe_pointer(const void* pointer, concord_pointer_info* out_info) {
    forward<&concord_memory_table::describe_pointer>(pointer, out_info);
  }

 private:
  // On the stream's thread, which waits for it. If it fails, so does the operation that it is for.
  void enqueue(concord_stream stream, std::function<void()> work) const {
    translated([&] {
      launch(Stream::borrow(Device(host_, 0), stream), [device = device_, work = std::move(work)] {
        try {
          device.make_current();
          work();
        } catch (const Error& error) {
          loader::log(CONCORD_LOG_ERROR, "bridge", error.what());
        }
      });
    });
  }
  static void check(int32_t device) { sdk::check_device(device, 1); }
  template <auto Slot, class... Arguments>
  void forward(Arguments... arguments) const {
    translated([&] { device_.platform().call<Slot>(arguments...); });
  }

  const Device device_;
  const Platform host_;
};

class Plugin : public sdk::Plugin {
 public:
  Plugin(const Device& device, const Platform& host)
      : name_(loader::cat("bridge_", device.platform().name())),
        label_(device.platform().label()),
        memory_(device, host),
        communicators_(device, host) {
    describe(device.platform(), host);
    add(CONCORD_CORE_TABLE, core(device.platform(), host));
    add(CONCORD_DEVICE_TABLE, host.tables().device);
    add(CONCORD_MEMORY_TABLE, sdk::memory_table(&memory_));
    add(CONCORD_STREAM_TABLE, host.tables().stream);
    add(CONCORD_EVENT_TABLE, host.tables().event);
    add(CONCORD_COMM_TABLE, sdk::comm_table(&communicators_));
    add(CONCORD_RNG_TABLE, device.platform().tables().rng);
  }

 private:
  // What the host platform's streams and communicators can do, and what the device's memory can.
  void describe(const Platform& device, const Platform& host) {
    for (const concord_capability& known : host.capabilities()) {
      const std::string_view name = known.name;
      if (!name.starts_with("torch.") && !name.starts_with("memory.")) capabilities_.push_back(known);
    }
    const auto set = [this](const char* name, int64_t value, const char* note) {
      std::erase_if(capabilities_,
                    [&](const concord_capability& known) { return std::string_view(known.name) == name; });
      capabilities_.push_back({name, value, note});
    };
    const char* const kOwn = "the bridge has only what operations between ranks need";
    set(CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, device.capability(CONCORD_CAP_MEMORY_HOST_ACCESSIBLE), "as the device");
    set(CONCORD_CAP_MEMORY_STREAM_ORDERED, 0, kOwn);
    set(CONCORD_CAP_MEMORY_PEER_COPY, 0, kOwn);
    set(CONCORD_CAP_STREAM_HOST_IS_CURRENT, 0, "the device's libtorch computes elsewhere");
  }

  concord_core_table core(const Platform& device, const Platform& host) {
    auto table = sdk::new_table<concord_core_table>(this);
    table.name = name_.c_str();
    table.version = host.core().version;
    table.vendor = device.core().vendor;
    table.label = label_.c_str();
    table.priority = -1;
    table.capabilities = capabilities_.data();
    table.capability_count = static_cast<int64_t>(capabilities_.size());
    table.torch_device_type = device.core().torch_device_type;
    return table;
  }

  const std::string name_;
  const std::string label_;
  std::vector<concord_capability> capabilities_;
  Memory memory_;
  StagedTable communicators_;
};

// The host platform without layers: validate forbids host functions to call their platform, but the bridge's ask for
// failures and abort, which any thread may do there at any time.
Platform host_platform() {
  static const auto* plain = [] {
    auto* plugin = new loader::Plugin(loader::open_plugin(kHostPlatform));
    plugin->tables = plugin->unwrapped;
    return plugin;
  }();
  return Platform(*plain);
}

const loader::Plugin* make(const Device& device) {
  const Platform host = host_platform();
  auto* root = new Plugin(device, host);  // like all plugins, it lives until the process ends
  const loader::Negotiated negotiated = loader::negotiate(root->root());
  return new loader::Plugin{negotiated.tables.core.name, std::string(device.platform().path()),
                            negotiated.version,          negotiated.tables,
                            negotiated.tables,           root->root()};
}

}  // namespace

const loader::Plugin& open_bridge(const Device& device) {
  static std::mutex mutex;
  static auto* bridges = new std::map<std::pair<std::string, int32_t>, const loader::Plugin*>();
  const std::lock_guard lock(mutex);
  if (sdk::host_slot() == nullptr) sdk::host_slot() = loader::make_host("bridge");
  const loader::Plugin*& bridge = (*bridges)[{device.platform().path(), device.index()}];
  if (bridge == nullptr) bridge = make(device);
  return *bridge;
}

Device bridge_device(const Device& device) { return {Platform(open_bridge(device)), 0}; }

}  // namespace concord::bridge
