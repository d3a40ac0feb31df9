#include "platform/conformance/registry.h"

#include <map>
#include <stdexcept>

namespace concord::conformance {

std::string Test::full_name(int world) const {
  const std::string base = table + "." + name;
  if (least_world == 1 && most_world == 1) return base;
  static const std::map<int, std::string> words = {{1, "One"}, {2, "Two"}, {3, "Three"}, {4, "Four"}, {8, "Eight"}};
  const auto word = words.find(world);
  const std::string number = word != words.end() ? word->second : std::to_string(world);
  return base + "On" + number + (world == 1 ? "Rank" : "Ranks");
}

void Registry::add(Test test) {
  if (find(test.table + "." + test.name) != nullptr) throw std::logic_error("two tests are called " + test.name);
  tests_.push_back(std::move(test));
}

const Test* Registry::find(const std::string& table_and_name) const {
  for (const Test& test : tests_) {
    if (test.table.size() + 1 + test.name.size() == table_and_name.size() &&
        table_and_name.compare(0, test.table.size(), test.table) == 0 &&
        table_and_name.compare(test.table.size() + 1, test.name.size(), test.name) == 0) {
      return &test;
    }
  }
  return nullptr;
}

const Registry& all_tests() {
  static const Registry registry = [] {
    Registry all;
    add_core_tests(all);
    add_device_tests(all);
    add_memory_tests(all);
    add_stream_tests(all);
    add_event_tests(all);
    add_rng_tests(all);
    add_comm_tests(all);
    add_collective_tests(all);
    add_special_value_tests(all);
    add_transfer_tests(all);
    add_comm_order_tests(all);
    add_comm_fault_tests(all);
    add_leak_tests(all);
    return all;
  }();
  return registry;
}

std::vector<int> worlds_up_to(int largest) {
  std::vector<int> worlds;
  for (const int world : {1, 2, 3, 4, 8}) {
    if (world < largest) worlds.push_back(world);
  }
  worlds.push_back(largest);
  return worlds;
}

}  // namespace concord::conformance
