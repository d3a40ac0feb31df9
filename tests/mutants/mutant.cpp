#include "tests/mutants/mutant.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace concord::mutants {
namespace {

struct Mutant {
  concord_host host;         // what the real plugin is opened with: ours, or one that loses sentences
  const concord_host* real;  // the host that opened us
  const concord_plugin* plugin;
  Tables original;
  Tables changed;
  concord_plugin root;
  std::string whole_defect;
};

Mutant& mutant() {
  static Mutant* instance = new Mutant();
  return *instance;
}

concord_status refuse(const std::string& sentence) {
  const concord_host* host = mutant().real;
  host->set_error_detail(host->self, sentence.c_str());
  return CONCORD_STATUS_UNAVAILABLE;
}

void lose_sentence(void*, const char*) {}

// Gives each failure the message of the previous one, which may be another thread's.
void share_message(void* self, const char* message) {
  static std::mutex mutex;
  static std::string before = "the sentence of an earlier failure";
  const std::lock_guard lock(mutex);
  mutant().real->set_error_detail(self, before.c_str());
  before = message != nullptr ? message : "";
}

template <class Table>
bool copy_table(const char* name, Table& out) {
  const concord_table_header* found = mutant().plugin->find_table(mutant().plugin->self, name);
  if (found == nullptr) return false;
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  std::memcpy(static_cast<void*>(&out), found, found->struct_size < sizeof out ? found->struct_size : sizeof out);
  out.header.struct_size = sizeof out;
  return true;
}

bool copy_tables(Tables& out) {
  return copy_table(CONCORD_CORE_TABLE, out.core) && copy_table(CONCORD_DEVICE_TABLE, out.device) &&
         copy_table(CONCORD_MEMORY_TABLE, out.memory) && copy_table(CONCORD_STREAM_TABLE, out.stream) &&
         copy_table(CONCORD_EVENT_TABLE, out.event) && copy_table(CONCORD_COMM_TABLE, out.comm) &&
         copy_table(CONCORD_RNG_TABLE, out.rng);
}

const concord_table_header* find_table(void*, const char* name) {
  Tables& tables = moves_tables() ? *new Tables(mutant().changed) : mutant().changed;
  const std::map<std::string, const concord_table_header*> known = {
      {CONCORD_CORE_TABLE, &tables.core.header},     {CONCORD_DEVICE_TABLE, &tables.device.header},
      {CONCORD_MEMORY_TABLE, &tables.memory.header}, {CONCORD_STREAM_TABLE, &tables.stream.header},
      {CONCORD_EVENT_TABLE, &tables.event.header},   {CONCORD_COMM_TABLE, &tables.comm.header},
      {CONCORD_RNG_TABLE, &tables.rng.header}};
  const auto found = known.find(name);
  return found != known.end() ? found->second : mutant().plugin->find_table(mutant().plugin->self, name);
}

concord_status apply_defect(const std::string& name) {
  for (auto* list : {core_defects, memory_defects, stream_defects, comm_defects, comm_order_defects, comm_fault_defects,
                     lenient_defects}) {
    for (const NamedDefect& defect : list()) {
      if (name != defect.name) continue;
      defect.apply(mutant().changed);
      return CONCORD_STATUS_OK;
    }
  }
  return refuse("there is no mutant called '" + name + "'");
}

concord_status open_base(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refuse(std::string("cannot open the plugin under the mutant: ") + dlerror());
  const auto open = reinterpret_cast<concord_plugin_open_function>(dlsym(library, CONCORD_PLUGIN_ENTRY));
  if (open == nullptr) return refuse(std::string(path) + " is no plugin");
  return open(&mutant().host, &mutant().plugin);
}

concord_status open_mutant(const concord_host* host, const concord_plugin** out_plugin) {
  Mutant& self = mutant();
  self.real = host;
  self.host = *host;
  const char* path = host->config(host->self, "mutant.base");
  const char* name = host->config(host->self, "mutant");
  if (path == nullptr) return refuse("mutant.base (CONCORD_MUTANT_BASE) does not say which plugin to change");
  const std::string defect = name != nullptr ? name : "";
  if (defect == "SentencesAreLost") self.host.set_error_detail = lose_sentence;
  if (defect == "SentencesAreShared") self.host.set_error_detail = share_message;
  const concord_status status = open_base(path);
  if (status != CONCORD_STATUS_OK) return status;
  if (!copy_tables(self.original)) return refuse("the plugin under the mutant lacks a table");
  self.changed = self.original;
  self.whole_defect = defect;
  if (!defect.empty()) {
    const concord_status applied = apply_defect(defect);
    if (applied != CONCORD_STATUS_OK) return applied;
  }
  self.root = *self.plugin;
  self.root.header.struct_size = sizeof(concord_plugin);
  self.root.find_table = find_table;
  *out_plugin = &self.root;
  return CONCORD_STATUS_OK;
}

}  // namespace

