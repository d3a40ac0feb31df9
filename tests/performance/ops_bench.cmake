# Operators, forward and backward, compared with libtorch's own composition of them.
if(TARGET Concord::core)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(ops_bench SOURCES ops_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json PLUGINS cpu)
  if(TARGET ops_bench)
    target_compile_definitions(ops_bench PRIVATE PLUGINS="${PROJECT_BINARY_DIR}/lib")
  endif()
endif()
