#include "trainer/python/device_binding.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/config_error.h"
#include "core/torch/device.h"
#include "trainer/python/gil.h"

namespace concord {
namespace {

namespace py = pybind11;

bool computes_on_host(const Device& device) { return torch_device(device.platform(), device.index()).is_cpu(); }

// Streams of this thread that `with stream` has made current on a platform that computes on the host.
std::vector<std::shared_ptr<PythonStream>>& entered_streams() {
  thread_local std::vector<std::shared_ptr<PythonStream>> streams;
  return streams;
}

// libtorch's name of the device type: cpu, cuda, npu.
std::string device_type() {
  const concord_core_table& core = current_platform().core();
  return core.torch_device_name != nullptr ? core.torch_device_name : core.torch_device_type;
}

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

// Bytes of tensors, and bytes that libtorch's allocator has from the device. The host has no such allocator: there
// both are the memory of the process.
struct MemoryUse {
  int64_t allocated = 0, max_allocated = 0, reserved = 0, max_reserved = 0;
};

MemoryUse memory_use(const Device& device) {
  const c10::Device torch = torch_device(device.platform(), device.index());
  if (torch.is_cpu()) {
    const int64_t now = status_bytes("VmRSS"), most = status_bytes("VmHWM");
    return {now, most, now, most};
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(torch.type());
  if (!allocator->initialized()) return {};  // by the first tensor
  const auto stats = allocator->getDeviceStats(torch.index());
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].current,
          stats.reserved_bytes[kAll].peak};
}

void reset_peak_memory_stats(const py::object& index) {
  const Device device = device_of(index);
  const c10::Device torch = torch_device(device.platform(), device.index());
  if (torch.is_cpu()) {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM (proc(5))
  } else {
    c10::getDeviceAllocator(torch.type())->resetPeakStats(torch.index());
  }
}

void empty_cache() {
  const Device device = Device::current(current_platform());
  if (computes_on_host(device)) {
    malloc_trim(0);
  } else {
    c10::getDeviceAllocator(torch_device(device.platform(), device.index()).type())->emptyCache();
  }
}

at::Generator generator_of(const Device& device) {
  return at::globalContext().defaultGenerator(torch_device(device.platform(), device.index()));
}

void seed(at::Generator generator, uint64_t value) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(value);
}

void manual_seed(uint64_t value) {
  seed(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)), value);
  const Platform platform = current_platform();
  for (int32_t i = 0; i < platform.device_count(); ++i) seed(generator_of({platform, i}), value);
}

