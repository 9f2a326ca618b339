#!/usr/bin/env python3
"""Layer, size and habit lint of the C sources: prints one line a finding, exits 1 when there is any.

usage: lint.py [ROOT]        (default: the repository this file is in)

Layers: a folder may include only what its row allows, our own headers and others' alike; zmq.h lies in the system's
include folder, so that a forbidden include would compile.  Sizes: functions of at most 70 lines and 6 parameters, files
of at most 600 lines.
Habits: no unfinished-work marks, no calls that are banned somewhere.  tests/lint/selftest.py shows that each rule can fail.
"""
import os
import re
import sys

LIBC = {"assert.h", "errno.h", "float.h", "inttypes.h", "limits.h", "math.h", "stdalign.h", "stdarg.h", "stdatomic.h",
        "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "ctype.h"}
SYSTEM = LIBC | {"fcntl.h", "pthread.h", "signal.h", "time.h", "unistd.h", "netdb.h", "poll.h", "sys/", "arpa/inet.h",
                 "netinet/in.h", "strings.h", "dirent.h", "sched.h", "fenv.h"}

# folder: (own prefixes, headers of others).  The longest folder that matches counts; subfolders named in another row
# are not allowed by the prefix of their parent.
LAYERS = {
    "common": (["common"], SYSTEM | {"isa-l/", "xxhash.h", "jansson.h", "cyaml/", "Random123/", "zlib.h"}),
    "common/cpu": (["common", "common/cpu"], LIBC | {"immintrin.h", "cpuid.h", "fenv.h"}),
    "common/net": (["common", "common/net"], SYSTEM | {"zmq.h", "uv.h", "jansson.h", "xmmintrin.h", "immintrin.h",
                                                  "linux/tcp.h"}),
    "proto": (["common", "proto"], LIBC | {"gkps.pb-c.h", "protobuf-c/"}),
    "cuda": (["common", "cuda"], LIBC | {"cuda_runtime.h", "cublas_v2.h", "dlfcn.h"}),
    "server/core": (["common", "proto", "server/core"], LIBC),
    "server/store": (["common", "proto", "server/core", "server/store"], SYSTEM),
    "worker/core": (["common", "proto", "worker/core"], LIBC),
    "worker/state": (["common", "proto", "worker/core", "worker/state"], SYSTEM),
    "worker/select": (["common", "worker/select"], LIBC),
    "worker/model": (["common", "proto", "worker/model"], LIBC | {"cblas.h", "openblas_config.h", "pthread.h"}),
    "worker/data": (["common", "worker/data"], SYSTEM | {"zlib.h"}),
    "server": (["common", "common/net", "proto", "cuda", "server/core", "server/store", "server"], SYSTEM | {"uv.h", "jansson.h"}),
    "worker/include": ([], {"stddef.h", "stdint.h"}),
    "worker/lib": (["common", "common/net", "proto", "cuda", "worker/core", "worker/state", "worker/select", "worker/include",
                    "worker/lib"], SYSTEM | {"uv.h", "jansson.h"}),
    # gkps-worker: a user of the library, with whose settings its flags begin.
    "worker": (["common", "common/net", "proto", "cuda", "worker/include", "worker/lib", "worker/model", "worker/data", "worker"],
               SYSTEM),
    "tool": (["common", "common/net", "proto", "server/core", "server/store", "worker/core", "worker/state", "tool"], SYSTEM | {"uv.h", "jansson.h", "yaml.h"}),
}

PURE = ("server/core", "worker/core")
# pattern, where it is allowed (prefixes of paths), why
HABITS = [
    (r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", (), "unfinished work"),
    (r"\b(strcpy|strcat|sprintf|gets|alloca|setjmp|longjmp)\s*\(", ("tests/",), "a banned function"),
    (r"\bzmq_(msg_)?(send|recv)\s*\(", ("common/net/", "tests/"), "only zsock sends and receives"),
    (r"\buv_prepare_init\s*\(", ("common/net/", "tests/"), "no other module may own a prepare handle"),
    (r"--use_fast_math|\b__expf\s*\(|-ffast-math", (), "fast math changes the bits of sums"),
    (r"\bexit\s*\(", ("tests/",), "library code never exits; main returns"),
]
PURE_HABITS = [
    (r"\bgk_log\s*\(", "cores emit TRACE actions"),
    (r"\b(clock_gettime|gettimeofday|time|rand|random|getenv)\s*\(", "cores get time and randomness in their events"),
]
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
PARAMETERS_MAX = 6
# How many these take was not for us to say: libFuzzer's entry, and what stands in for BLAS libraries.
FOREIGN = ("LLVMFuzzer", "cblas_", "cublas")


def folder_of(path):
    """The row of LAYERS that a source belongs to, or None."""
    folder = os.path.dirname(path)
    while folder and folder not in LAYERS:
        folder = os.path.dirname(folder)
    return folder or None


def include_allowed(own, others, header, quoted):
    if quoted:
        # A generated list of the build tree has no folder.
        if "/" not in header:
            return header.endswith(".inc") or header in others
        return folder_of(header) in own
    return header in others or any(prefix.endswith("/") and header.startswith(prefix) for prefix in others)


def check_includes(path, lines):
    folder = folder_of(path)
    if folder is None:
        return
    own, others = LAYERS[folder]
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if match and not include_allowed(own, others, match.group(2), match.group(1) == '"'):
            yield number, f"{folder}/ may not include {match.group(2)}"


def check_sizes(path, lines):
    if len(lines) > FILE_LINES_MAX:
        yield 1, f"{len(lines)} lines; a file has at most {FILE_LINES_MAX}"
    start = None
    for number, line in enumerate(lines, 1):
        if line.rstrip() == "{":
            start = number
        elif start and line.rstrip() == "}":
            if number - start + 1 > FUNCTION_LINES_MAX:
                yield start, f"a function of {number - start + 1} lines; at most {FUNCTION_LINES_MAX}"
            start = None


def without_words(text):
    """The text with comments and string literals blanked, so that lines and columns stay."""
    words = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'
    return re.sub(words, lambda match: re.sub(r"[^\n]", " ", match.group(0)), text, flags=re.S)


def count_parameters(text, start):
    """How many stand in the parentheses that open at `start`, and where they close."""
    depth = commas = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        commas += text[at] == "," and depth == 1
        if depth == 0:
            return (commas + 1 if text[start + 1:at].strip() not in ("", "void") else 0), at + 1
    return 0, len(text)


def check_parameters(text):
    """Functions, declared or defined, begin a line with their type; pointers to functions are (*name)(...)."""
    text = without_words(text)
    for match in re.finditer(r"^(?:\w+[ \n*]+)+(\w+)\(|\(\*(\w*)\)\(", text, re.M):
        count, end = count_parameters(text, match.end() - 1)
        declares = match.group(2) is not None or re.match(r"\s*(?:[{;]|__attribute__)", text[end:])
        name = match.group(1) or match.group(2)
        if count > PARAMETERS_MAX and declares and not name.startswith(FOREIGN):
            yield text.count("\n", 0, match.end()) + 1, f"{name} has {count} parameters; at most {PARAMETERS_MAX}"


def check_habits(path, text):
    def findings(pattern, why):
        for match in re.finditer(pattern, text):
            yield text.count("\n", 0, match.start()) + 1, f"'{match.group(0).strip()}': {why}"

    for pattern, allowed, why in HABITS:
        if not path.startswith(tuple(allowed)):
            yield from findings(pattern, why)
    if path.startswith(PURE):
        for pattern, why in PURE_HABITS:
            yield from findings(pattern, why)


def sources(root):
    for top, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in (".git", "build", ".cache") and not f.startswith("build-"))
        for name in sorted(files):
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                yield os.path.relpath(os.path.join(top, name), root)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    count = files = 0
    for path in sources(root):
        files += 1
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            text = file.read()
        lines = text.splitlines()
        for check in (check_includes(path, lines), check_sizes(path, lines), check_parameters(text),
                      check_habits(path, text)):
            for number, what in check:
                print(f"{path}:{number}: {what}")
                count += 1
    if files == 0:
        print(f"{root}: no sources found")
        return 1
    print(f"{files} files, {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
