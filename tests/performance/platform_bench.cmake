# The C++ wrappers compared with the raw tables, and opening a plugin compared with dlopen alone.
find_package(nlohmann_json REQUIRED)
concord_benchmark(platform_bench SOURCES platform_bench.cpp LIBRARIES Concord::platform nlohmann_json::nlohmann_json
  PLUGINS cpu)
