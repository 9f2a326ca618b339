"""worker/include/gkps.h in ctypes: structs, constants, and the library itself, loaded at the first use.

A test compares every size and offset here with those of the C compiler."""
import ctypes
import glob
import os
import shutil
import sys
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Dict, Iterator, List, Optional

SONAME = "libgkps.so.0"

OK = 0
E_ARGUMENT = 1
E_CONFIG = 2
E_TIMEOUT = 3
E_DATA = 4
E_PEER = 5
E_RETRY = 6
E_FENCED = 7
E_REFUSED = 8
E_STATE = 9
E_STOPPED = 10
E_FORKED = 11
E_INTERNAL = 12

NO_ENVIRONMENT = 1 << 0

NO_DECAY = 1 << 0
FROZEN = 1 << 1
DENSE = 1 << 2

SUM = 1 << 0
SKIP = 1 << 1
LR = 1 << 2
LOSS = 1 << 3

float_p = POINTER(c_float)
LogFunction = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
EndedFunction = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
InitialiseFunction = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class Setting(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class Config(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("settings", POINTER(Setting)), ("settings_count", c_size_t),
                ("log", LogFunction), ("log_context", c_void_p), ("ended", EndedFunction), ("ended_context", c_void_p),
                ("device", c_char_p), ("stream", c_void_p), ("arithmetic", c_char_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dims", POINTER(c_uint64)), ("dims_count", c_uint32),
                ("flags", c_uint32), ("density", c_double), ("params", c_void_p), ("gradient", c_void_p)]


class Start(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("timeout_ms", c_int64), ("initialise", InitialiseFunction),
                ("initialise_context", c_void_p), ("rank", c_uint32), ("workers", c_uint32), ("step", c_uint64),
                ("resumed", c_uint32), ("lost", c_uint32), ("finished", c_uint32), ("left", c_uint32)]


class Step(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("reserved", c_uint32), ("samples", c_uint64), ("lr", c_double),
                ("loss", c_double), ("timeout_ms", c_int64), ("version", c_uint64), ("selected", c_uint64),
                ("lost", c_uint32), ("finished", c_uint32)]


class Sparse(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("indices", c_void_p), ("values", c_void_p), ("count", c_uint64)]


class Stats(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("steps", c_uint64), ("samples", c_uint64), ("selected", c_uint64),
                ("bytes_pushed", c_uint64), ("bytes_pulled", c_uint64), ("bytes_headers", c_uint64),
                ("bytes_dense", c_uint64), ("retries", c_uint64), ("lost", c_uint64), ("residuals_lost", c_uint64),
                ("compute_s", c_double), ("select_s", c_double), ("push_s", c_double), ("wait_s", c_double),
                ("pull_s", c_double)]


# struct of the header: class here.
STRUCTS: Dict[str, type] = {
    "gkps_setting": Setting, "gkps_config": Config, "gkps_tensor": Tensor, "gkps_start": Start, "gkps_step": Step,
    "gkps_sparse": Sparse, "gkps_stats": Stats,
}

_PROTOTYPES = {
    "gkps_version": (c_char_p, []),
    "gkps_cuda_devices": (c_uint32, []),
    "gkps_error": (c_char_p, [c_void_p, POINTER(c_int)]),
    "gkps_open": (c_int, [POINTER(Config), POINTER(c_void_p)]),
    "gkps_tensors": (c_int, [c_void_p, POINTER(Tensor), c_size_t]),
    "gkps_bind": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_uint64]),
    "gkps_aux": (c_int, [c_void_p, c_void_p, c_size_t]),
    "gkps_start": (c_int, [c_void_p, POINTER(Start)]),
    "gkps_step": (c_int, [c_void_p, POINTER(Step)]),
    "gkps_push": (c_int, [c_void_p, POINTER(Step)]),
    "gkps_push_sparse": (c_int, [c_void_p, POINTER(Step), POINTER(Sparse)]),
    "gkps_wait": (c_int, [c_void_p, POINTER(Step)]),
    "gkps_pull": (c_int, [c_void_p]),
    "gkps_stats": (c_int, [c_void_p, POINTER(Stats)]),
    "gkps_report": (c_int, [c_void_p, c_double, c_double]),
    "gkps_note": (c_int, [c_void_p, c_char_p]),
    "gkps_fail": (c_int, [c_void_p, c_int, c_char_p]),
    "gkps_stop": (None, [c_void_p, c_int]),
    "gkps_leave": (c_int, [c_void_p, c_int64]),
    "gkps_close": (None, [c_void_p]),
}

_library: Optional[ctypes.CDLL] = None


class LibraryNotFound(ImportError):
    """libgkps is nowhere, or is not the one that this package knows."""


def _candidates() -> Iterator[str]:
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, SONAME)
    root = os.path.normpath(os.path.join(here, "..", "..", ".."))
    if os.path.exists(os.path.join(root, "worker", "include", "gkps.h")):
        for build in ("build/release", "build/*", "build-*", "build"):
            yield from sorted(glob.glob(os.path.join(root, build, "lib", SONAME)))
    prefixes: List[str] = [sys.prefix]
    program = shutil.which("gkps")
    if program:
        prefixes.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(program))))
    for prefix in prefixes:
        yield from sorted(glob.glob(os.path.join(prefix, "lib", SONAME)))
        yield from sorted(glob.glob(os.path.join(prefix, "lib", "*-linux-gnu", SONAME)))


def find() -> str:
    """The path of the library, or its name, for the system's linker to find."""
    named = os.environ.get("GKPS_LIBRARY")
    if named:
        return named
    return next((path for path in _candidates() if os.path.exists(path)), SONAME)


def load(path: str) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise LibraryNotFound(
            f"libgkps cannot be loaded ({error}): build it, install it, or set GKPS_LIBRARY to the file {SONAME}") from None
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise LibraryNotFound(f"{path} has no {name}(): it is another version of libgkps") from None
        function.restype = result
        function.argtypes = arguments
    return loaded


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = load(find())
    return _library
