#!/usr/bin/env python3
"""cmake/cuda.cmake with a stand-in for an nvcc that is too old: it never breaks a build for the CPU."""
import sys

import cmake_module


def configure(cuda):
    return cmake_module.configure(
        f"{sys.argv[1]}/cmake/cuda.cmake", "nvcc", 'echo "Cuda compilation tools, release 11.8, V11.8.89"',
        (f"set(HEBB_CUDA {cuda})\nset(HEBB_TESTS ON)\n", 'message(STATUS "found: ${HEBB_CUDA_FOUND}")'), ("-DCMAKE_CUDA_COMPILER=@/nvcc",))


text, code = configure("AUTO")
assert code == 0 and "is of CUDA 11.8, 12.0 is needed: built without CUDA" in text and "found: OFF" in text, (code, text)
text, code = configure("ON")
assert code != 0 and "is of CUDA 11.8, 12.0 is needed; name another one with -DCMAKE_CUDA_COMPILER" in text, (code, text)
print("an old toolkit is named, and the CPU build goes on")
