#!/usr/bin/env python3
"""cmake/mpi.cmake with a stand-in for the mpicxx of a package without headers and libraries: it never breaks a build."""
import os
import subprocess
import sys
import tempfile

SOURCE = sys.argv[1]


def configure(mpi):
    with tempfile.TemporaryDirectory() as folder:
        mpicxx = os.path.join(folder, "mpicxx")
        with open(mpicxx, "w") as file:
            file.write(f'#!/bin/sh\ncase "$*" in *-show*) echo "c++ -I{folder}/include -L{folder}/lib -lmpi" ;; *) exit 1 ;; esac\n')
        os.chmod(mpicxx, 0o755)
        with open(os.path.join(folder, "CMakeLists.txt"), "w") as file:
            file.write(f"cmake_minimum_required(VERSION 3.22)\nproject(mpi LANGUAGES CXX)\ninclude({SOURCE}/cmake/mpi.cmake)\n"
                       "message(STATUS \"works: ${hebb_mpi_works}\")\n")
        done = subprocess.run(["cmake", "-S", folder, "-B", os.path.join(folder, "build"), f"-DHEBB_MPI={mpi}", f"-DMPI_CXX_COMPILER={mpicxx}",
                               f"-DCMAKE_PREFIX_PATH={folder};{folder}/other"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
        return " ".join(done.stdout.split()), done.returncode


text, code = configure("AUTO")
assert code == 0 and "without MPI; ranks on CPUs need the packages" in text and "works: OFF" in text, (code, text)
text, code = configure("ON")
assert code != 0 and "HEBB_MPI=ON, but no MPI with mpi.h was found; install the packages libopenmpi-dev and openmpi-bin" in text, (code, text)
text, code = configure("OFF")
assert code == 0 and "works: OFF" in text and "packages" not in text, (code, text)
print("an MPI that does not work is named, and the build goes on without")
