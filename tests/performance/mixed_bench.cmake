# The bridge between a device and a process on the host compared with copies to and from pinned memory.
find_package(nlohmann_json REQUIRED)
concord_benchmark(bridge_bench SOURCES mixed/bridge_bench.cpp LIBRARIES Concord::platform nlohmann_json::nlohmann_json
  PLUGINS cpu)