void set_rng_state(const at::Tensor& state, const py::object& index) {
  at::Generator generator = generator_of(device_of(index));
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

at::Tensor rng_state(const py::object& index) {
  at::Generator generator = generator_of(device_of(index));
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void make_current(const py::object& index) {
  const Device device = device_of(index);
  device.make_current();
  const c10::Device torch = torch_device(device.platform(), device.index());
  if (!torch.is_cpu()) c10::impl::VirtualGuardImpl(torch.type()).setDevice(torch);
}

void synchronize(const py::object& index) {
  const Device device = device_of(index);
  const py::gil_scoped_release other_threads_run;
  flush_torch(device);
  device.synchronize();
}

// A function that a stream calls once. The reference to it is dropped with it.
struct HostCall {
  py::object function;

  static void run(void* user) {
    const py::gil_scoped_acquire gil;
    const std::unique_ptr<HostCall> call(static_cast<HostCall*>(user));
    try {
      call->function();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a function that concord.current_platform.Stream.launch_host has called");
    }
  }
};

void launch_host(const PythonStream& stream, const py::object& function) {
  if (PyCallable_Check(function.ptr()) == 0) {
    throw ConfigError(
        fmt::format("launch_host: {} is not a function without arguments", py::repr(function).cast<std::string>()));
  }
  auto call = std::make_unique<HostCall>(HostCall{function});
  const Stream native = stream.stream();
  if (native.native() == nullptr && computes_on_host(stream.device())) return HostCall::run(call.release());
  const py::gil_scoped_release other_threads_run;
  native.launch_host(HostCall::run, call.get());
  call.release();
}

// An event with torch's methods. Waits release the GIL.
class PythonEvent {
 public:
  explicit PythonEvent(bool timing)
      : event_(Device::current(current_platform()), timing ? Timing::kOn : Timing::kOff), timing_(timing) {}

  void record(const py::object& stream) { event_.record(stream_or_current(stream)->stream()); }
  void wait(const py::object& stream) const { event_.make_wait(stream_or_current(stream)->stream()); }
  bool query() const { return event_.done(); }
  void synchronize() const {
    const py::gil_scoped_release other_threads_run;
    event_.synchronize();
  }
  double elapsed_time(const PythonEvent& end) const {
    if (!timing_ || !end.timing_) {
      throw ConfigError("elapsed_time: both events must be made with Event(enable_timing=True)");
    }
    return Event::milliseconds_between(event_, end.event_);
  }
  const Event& event() const { return event_; }

 private:
  Event event_;
  bool timing_;
};

void bind_streams(py::module_& module) {
  py::class_<PythonEvent, std::shared_ptr<PythonEvent>>(module, "Event")
      .def(py::init<bool>(), py::arg("enable_timing") = false)
      .def("record", &PythonEvent::record, py::arg("stream") = py::none())
      .def("wait", &PythonEvent::wait, py::arg("stream") = py::none())
      .def("query", &PythonEvent::query)
      .def("synchronize", &PythonEvent::synchronize)
      .def("elapsed_time", &PythonEvent::elapsed_time, py::arg("end_event"));
  py::class_<PythonStream, std::shared_ptr<PythonStream>>(module, "Stream")
      .def(py::init([](const py::object& device, int32_t priority) {
             return std::make_shared<PythonStream>(device_of(device), priority);
           }),
           py::arg("device") = py::none(), py::arg("priority") = 0)
      .def("synchronize",
           [](const PythonStream& self) {
             const Stream stream = self.stream();
             const py::gil_scoped_release other_threads_run;
             stream.synchronize();
           })
      .def("query", [](const PythonStream& self) { return self.stream().done(); })
      .def(
          "wait_event",
          [](const PythonStream& self, const PythonEvent& event) { event.event().make_wait(self.stream()); },
          py::arg("event"))
      .def(
          "wait_stream",
          [](const PythonStream& self, const PythonStream& other) {
            const Event done(other.device());
            done.record(other.stream());
            done.make_wait(self.stream());
          },
          py::arg("stream"))
      .def(
          "record_event",
          [](const std::shared_ptr<PythonStream>& self, std::shared_ptr<PythonEvent> event) {
            if (event == nullptr) event = std::make_shared<PythonEvent>(false);
            event->record(py::cast(self));
            return event;
          },
          py::arg("event") = py::none())
      .def("launch_host", &launch_host, py::arg("function"))
      .def_property_readonly(
          "native_handle", [](const PythonStream& self) { return reinterpret_cast<uintptr_t>(self.stream().native()); })
      .def_property_readonly(
          "device",
          [](const PythonStream& self) { return torch_device(self.device().platform(), self.device().index()); })
      .def("__enter__",
           [](const std::shared_ptr<PythonStream>& self) {
             self->enter();
             return self;
           })
      .def("__exit__", [](PythonStream& self, const py::args&) { self.leave(); });
}

py::dict capabilities() {
  py::dict result;
  for (const concord_capability& each : current_platform().capabilities()) result[each.name] = each.value;
  return result;
}

struct PythonPlatform {};  // a name for the functions: the platform is a property of the process

template <auto member>
int64_t memory(const PythonPlatform&, const py::object& device) {
  return memory_use(device_of(device)).*member;
}

void bind_memory(py::class_<PythonPlatform>& type) {
  const py::arg_v device = py::arg("device") = py::none();
  type.def("memory_allocated", &memory<&MemoryUse::allocated>, device)
      .def("max_memory_allocated", &memory<&MemoryUse::max_allocated>, device)
      .def("memory_reserved", &memory<&MemoryUse::reserved>, device)
      .def("max_memory_reserved", &memory<&MemoryUse::max_reserved>, device)
      .def(
          "reset_peak_memory_stats", [](const PythonPlatform&, const py::object& of) { reset_peak_memory_stats(of); },
          device)
      .def(
          "mem_get_info",
          [](const PythonPlatform&, const py::object& of) {
            const MemoryInfo memory = device_of(of).memory();
            return std::make_pair(memory.free_bytes, memory.total_bytes);
          },
          device)
      .def("empty_cache", [](const PythonPlatform&) { empty_cache(); });
}

void bind_random(py::class_<PythonPlatform>& type) {
  const py::arg_v device = py::arg("device") = py::none();
  type.def(
          "manual_seed", [](const PythonPlatform&, uint64_t value) { manual_seed(value); }, py::arg("seed"))
      .def(
          "manual_seed_all", [](const PythonPlatform&, uint64_t value) { manual_seed(value); }, py::arg("seed"))
      .def("initial_seed",
           [](const PythonPlatform&) { return generator_of(Device::current(current_platform())).current_seed(); })
      .def(
          "get_rng_state", [](const PythonPlatform&, const py::object& of) { return rng_state(of); }, device)
      .def(
          "set_rng_state",
          [](const PythonPlatform&, const at::Tensor& state, const py::object& of) { set_rng_state(state, of); },
          py::arg("new_state"), device);
}

void bind_devices(py::class_<PythonPlatform>& type) {
  const py::arg_v device = py::arg("device") = py::none();
  type.def("device_count", [](const PythonPlatform&) { return current_platform().device_count(); })
      .def("is_available", [](const PythonPlatform&) { return current_platform().device_count() > 0; })
      .def("current_device", [](const PythonPlatform&) { return Device::current(current_platform()).index(); })
      .def(
          "set_device", [](const PythonPlatform&, const py::object& of) { make_current(of); }, py::arg("device"))
      .def(
          "synchronize", [](const PythonPlatform&, const py::object& of) { synchronize(of); }, device)
      .def(
          "get_device_name",
          [](const PythonPlatform&, const py::object& of) { return std::string(device_of(of).info().name); }, device)
      .def(
          "torch_device",
          [](const PythonPlatform&, const py::object& of) {
            const Device found = device_of(of);
            return torch_device(found.platform(), found.index());
          },
          device)
      .def(
          "current_stream",
          [](const PythonPlatform&, const py::object& of) { return PythonStream::current(device_of(of)); }, device)
      .def(
          "stream", [](const PythonPlatform&, std::shared_ptr<PythonStream> given) { return given; },
          py::arg("stream"));
}

void bind_identity(py::class_<PythonPlatform>& type) {
  const auto text = [&](const char* name, std::string (*value)(const Platform&)) {
    type.def_property_readonly(name, [value](const PythonPlatform&) { return value(current_platform()); });
  };
  text("name", [](const Platform& platform) { return std::string(platform.name()); });
  text("vendor", [](const Platform& platform) { return std::string(platform.vendor()); });
  text("version", [](const Platform& platform) { return std::string(platform.version()); });
  text("label", [](const Platform& platform) { return std::string(platform.label()); });
  text("path", [](const Platform& platform) { return platform.path(); });
  text("device_type", [](const Platform&) { return device_type(); });
  text("dispatch_key", [](const Platform& platform) {
    const c10::Device device(platform.core().torch_device_type);
    return std::string(c10::toString(c10::computeDispatchKey(std::nullopt, std::nullopt, device)));
  });
  text("device_control_env_var", [](const Platform& platform) {
    const char* const name = platform.core().visible_devices_variable;
    return std::string(name != nullptr ? name : "");
  });
  // The backend of torch.distributed; Concord's own groups do not use it.
  type.def_property_readonly("communication_backend", [](const PythonPlatform&) {
    torch_device(current_platform(), 0);  // torch_npu registers its backend when it is loaded
    return py::module_::import("torch.distributed").attr("get_default_backend_for_device")(device_type());
  });
  type.def("is_cuda", [](const PythonPlatform&) { return device_type() == "cuda"; })
      .def("is_npu", [](const PythonPlatform&) { return device_type() == "npu"; })
      .def("is_cpu", [](const PythonPlatform&) { return device_type() == "cpu"; })
      .def("capabilities", [](const PythonPlatform&) { return capabilities(); })
      .def("__repr__", [](const PythonPlatform&) {
        const Platform platform = current_platform();
        return fmt::format("<concord platform {} {}, {} devices>", platform.name(), platform.version(),
                           platform.device_count());
      });
}

}  // namespace

struct PythonStream::Native {
  std::optional<Stream> own;         // of the plugin
  std::optional<c10::Stream> torch;  // or of libtorch; neither: the plugin's default stream
  std::vector<c10::Stream> before = {};

  // The plugin waits for queued work, which may be a function that needs the GIL.
  ~Native() {
    if (own) without_gil([&] { own.reset(); });
  }
};

PythonStream::PythonStream(Device device, std::unique_ptr<Native> native)
    : device_(device), native_(std::move(native)) {}

PythonStream::PythonStream(Device device, int32_t priority) : device_(device), native_(std::make_shared<Native>()) {
  const c10::Device torch = torch_device(device.platform(), device.index());
  if (torch.is_cpu()) {
    native_->own.emplace(device, priority);
  } else {
    native_->torch = c10::impl::VirtualGuardImpl(torch.type()).getNewStream(torch, priority);
  }
}

std::shared_ptr<PythonStream> PythonStream::current(const Device& device) {
  const c10::Device torch = torch_device(device.platform(), device.index());
  auto native = std::make_unique<Native>();
  if (!torch.is_cpu()) {
    native->torch = c10::impl::VirtualGuardImpl(torch.type()).getStream(torch);
  } else if (!entered_streams().empty() && entered_streams().back()->device() == device) {
    return entered_streams().back();
  }
  return std::shared_ptr<PythonStream>(new PythonStream(device, std::move(native)));
}

Stream PythonStream::stream() const {
  if (native_->own) return Stream::borrow(device_, native_->own->native());
  if (!native_->torch) return Stream::of_device(device_);
  return Stream::borrow(device_, static_cast<concord_stream>(native_->torch->native_handle()));
}

void PythonStream::keep(const at::Tensor& tensor) const {
  if (native_->torch) {
    const c10::impl::VirtualGuardImpl guard(native_->torch->device_type());
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(), *native_->torch);
  } else if (native_->own) {
    native_->own->launch_host([](void* kept) { delete static_cast<at::Tensor*>(kept); }, new at::Tensor(tensor));
  }
}

