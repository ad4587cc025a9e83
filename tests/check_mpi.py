#!/usr/bin/env python3
"""cmake/mpi.cmake with a stand-in for the mpicxx of a package without headers and libraries: it never breaks a build."""
import sys

import cmake_module


def configure(mpi):
    return cmake_module.configure(
        f"{sys.argv[1]}/cmake/mpi.cmake", "mpicxx", 'case "$*" in *-show*) echo "c++ -I@/include -L@/lib -lmpi" ;; *) exit 1 ;; esac',
        ("", 'message(STATUS "works: ${hebb_mpi_works}")'), (f"-DHEBB_MPI={mpi}", "-DMPI_CXX_COMPILER=@/mpicxx", "-DCMAKE_PREFIX_PATH=@;@/other"))


text, code = configure("AUTO")
assert code == 0 and "without MPI; ranks on CPUs need the packages" in text and "works: OFF" in text, (code, text)
text, code = configure("ON")
assert code != 0 and "HEBB_MPI=ON, but no MPI with mpi.h was found; install the packages libopenmpi-dev and openmpi-bin" in text, (code, text)
text, code = configure("OFF")
assert code == 0 and "works: OFF" in text and "packages" not in text, (code, text)
print("an MPI that does not work is named, and the build goes on without")
