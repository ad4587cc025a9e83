#!/usr/bin/env python3
"""cmake/cuda.cmake with a stand-in for an nvcc that is too old: it never breaks a build for the CPU."""
import os
import subprocess
import sys
import tempfile

SOURCE = sys.argv[1]


def configure(cuda):
    with tempfile.TemporaryDirectory() as folder:
        nvcc = os.path.join(folder, "nvcc")
        with open(nvcc, "w") as file:
            file.write('#!/bin/sh\necho "Cuda compilation tools, release 11.8, V11.8.89"\n')
        os.chmod(nvcc, 0o755)
        with open(os.path.join(folder, "CMakeLists.txt"), "w") as file:
            file.write(f"cmake_minimum_required(VERSION 3.22)\nproject(toolkit LANGUAGES CXX)\nset(HEBB_CUDA {cuda})\n"
                       f"set(HEBB_TESTS ON)\ninclude({SOURCE}/cmake/cuda.cmake)\nmessage(STATUS \"found: ${{HEBB_CUDA_FOUND}}\")\n")
        done = subprocess.run(["cmake", "-S", folder, "-B", os.path.join(folder, "build"), f"-DCMAKE_CUDA_COMPILER={nvcc}"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
        return " ".join(done.stdout.split()), done.returncode


text, code = configure("AUTO")
assert code == 0 and "is of CUDA 11.8, 12.0 is needed: built without CUDA" in text and "found: OFF" in text, (code, text)
text, code = configure("ON")
assert code != 0 and "is of CUDA 11.8, 12.0 is needed; name another one with -DCMAKE_CUDA_COMPILER" in text, (code, text)
print("an old toolkit is named, and the CPU build goes on")
