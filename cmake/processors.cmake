# A program for any x86-64 processor (HEBB_NATIVE=OFF) holds its CPU kernels in a shared library, built for each of these levels of
# the instruction set. glibc (2.33 or later) loads the highest one that the processor has, from glibc-hwcaps/ beside the lowest.
option(HEBB_PROCESSOR_LEVELS "Where HEBB_NATIVE is OFF: CPU kernels for AVX2 and AVX-512 too, chosen when the program starts" ON)
set(HEBB_LEVELS x86-64-v3 x86-64-v4)
if(HEBB_NATIVE OR NOT HEBB_PROCESSOR_LEVELS OR HEBB_SANITIZE OR HEBB_CUDA STREQUAL "EMULATED" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR
   NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  return()
endif()

set(HEBB_KERNEL_SOURCES ${HEBB_SOURCES})
list(FILTER HEBB_KERNEL_SOURCES INCLUDE REGEX "/kernels/[^/]*/[^/]*$")
get_target_property(sources hebb_lib SOURCES)
list(REMOVE_ITEM sources ${HEBB_KERNEL_SOURCES})
set_target_properties(hebb_lib PROPERTIES SOURCES "${sources}")

function(hebb_add_kernels target level folder)
  add_library(${target} SHARED ${HEBB_KERNEL_SOURCES})
  # What kernels call of core/ is the program's: no level carries a copy.
  target_link_libraries(${target} PRIVATE hebb_flags fmt::fmt)
  target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:hebb_lib,INTERFACE_COMPILE_DEFINITIONS>)
  target_compile_options(${target} PRIVATE ${level})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME hebb_kernels LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/hebb/${folder})
  install(TARGETS ${target} LIBRARY DESTINATION lib/hebb/${folder} COMPONENT hebb)
endfunction()

hebb_add_kernels(hebb_kernels "" "")
foreach(level ${HEBB_LEVELS})
  hebb_add_kernels(hebb_kernels_${level} "-march=${level};-Wno-psabi" glibc-hwcaps/${level})
  add_dependencies(hebb_kernels hebb_kernels_${level})
endforeach()
# The program and its kernels call each other: the library by its file's name, since CMake allows no cycle with a shared one.
target_link_libraries(hebb_kernels INTERFACE $<TARGET_FILE:hebb_lib>)
target_link_libraries(hebb_lib INTERFACE hebb_kernels)
set(CMAKE_ENABLE_EXPORTS ON)  # of the test programs, too
set_target_properties(hebb PROPERTIES ENABLE_EXPORTS ON BUILD_RPATH "$ORIGIN/lib/hebb" BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN/../lib/hebb")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/lib/hebb)
