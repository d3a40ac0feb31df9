#include "backends/ascend/sim/runtime/sim.h"

#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/faults.h"
#include "backends/ascend/sim/runtime/machine.h"
#include "backends/ascend/sim/runtime/memory/memory.h"
#include "backends/ascend/sim/runtime/settings.h"
#include "backends/ascend/sim/runtime/work_observer.h"
#include "backends/ascend/sim/runtime/work_report.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

// What was passed to concord_sim_launch; freed with the last task that refers to it.
class Work {
 public:
  Work(int32_t (*to_run)(void*), void (*to_stop)(void*), void (*to_drop)(void*), void* state)
      : run_(to_run), stop_(to_stop), drop_(to_drop), state_(state) {}
  ~Work() {
    if (drop_ != nullptr) drop_(state_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void run(const char* name) const {
    take_message();  // clears the message of earlier work on this thread
    const int32_t code = run_(state_);
    if (code == 0) return;
    const std::string said = take_message();
    fail(code, text("%s failed on its stream%s%s", name, said.empty() ? "" : ": ", said.c_str()));
  }
  void stop() const { stop_(state_); }

 private:
  int32_t (*const run_)(void*);
  void (*const stop_)(void*);
  void (*const drop_)(void*);
  void* const state_;
};

}  // namespace

void* concord_sim_translate(const void* address) { return Memory::instance().translate(address); }

int32_t concord_sim_check_device_memory(const void* address, size_t bytes, const char* what) {
  if (bytes == 0) return kAclSuccess;
  const std::string wrong = Memory::instance().complaint(address, bytes);
  if (wrong.empty()) return kAclSuccess;
  set_message(text("%s: %s", what, wrong.c_str()));
  return kRtParamInvalid;
}

int32_t concord_sim_launch(void* stream, const char* name, int32_t (*run)(void*), void (*stop)(void*),
                           void (*drop)(void*), void* state) {
  const auto work = std::make_shared<Work>(run, stop, drop, state);  // first, so that the state is freed in any case
  return guarded_queueing(name, [&](const WorkFault& fault) {
    Task task{name, [work, name] { work->run(name); }, nullptr, fault};
    if (stop != nullptr) task.stop = [work] { work->stop(); };
    Machine::instance().stream(stream)->submit(std::move(task));
  });
}

void concord_sim_set_message(const char* text) { set_message(text == nullptr ? "" : text); }

int32_t concord_sim_device_of(void* stream) {
  int32_t device = -1;
  guarded("concord_sim_device_of", [&] { device = Machine::instance().any_stream(stream)->device(); });
  return device;
}

int32_t concord_sim_physical_device(int32_t device) {
  const std::vector<int32_t> visible = visible_devices();
  const auto index = static_cast<size_t>(device);
  return device < 0 || index >= visible.size() ? -1 : visible[index];
}

void concord_sim_count_work(const char* name, int64_t bytes_read, int64_t bytes_written) {
  concord_sim_count_operator(name, bytes_read, bytes_written, 0);
}

void concord_sim_count_operator(const char* name, int64_t bytes_read, int64_t bytes_written, double product_flops) {
  WorkReport::instance().count(name, bytes_read, bytes_written, product_flops);
  observe_work(name, bytes_read + bytes_written);
}

int64_t concord_sim_work_of(const char* name, int64_t* out_bytes_read, int64_t* out_bytes_written) {
  const WorkReport::Entry work = WorkReport::instance().work_of(name);
  if (out_bytes_read != nullptr) *out_bytes_read = work.read;
  if (out_bytes_written != nullptr) *out_bytes_written = work.written;
  return work.launches;
}

double concord_sim_product_flops_of(const char* name) { return WorkReport::instance().work_of(name).product_flops; }

int32_t concord_sim_count_call(const char* name) {
  return guarded(name, [] {});
}

int32_t concord_sim_charge(int32_t device, int64_t bytes) {
  return guarded("concord_sim_charge", [&] { Memory::instance().of_device(device).charge(bytes); }, Init::kNotNeeded);
}

int32_t concord_sim_set_faults(const char* rules) {
  return guarded(
      "concord_sim_set_faults", [&] { Faults::instance().set(rules == nullptr ? "" : rules); }, Init::kNotNeeded);
}

int64_t concord_sim_calls_of(const char* name) { return Faults::instance().calls_of(name); }
