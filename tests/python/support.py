"""What the tests of the Python package share: the package of this tree, the stub library, and a process of its own for what
ends one."""
import ctypes
import os
import subprocess
import sys
import textwrap

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PACKAGE = os.path.join(ROOT, "worker", "python")
STUB = os.environ.get("GKPS_TEST_STUB", "")
sys.path.insert(0, PACKAGE)


def clean_environment(**extra):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GKPS_") or k == "GKPS_TEST_STUB"}
    env.update(PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1", **extra)
    return env


def use_stub():
    """Loads the stub as the library; functions to steer it."""
    for key in [key for key in os.environ if key.startswith("GKPS_") and key != "GKPS_TEST_STUB"]:
        del os.environ[key]
    os.environ["GKPS_LIBRARY"] = STUB
    from gkps import _abi

    class Stub:
        library = _abi.library()

        def __init__(self):
            self.library.stub_calls.restype = ctypes.c_char_p
            self.library.stub_settings.restype = ctypes.c_char_p
            self.library.stub_place.restype = ctypes.c_char_p
            self.library.stub_last_step.restype = ctypes.POINTER(_abi.Step)
            self.library.stub_last_sparse.restype = ctypes.c_uint64

        def calls(self):
            return self.library.stub_calls().decode().split()

        def settings(self):
            words = self.library.stub_settings().decode().split()
            return dict(zip(words[::2], words[1::2]))

        def place(self):
            """Device and stream of the last opening."""
            return self.library.stub_place().decode().split()

        def fail(self, function, code, times=1):
            self.library.stub_fail(function.encode(), code, times)

        def wait_ms(self, milliseconds):
            self.library.stub_wait_ms(milliseconds)

        def last_step(self):
            return self.library.stub_last_step().contents

        def last_sparse(self):
            return self.library.stub_last_sparse()

    return Stub()


def python(code, library=None, deadline_s=60, **extra):
    """Runs a script of its own: (exit code, stdout, stderr).  A negative code is a signal."""
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=deadline_s,
                         check=False, env=clean_environment(GKPS_LIBRARY=library or STUB, **extra))
    return run.returncode, run.stdout, run.stderr