void PythonStream::enter() {
  if (!native_->torch) {
    entered_streams().push_back(std::shared_ptr<PythonStream>(new PythonStream(*this)));
    return;
  }
  native_->before.push_back(c10::impl::VirtualGuardImpl(native_->torch->device_type()).exchangeStream(*native_->torch));
}

void PythonStream::leave() {
  if (!native_->torch) {
    if (!entered_streams().empty()) entered_streams().pop_back();
    return;
  }
  if (native_->before.empty()) return;
  c10::impl::VirtualGuardImpl(native_->torch->device_type()).exchangeStream(native_->before.back());
  native_->before.pop_back();
}

std::shared_ptr<PythonStream> stream_or_current(const py::object& stream) {
  if (stream.is_none()) return PythonStream::current(Device::current(current_platform()));
  return stream.cast<std::shared_ptr<PythonStream>>();
}

Device device_of(const py::object& index) {
  const Platform platform = current_platform();
  if (index.is_none()) return Device::current(platform);
  int64_t wanted = 0;
  if (py::isinstance<py::int_>(index)) {
    wanted = index.cast<int64_t>();
  } else {
    const auto device = py::module_::import("torch").attr("device")(index).cast<c10::Device>();
    const c10::DeviceType own = torch_device(platform, 0).type();
    if (device.type() != own) {
      throw ConfigError(fmt::format("device {} is not of platform {}, whose devices are {}:0 to {}:{}", device.str(),
                                    platform.name(), device_type(), device_type(), platform.device_count() - 1));
    }
    if (!device.has_index()) return Device::current(platform);
    wanted = device.index();
  }
  if (wanted < 0 || wanted >= platform.device_count()) {
    throw ConfigError(fmt::format("device {} does not exist; platform {} has {}, numbered from 0", wanted,
                                  platform.name(), platform.device_count()));
  }
  return {platform, static_cast<int32_t>(wanted)};
}

void require_on_device(const char* call, const at::Tensor& tensor, const Device& device) {
  const c10::Device wanted = torch_device(device.platform(), device.index());
  if (tensor.device() != wanted) {
    throw ConfigError(fmt::format("{}: the tensor is on {}; must be on {}", call, tensor.device().str(), wanted.str()));
  }
  if (!tensor.is_contiguous()) throw ConfigError(fmt::format("{}: the tensor is not contiguous", call));
}

void bind_platform(py::module_& module) {
  bind_streams(module);
  py::class_<PythonPlatform> type(module, "Platform");
  bind_identity(type);
  bind_devices(type);
  bind_memory(type);
  bind_random(type);
  for (const char* name : {"Stream", "Event"}) type.attr(name) = module.attr(name);
  module.attr("current_platform") = PythonPlatform{};
}

}  // namespace concord
