# Ranks on CPUs, where MPI is installed (Debian, Ubuntu: libopenmpi-dev openmpi-bin; tools/setup.sh --mpi): the library hebb_mpi for
# tests, and a module beside the program, which loads it for ranks only and so starts without MPI. Sanitizers report what
# MPI itself does, so their builds are without.
set(MPI_CXX_SKIP_MPICXX ON)
if(NOT HEBB_SANITIZE AND NOT HEBB_FUZZ)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(MPI_CXX_FOUND)
  add_library(hebb_mpi STATIC ${CMAKE_SOURCE_DIR}/comm/mpi_communicator.cpp)
  target_link_libraries(hebb_mpi PUBLIC hebb_lib PRIVATE MPI::MPI_CXX)
  add_library(hebb_mpi_module MODULE ${CMAKE_SOURCE_DIR}/comm/mpi_module.cpp ${CMAKE_SOURCE_DIR}/comm/mpi_communicator.cpp)
  target_link_libraries(hebb_mpi_module PRIVATE hebb_flags hebb_dependencies MPI::MPI_CXX)
  set_target_properties(hebb_mpi_module PROPERTIES OUTPUT_NAME hebb_mpi LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  set_target_properties(hebb PROPERTIES ENABLE_EXPORTS ON DEFINE_SYMBOL "")
  add_dependencies(hebb hebb_mpi_module)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/comm/rank_processes.cpp PROPERTIES COMPILE_DEFINITIONS
    HEBB_MPIEXEC="${MPIEXEC_EXECUTABLE}")
endif()
