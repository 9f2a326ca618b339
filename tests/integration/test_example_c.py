"""Goal: a C program needs nothing but the installed library to be a worker, found by pkg-config or by CMake, wherever it lies.
Method: the build is installed into a folder, which is then moved; examples/train.c is compiled as docs/library.md says, each
way, and trains under `gkps run`.  A library of another minor version is not taken."""
import json
import os
import subprocess
import tempfile

import cluster
from cluster import expect, gkps, main

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SOURCE = os.path.join(ROOT, "examples", "train.c")
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(train C)
find_package(gkps {version} REQUIRED)
add_executable(train {source})
target_link_libraries(train PRIVATE gkps::gkps m)
"""


def command(*args, env=None):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, check=False, env=env)
    expect(done.returncode == 0, f"{args}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Installed:
    """The library in a folder that is not the one it was installed into."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.prefix = self.path("moved")
        command("cmake", "--install", os.path.join(cluster.BIN, ".."), "--prefix", self.path("prefix"))
        os.rename(self.path("prefix"), self.prefix)
        self.lib = next(top for top, _, files in os.walk(self.prefix) if "libgkps.so" in files)
        return self

    def __exit__(self, *unused):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)


def train(program, summary, **env):
    code, out, err = gkps("run", "--servers", 2, "--workers", 3, "--summary", summary, "--", program,
                          env=cluster.environment(**env))
    expect(code == 0, f"{out}\n{err}")
    with open(summary, encoding="utf-8") as file:
        result = json.load(file)
    # At the start the loss is half the variance of 1000 terms, about 83; noise alone is 0.002.
    expect(result["steps"] == 300 and result["test_loss"] < 1, f"{result}")
    expect(result["ledger"]["lost"] == 0, f"{result}")
    return result["model_hash"]


def test_pkg_config():
    with Installed() as there:
        env = {**os.environ, "PKG_CONFIG_PATH": os.path.join(there.lib, "pkgconfig")}
        flags = command("pkg-config", "--cflags", "--libs", "gkps", env=env)
        command(os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", "-o", there.path("train"), SOURCE, *flags.split(), "-lm")
        train(there.path("train"), there.path("summary.json"), LD_LIBRARY_PATH=there.lib)


def test_find_package():
    with Installed() as there:
        project = there.path("project")
        os.mkdir(project)
        version = command("pkg-config", "--modversion", os.path.join(there.lib, "pkgconfig", "gkps.pc")).strip()
        major, minor = version.split(".")[:2]
        for wanted, fits in ((version, True), (f"{major}.{int(minor) + 1}", False)):
            with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as file:
                file.write(PROJECT.format(version=wanted, source=SOURCE))
            done = subprocess.run(["cmake", "-S", project, "-B", there.path("build"), f"-DCMAKE_PREFIX_PATH={there.prefix}"],
                                  capture_output=True, text=True, check=False)
            expect((done.returncode == 0) == fits, f"version {wanted}:\n{done.stdout}\n{done.stderr}")
            if fits:
                command("cmake", "--build", there.path("build"))
                train(os.path.join(there.path("build"), "train"), there.path("summary.json"))
            expect(fits or "gkps" in done.stderr, done.stderr)


if __name__ == "__main__":
    main(globals())
