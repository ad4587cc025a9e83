"""Configures a small project with one module of cmake/ and a stand-in for a program that the module asks: its output without line ends, and
cmake's exit status."""
import os
import subprocess
import tempfile


def configure(module, program, script, lines, options):
    """program: the stand-in's name; script: its shell lines; lines: of the project, around include(); options: of cmake. "@" in script and
    options is the project's folder."""
    with tempfile.TemporaryDirectory() as folder:
        stand_in = os.path.join(folder, program)
        with open(stand_in, "w") as file:
            file.write("#!/bin/sh\n" + script.replace("@", folder) + "\n")
        os.chmod(stand_in, 0o755)
        before, after = lines
        with open(os.path.join(folder, "CMakeLists.txt"), "w") as file:
            file.write(f"cmake_minimum_required(VERSION 3.22)\nproject(small LANGUAGES CXX)\n{before}include({module})\n{after}\n")
        done = subprocess.run(["cmake", "-S", folder, "-B", os.path.join(folder, "build"), *(option.replace("@", folder) for option in options)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        return " ".join(done.stdout.split()), done.returncode
