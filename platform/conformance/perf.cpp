#include "platform/conformance/perf.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "platform/conformance/collectives.h"
#include "platform/conformance/json.h"

namespace concord::conformance {
namespace {

constexpr const char* kPrefix = "perf ";

// nccl-tests' factor from the algorithm's bandwidth to that of the wires.
double bus_factor(concord_comm_op operation, int world) {
  const double n = world;
  switch (operation) {
    case CONCORD_COMM_ALL_REDUCE: return 2 * (n - 1) / n;
    case CONCORD_COMM_ALL_GATHER:
    case CONCORD_COMM_REDUCE_SCATTER:
    case CONCORD_COMM_ALL_TO_ALL: return (n - 1) / n;
    default: return 1;
  }
}

// Elements that a call is given, where |bytes| is the size nccl-tests would print.
int64_t count_of(concord_comm_op operation, int64_t bytes, int world) {
  const bool spread = operation == CONCORD_COMM_ALL_GATHER || operation == CONCORD_COMM_REDUCE_SCATTER ||
                      operation == CONCORD_COMM_ALL_TO_ALL;
  return std::max<int64_t>(bytes / 4 / (spread ? world : 1), 1);
}

// One operation on f32 data, repeated.
class Meter {
 public:
  Meter(Context& t, concord_comm_op operation, int64_t bytes, bool in_place)
      : t_(t),
        operation_(operation),
        count_(count_of(operation, bytes, t.world())),
        send_(t, bytes + 64 * t.world()),
        recv_(t, bytes + 64 * t.world()),
        source_(in_place ? recv_.get() : send_.get()),
        in_place_(in_place) {}

  double microseconds() {
    t_.world_comm();
    run(3);
    const double estimate = std::atof(t_.gather(std::to_string(run(3)))[0].c_str());
    const int calls = static_cast<int>(std::clamp(60000 / std::max(estimate, 1.0), 5.0, 5000.0));
    double best = run(calls);
    for (int i = 0; i < 2; ++i) best = std::min(best, run(calls));
    return best;
  }

 private:
  double run(int calls) {
    Context& t = t_;
    CHECK_OK(t.comms().barrier(t.comms().self, t.world_comm(), t.stream()));
    synchronize(t, t.stream());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) CHECK_OK(call());
    synchronize(t, t.stream());
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / calls;
  }

  concord_status call() {
    const concord_comm_table& c = t_.comms();
    constexpr concord_dtype kType = CONCORD_DTYPE_F32;
    constexpr concord_reduce_op kSum = CONCORD_REDUCE_SUM;
    const concord_comm comm = t_.world_comm();
    uint8_t* piece = recv_.at(in_place_ ? t_.rank() * count_ * 4 : 0);
    switch (operation_) {
      case CONCORD_COMM_ALL_REDUCE:
        return c.all_reduce(c.self, comm, source_, recv_.get(), count_, kType, kSum, t_.stream());
      case CONCORD_COMM_REDUCE:
        return c.reduce(c.self, comm, source_, recv_.get(), count_, kType, kSum, 0, t_.stream());
      case CONCORD_COMM_BROADCAST:
        return c.broadcast(c.self, comm, source_, recv_.get(), count_, kType, 0, t_.stream());
      case CONCORD_COMM_ALL_GATHER:
        return c.all_gather(c.self, comm, in_place_ ? piece : send_.get(), recv_.get(), count_, kType, t_.stream());
      case CONCORD_COMM_REDUCE_SCATTER:
        return c.reduce_scatter(c.self, comm, source_, piece, count_, kType, kSum, t_.stream());
      case CONCORD_COMM_ALL_TO_ALL:
        return c.all_to_all(c.self, comm, send_.get(), recv_.get(), count_, kType, t_.stream());
      default: return exchange();
    }
  }

  concord_status exchange() {
    const concord_comm_table& c = t_.comms();
    const int world = t_.world();
    const concord_p2p_item items[] = {
        {CONCORD_P2P_SEND, (t_.rank() + 1) % world, send_.get(), count_, CONCORD_DTYPE_F32, 0},
        {CONCORD_P2P_RECV, (t_.rank() + world - 1) % world, recv_.get(), count_, CONCORD_DTYPE_F32, 0}};
    return c.batch_p2p(c.self, t_.world_comm(), items, 2, t_.stream());
  }

