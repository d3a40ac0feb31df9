# Ranks that join a job's store, compared with c10d's own use of it.
if(TARGET Concord::core)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(store_bench SOURCES store_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json)
endif()
