#!/usr/bin/env python3
"""Goal: every rule of lint.py can fail.  Method: small trees with one fault each; the lint must name its file and line."""
import os
import subprocess
import sys
import tempfile

LINT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lint.py")
CLEAN = '#include "common/err.h"\n#include <stdint.h>\nint f(void)\n{\n    return 0;\n}\n'
FAULTS = {
    "a core that knows sockets": ("server/core/a.c", "#include <zmq.h>\n", 1),
    "a core that includes the shell": ("worker/core/a.c", '#include "common/net/zsock.h"\n', 1),
    "a layer below that includes one above": ("common/a.c", '#include "proto/msg.h"\n', 1),
    "the daemons mixed": ("server/a.c", '#include "worker/core/worker.h"\n', 1),
    "a core with a clock": ("server/core/a.c", "#include <time.h>\n", 1),
    "a core that logs": ("worker/core/a.c", "void f(void)\n{\n    gk_log(1);\n}\n", 3),
    "a long function": ("tool/a.c", "int f(void)\n{\n" + "    g();\n" * 70 + "}\n", 2),
    "seven parameters": ("tool/a.c", "int x;\nstatic int f(int a, int b, int c, int d,\n    int e, int f, int g)\n{\n}\n", 2),
    "seven parameters, declared": ("tool/a.h", "void *f(int a, int b, int c, int d, int (*e)(int, int), int f, int g);\n",
                                   1),
    "a pointer to seven parameters": ("tool/a.h", "struct a {\n    void (*f)(int, int, int, int, int, int, int);\n};\n",
                                      2),
    "a long file": ("proto/a.c", "int x;\n" * 601, 1),
    "an unfinished place": ("tool/a.c", "/* TO" + "DO: later */\n", 1),
    "a banned function": ("tool/a.c", "x = sprintf(a, b);\n", 1),
    "a send outside zsock": ("server/a.c", "\nzmq_send(a);\n", 2),
    "an exit in a library": ("common/a.c", "exit(1);\n", 1),
}


def lint(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        run = subprocess.run([sys.executable, LINT, root], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout


def main():
    failed = 0
    code, out = lint({"server/core/ok.c": CLEAN, "tool/ok.c": '#include "proto/msg.h"\n#include <uv.h>\n',
                      "tool/six.c": "int f(int a, int b, int c, int d, /* , */ int e, void (*f)(int, int))\n{\n"
                                    "    return g(1, 2, 3, 4, 5, 6, 7);\n}\n"})
    if code != 0:
        print(f"a clean tree is refused:\n{out}")
        failed += 1
    for name, (path, text, line) in FAULTS.items():
        code, out = lint({"server/core/ok.c": CLEAN, path: text})
        if code != 1 or f"{path}:{line}:" not in out:
            print(f"not found: {name}\n{out}")
            failed += 1
    code, _ = lint({})
    if code != 1:
        print("a tree without sources passes")
        failed += 1
    print(f"{len(FAULTS) + 2 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