  Context& t_;
  concord_comm_op operation_;
  int64_t count_;
  DeviceMemory send_;
  DeviceMemory recv_;
  void* source_;
  bool in_place_;
};

struct Row {
  concord_comm_op operation;
  int64_t bytes;
  double out_of_place;  // microseconds; negative if it was not measured
  double in_place;
};

double measure(Gang& gang, concord_comm_op operation, int64_t bytes, bool in_place) {
  if (in_place && !(can_be_in_place(operation) && operation != CONCORD_COMM_P2P)) return -1;
  const std::string job = text("%s%d %lld %d", kPrefix, operation, static_cast<long long>(bytes), in_place ? 1 : 0);
  const TestResult result = gang.run(job, 120);
  if (result.status != Status::kPass) throw std::runtime_error(result.reason);
  return result.share;
}

std::string columns(const Row& row, double time, int world) {
  if (time < 0) return text("%10s %8s %8s", "-", "-", "-");
  const double bandwidth = static_cast<double>(row.bytes) / time / 1e3;
  return text("%10.2f %8.2f %8.2f", time, bandwidth, bandwidth * bus_factor(row.operation, world));
}

Json row_json(const Row& row, int world) {
  Json json = Json::object();
  json.set("operation", name_of_operation(row.operation));
  json.set("bytes", static_cast<double>(row.bytes));
  const auto add = [&](const std::string& where, double time) {
    if (time < 0) return;
    const double bandwidth = static_cast<double>(row.bytes) / time / 1e3;
    json.set(where + "_us", time);
    json.set(where + "_algbw_gb_per_s", bandwidth);
    json.set(where + "_busbw_gb_per_s", bandwidth * bus_factor(row.operation, world));
  };
  add("out_of_place", row.out_of_place);
  add("in_place", row.in_place);
  return json;
}

std::vector<Row> measure_all(const Options& options, Gang& gang) {
  const std::regex filter(options.filter);
  std::vector<Row> rows;
  for (const concord_comm_op operation :
       {CONCORD_COMM_ALL_REDUCE, CONCORD_COMM_ALL_GATHER, CONCORD_COMM_REDUCE_SCATTER, CONCORD_COMM_BROADCAST,
        CONCORD_COMM_REDUCE, CONCORD_COMM_ALL_TO_ALL, CONCORD_COMM_P2P}) {
    if (!std::regex_search(name_of_operation(operation), filter)) continue;
    if (operation == CONCORD_COMM_P2P && gang.world() == 1) continue;
    if (!options.json) {
      std::printf("# %s, f32, %d ranks\n#%11s %10s %10s %8s %8s  %10s %8s %8s\n#%11s %10s %10s %8s %8s  %10s %8s %8s\n",
                  name_of_operation(operation), gang.world(), "", "", "", "out-of-pl.", "", "", "in-place", "", "size",
                  "count", "time", "algbw", "busbw", "time", "algbw", "busbw");
      std::printf("#%11s %10s %10s %8s %8s  %10s %8s %8s\n", "(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)", "(us)",
                  "(GB/s)", "(GB/s)");
    }
    for (int64_t bytes = 8; bytes <= options.perf_max_bytes; bytes *= 4) {
      const Row row{operation, bytes, measure(gang, operation, bytes, false), measure(gang, operation, bytes, true)};
      rows.push_back(row);
      if (options.json) continue;
      std::printf("%12lld %10lld %s  %s\n", static_cast<long long>(bytes),
                  static_cast<long long>(count_of(operation, bytes, gang.world())),
                  columns(row, row.out_of_place, gang.world()).c_str(),
                  columns(row, row.in_place, gang.world()).c_str());
      std::fflush(stdout);
    }
  }
  return rows;
}

}  // namespace

bool is_perf_job(const std::string& name) { return name.rfind(kPrefix, 0) == 0; }

void run_perf_job(Context& t, const std::string& name) {
  int operation = 0;
  long long bytes = 0;
  int in_place = 0;
  if (std::sscanf(name.c_str(), "perf %d %lld %d", &operation, &bytes, &in_place) != 3)
    t.fail("a measurement without a size");
  t.note_share(Meter(t, operation, bytes, in_place != 0).microseconds());
}

int run_perf(const Options& options, const Launch& launch) {
  Gang gang(launch, options.largest_world());
  const std::vector<Row> rows = measure_all(options, gang);
  Json list = Json::list();
  for (const Row& row : rows) list.append(row_json(row, gang.world()));
  Json document = Json::object();
  document.set("plugin", gang.plugin().name);
  document.set("version", gang.plugin().version);
  document.set("device", gang.plugin().label);
  document.set("world", gang.world());
  document.set("rows", list);
  if (options.json) std::printf("%s\n", document.write(1).c_str());
  if (!options.report.empty()) std::ofstream(options.report) << document.write(1) << "\n";
  return rows.empty() ? 1 : 0;
}

}  // namespace concord::conformance
