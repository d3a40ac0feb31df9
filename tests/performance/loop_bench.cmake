# The training loop and its loader with a model that does nothing, compared with a step of the first run.
if(TARGET Concord::trainer)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(loop_bench SOURCES loop_bench.cpp LIBRARIES Concord::trainer nlohmann_json::nlohmann_json PLUGINS cpu)
endif()
