# Layers sharded over processes, compared with one process with the same number of threads.
if(TARGET Concord::core)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(parallel_bench SOURCES parallel_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json
    PLUGINS cpu)
  if(TARGET parallel_bench)
    target_compile_definitions(parallel_bench PRIVATE PLUGINS="${PROJECT_BINARY_DIR}/lib")
  endif()
endif()
