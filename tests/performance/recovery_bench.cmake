# Time from kill -9 of a rank until training continues, compared with torchrun with DistributedDataParallel over gloo (a
# Python with torch in CONCORD_PYTHON). A script that starts jobs and reads the times of events.
if(TARGET concord AND TARGET Concord::core)
  if(NOT TARGET concord_benchmarks)
    add_custom_target(concord_benchmarks)
  endif()
  add_dependencies(concord_benchmarks concord concord_plugin_cpu)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/bench/recovery_bench CONTENT "#!/bin/sh
exec ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/recovery_bench.py $<TARGET_FILE:concord> ${PROJECT_BINARY_DIR}/lib \
  ${PROJECT_SOURCE_DIR}/tests/golden/hf/qwen2-tiny \"$@\"
" FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endif()
