#!/bin/sh
# Every C, C++ and CUDA file is as clang-format (version 14, .clang-format) writes it.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
format=$(command -v clang-format-14 || command -v clang-format)
find common proto cuda server worker tool tests \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 "$format" --dry-run --Werror
