// The cost of the C++ wrappers over the raw tables, and of opening a plugin over dlopen alone.
//
// Calls: loops over a plugin that does nothing (inside this program) and over the cpu plugin; rounds alternate between
// ours and the raw call, and the best round of each counts. Loading: a new process each time, this program started
// again, on a copy of the plugin's file; the median counts.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "platform/cpp/concord.hpp"
#include "tests/abi/sample_tables.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

struct Row {
  std::string name;
  double ours;
  double peer;
  const char* unit;
  double allowed;  // maximum difference from the peer
};

// ----------------------------------------------------------------------------------------------------------- calls

constexpr int kCalls = 500'000;
constexpr int kRounds = 15;

double nanoseconds_per_call(const std::function<void(int)>& loop) {
  const auto start = Clock::now();
  loop(kCalls);
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls;
}

Row compare(const std::string& name, const std::function<void(int)>& ours, const std::function<void(int)>& raw) {
  Row row{name, 1e9, 1e9, "ns", 50};
  for (int round = 0; round < kRounds; ++round) {
    row.peer = std::min(row.peer, nanoseconds_per_call(raw));
    row.ours = std::min(row.ours, nanoseconds_per_call(ours));
  }
  return row;
}

void add_call_rows(const Platform& platform, std::vector<Row>& rows) {
  const std::string where = " on " + std::string(platform.name());
  const Device device(platform, 0);
  const Stream stream(device);
  const Event event(device);
  const Buffer buffer(device, 64);
  const Communicator comm(device, 1, 0, create_unique_id(platform));
  const Stream inline_stream = Stream::of_device(device);
  const concord_stream_table& streams = platform.tables().stream;
  const concord_event_table& events = platform.tables().event;
  const concord_comm_table& comms = platform.tables().comm;

  volatile bool sink = false;
  rows.push_back(compare(
      "Stream::done" + where,
      [&](int n) {
        while (n-- > 0) sink = stream.done();
      },
      [&](int n) {
        int32_t done = 0;
        while (n-- > 0) {
          streams.query(streams.self, stream.native(), &done);
          sink = done != 0;
        }
      }));
  rows.push_back(compare(
      "Event::record" + where,
      [&](int n) {
        while (n-- > 0) event.record(inline_stream);
      },
      [&](int n) {
        while (n-- > 0) events.record(events.self, event.native(), nullptr);
      }));
  rows.push_back(compare(
      "Communicator::all_reduce" + where,
      [&](int n) {
        while (n-- > 0) {
          comm.all_reduce(inline_stream, buffer.data(), buffer.data(), 1, DType::kF32, ReduceOp::kSum);
        }
      },
      [&](int n) {
        while (n-- > 0) {
          comms.all_reduce(comms.self, comm.native(), buffer.data(), buffer.data(), 1, CONCORD_DTYPE_F32,
                           CONCORD_REDUCE_SUM, nullptr);
        }
      }));
  rows.push_back(compare(
      "Event made and destroyed" + where,
      [&](int n) {
        while (n-- > 0) const Event made(device);
      },
      [&](int n) {
        while (n-- > 0) {
          concord_event made = nullptr;
          events.create(events.self, 0, 0, &made);
          events.destroy(events.self, made);
        }
      }));
}

// The table that is returned without CONCORD_LAYERS, compared with the plugin's own.
Row layers_row(const loader::Plugin& plugin) {
  const auto loop = [](const concord_device_table& table) {
    return [&table](int n) {
      int32_t device = 0;
      while (n-- > 0) table.get_current(table.self, &device);
    };
  };
  Row row = compare("device.get_current with layers off", loop(plugin.tables.device), loop(plugin.unwrapped.device));
  row.allowed = 1;
  return row;
}

// --------------------------------------------------------------------------------------------------------- loading

// In the new process: prints the time in microseconds.
int load(const std::string& how, const std::string& path) {
  const auto start = Clock::now();
  if (how == "dlopen") {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return 1;
  } else {
    loader::open_plugin(path);
  }
  std::printf("%f\n", std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  return 0;
}

double load_in_fresh_process(const char* how, const std::string& path) {
  const std::string command =
      std::filesystem::read_symlink("/proc/self/exe").string() + " --load " + how + " '" + path + "'";
  FILE* pipe = popen(command.c_str(), "r");
  double microseconds = -1;
  const bool read = pipe != nullptr && std::fscanf(pipe, "%lf", &microseconds) == 1;
  if (pipe == nullptr || pclose(pipe) != 0 || !read) throw std::runtime_error("failed: " + command);
  return microseconds;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Row load_row(const Platform& platform) {
  namespace fs = std::filesystem;
  const fs::path copy = fs::temp_directory_path() / ("libconcord_bench" + std::to_string(getpid()) + ".so");
  fs::copy_file(platform.path(), copy, fs::copy_options::overwrite_existing);
  std::vector<double> ours;
  std::vector<double> peer;
  for (int round = 0; round < 21; ++round) {
    peer.push_back(load_in_fresh_process("dlopen", copy));
    ours.push_back(load_in_fresh_process("open", copy));
  }
  fs::remove(copy);
  return {"open the " + std::string(platform.name()) + " plugin", median(ours), median(peer), "us", 5000};
}

// ---------------------------------------------------------------------------------------------------------- output

void print(const std::vector<Row>& rows, bool as_json) {
  if (as_json) {
    nlohmann::ordered_json document = nlohmann::ordered_json::array();
    for (const Row& row : rows) {
      document.push_back({{"name", row.name},
                          {"ours", row.ours},
                          {"peer", row.peer},
                          {"unit", row.unit},
                          {"ratio", row.ours / row.peer},
                          {"goal", "peer + " + std::to_string(static_cast<int>(row.allowed))},
                          {"met", row.ours <= row.peer + row.allowed}});
    }
    std::printf("%s\n", document.dump(1).c_str());
    return;
  }
  std::printf("%-45s %10s %10s %5s %6s  %-12s %s\n", "name", "ours", "peer", "unit", "ratio", "goal", "met");
  for (const Row& row : rows) {
    std::printf("%-45s %10.1f %10.1f %5s %6.2f  peer + %-5.0f %s\n", row.name.c_str(), row.ours, row.peer, row.unit,
                row.ours / row.peer, row.allowed, row.ours <= row.peer + row.allowed ? "yes" : "NO");
  }
}

int run(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--load") == 0) return load(argv[2], argv[3]);
  const bool as_json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !as_json) {
    std::fprintf(stderr, "usage: platform_bench [--json]\n");
    return 2;
  }
  sample::Plugin nothing({"nothing", -1, 1});
  loader::Plugin in_program{"nothing", "", loader::kHostVersion, sample::tables_of(nothing), {}, nothing.root()};
  in_program.unwrapped = in_program.tables;
  const Platform cpu = open_platform("cpu");
  std::vector<Row> rows;
  add_call_rows(Platform(in_program), rows);
  add_call_rows(cpu, rows);
  rows.push_back(layers_row(loader::open_plugin("cpu")));
  rows.push_back(load_row(cpu));
  print(rows, as_json);
  return 0;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  try {
    return concord::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "platform_bench: %s\n", error.what());
    return 1;
  }
}
