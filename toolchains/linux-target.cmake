# concord_linux_target(PROCESSOR TRIPLE): shared by the linux-*.cmake toolchain files. Native if this machine has
# that processor, so that one file serves both; otherwise a cross compile.
macro(concord_linux_target processor triple)
  cmake_host_system_information(RESULT concord_host_processor QUERY OS_PLATFORM)
  if(NOT concord_host_processor STREQUAL "${processor}")
    set(CMAKE_SYSTEM_NAME Linux)
    set(CMAKE_SYSTEM_PROCESSOR ${processor})
    foreach(concord_language IN ITEMS C CXX)
      set(concord_driver_C gcc)
      set(concord_driver_CXX g++)
      find_program(concord_cross_${concord_language} ${triple}-${concord_driver_${concord_language}} NO_CACHE)
      if(NOT concord_cross_${concord_language})
        string(REPLACE "_" "-" concord_package ${triple})
        message(FATAL_ERROR "no ${triple}-${concord_driver_${concord_language}} on the PATH; "
          "on Debian and Ubuntu: apt-get install g++-${concord_package}")
      endif()
      set(CMAKE_${concord_language}_COMPILER ${concord_cross_${concord_language}})
    endforeach()
    # Programs run here, libraries belong to the target. Packages may be either: header-only ones live in /usr/share.
    set(CMAKE_LIBRARY_ARCHITECTURE ${triple})
    set(CMAKE_FIND_ROOT_PATH /usr/${triple} /)
    set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
  endif()
endmacro()
