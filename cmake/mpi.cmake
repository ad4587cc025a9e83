# Ranks on CPUs: the library hebb_mpi, where MPI is installed (Debian, Ubuntu: libopenmpi-dev openmpi-bin; tools/setup.sh --mpi). A library of
# its own, so that programs without ranks do not load MPI. Sanitizers report what MPI itself does, so their builds are without.
set(MPI_CXX_SKIP_MPICXX ON)
if(NOT HEBB_SANITIZE AND NOT HEBB_FUZZ)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(MPI_CXX_FOUND)
  add_library(hebb_mpi STATIC ${CMAKE_SOURCE_DIR}/comm/mpi_communicator.cpp)
  target_link_libraries(hebb_mpi PUBLIC hebb_lib PRIVATE MPI::MPI_CXX)
endif()