const Tables& base() { return mutant().original; }

bool moves_tables() { return mutant().whole_defect == "TablesMove"; }

int64_t element_size(concord_dtype dtype) {
  static constexpr int64_t sizes[] = {0, 4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
  return dtype >= 1 && dtype <= 10 ? sizes[dtype] : 0;
}

int32_t rank_of(concord_comm comm) {
  int32_t rank = 0;
  base().comm.rank(base().comm.self, comm, &rank);
  return rank;
}

int32_t size_of(concord_comm comm) {
  int32_t size = 1;
  base().comm.size(base().comm.self, comm, &size);
  return size;
}

concord_stream aside() {
  const concord_core_table& core = base().core;
  for (int64_t i = 0; i < core.capability_count; ++i) {
    const concord_capability& capability = core.capabilities[i];
    if (std::strcmp(capability.name, CONCORD_CAP_STREAM_NULL) == 0 && capability.value != 0) return nullptr;
  }
  static std::mutex mutex;
  static std::map<int32_t, concord_stream> streams;  // by device
  int32_t device = 0;
  base().device.get_current(base().device.self, &device);
  const std::lock_guard lock(mutex);
  concord_stream& stream = streams[device];
  if (stream == nullptr) base().stream.create(base().stream.self, device, 0, &stream);
  return stream;
}

void wait_for(concord_stream stream) { base().stream.synchronize(base().stream.self, stream); }

void lose_memory() {
  static void* volatile lost = nullptr;
  lost = std::malloc(64);
  if (lost == nullptr) std::abort();
}

Bytes read_device(const void* from, int64_t bytes) {
  Bytes result(static_cast<size_t>(bytes));
  base().memory.copy(base().memory.self, result.data(), from, bytes, CONCORD_COPY_DEVICE_TO_HOST);
  return result;
}

void write_device(void* to, const Bytes& bytes) {
  base().memory.copy(base().memory.self, to, bytes.data(), static_cast<int64_t>(bytes.size()),
                     CONCORD_COPY_HOST_TO_DEVICE);
}

Bytes gather(concord_comm comm, const void* send, int64_t count, concord_dtype dtype, concord_stream stream) {
  const int64_t bytes = count * element_size(dtype) * size_of(comm);
  int32_t device = 0;
  base().device.get_current(base().device.self, &device);
  void* all = nullptr;
  base().memory.allocate(base().memory.self, device, bytes, &all);
  base().comm.all_gather(base().comm.self, comm, send, all, count, dtype, stream);
  wait_for(stream);
  Bytes result = read_device(all, bytes);
  base().memory.release(base().memory.self, device, all);
  return result;
}

}  // namespace concord::mutants

extern "C" __attribute__((visibility("default"))) concord_status
concord_plugin_open(const concord_host* host, const concord_plugin** out_plugin) {
  *out_plugin = nullptr;
  return concord::mutants::open_mutant(host, out_plugin);
}
