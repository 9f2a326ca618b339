"""Goal: a C program needs nothing but the installed library and pkg-config to be a worker.
Method: the build is installed into a folder, examples/train.c compiled as docs/library.md says, and run."""
import json
import os
import subprocess
import tempfile

import cluster
from cluster import expect, gkps, main

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def test_train():
    with tempfile.TemporaryDirectory() as folder:
        prefix, program, summary = (os.path.join(folder, name) for name in ("prefix", "train", "summary.json"))
        install = subprocess.run(["cmake", "--install", os.path.join(cluster.BIN, ".."), "--prefix", prefix], capture_output=True,
                                 text=True, check=False)
        expect(install.returncode == 0, f"{install.stdout}\n{install.stderr}")
        lib = next(top for top, _, files in os.walk(prefix) if "libgkps.so" in files)
        env = {**os.environ, "PKG_CONFIG_PATH": os.path.join(lib, "pkgconfig")}
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "gkps"], capture_output=True, text=True, check=True, env=env)
        compile_ = subprocess.run([os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", "-o", program,
                                   os.path.join(ROOT, "examples", "train.c"), *flags.stdout.split(), "-lm"],
                                  capture_output=True, text=True, check=False)
        expect(compile_.returncode == 0, compile_.stderr)
        code, out, err = gkps("run", "--servers", 2, "--workers", 3, "--summary", summary, "--", program,
                              env=cluster.environment(LD_LIBRARY_PATH=lib))
        expect(code == 0, f"{out}\n{err}")
        with open(summary, encoding="utf-8") as file:
            result = json.load(file)
        # At the start the loss is half the variance of 1000 terms, about 83; noise alone is 0.002.
        expect(result["steps"] == 300 and result["test_loss"] < 1, f"{result}")
        expect(result["ledger"]["lost"] == 0, f"{result}")


if __name__ == "__main__":
    main(globals())
