#!/usr/bin/env python3
"""Goal: the selection kernels keep everything in registers.  Method: ptxas says so, for each architecture.

usage: spills.py NVCC ROOT        prints a line a kernel; exits 1 when one of select_* spills
"""
import os
import re
import subprocess
import sys
import tempfile

FLAGS = ["-std=c++17", "-O2", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-Xptxas", "-v", "-cubin"]


def kernels(nvcc, root, architecture):
    """(name, registers, bytes spilled) of each kernel in cuda/select.cu."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, *FLAGS, f"-arch=sm_{architecture}", f"-I{root}", os.path.join(root, "cuda", "select.cu"), "-o",
                   os.path.join(folder, "select.cubin")]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(run.stdout + run.stderr)
    pattern = (r"Function properties for \S*?(select_\w+?)9selection.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
               r".*?Used (\d+) registers")
    return [(m[1], int(m[4]), int(m[2]) + int(m[3])) for m in re.finditer(pattern, run.stdout + run.stderr, re.S)]


def main():
    nvcc, root = sys.argv[1:3]
    spilled = 0
    for architecture in (80, 90):
        found = kernels(nvcc, root, architecture)
        if len(found) < 7:
            print(f"sm_{architecture}: ptxas reports {len(found)} kernels; expected 7 or more")
            return 1
        for name, registers, spill in found:
            print(f"sm_{architecture} {name}: {registers} registers, {spill} bytes spilled")
            spilled += spill
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
