# The Python package compared with the program: a step, and what importing it adds to `import torch`. It needs the Python
# whose torch the build uses.
if(TARGET concord_python AND TARGET concord)
  if(NOT TARGET concord_benchmarks)
    add_custom_target(concord_benchmarks)
  endif()
  add_dependencies(concord_benchmarks concord_runtime concord_python)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/bench/python_bench CONTENT "#!/bin/sh
export PYTHONPATH=${PROJECT_BINARY_DIR}/python OMP_NUM_THREADS=1
exec ${CONCORD_TRANSFORMERS_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/python_bench.py $<TARGET_FILE:concord> \"$@\"
" FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endif()
