"""One exception class for each code of the library."""
import ctypes
import sys
import threading
from types import TracebackType
from typing import Any, Dict, Optional, Type

from . import _abi


class Error(Exception):
    """A call of the library failed.  `exit_code` is the one that a process which ends for this reason ends with
    (docs/library.md): with it `gkps run` knows whether another life can help.  One that nobody catches ends Python
    with that code."""

    code = _abi.E_INTERNAL
    default_exit_code = 70

    def __init__(self, words: str, exit_code: Optional[int] = None) -> None:
        super().__init__(words)
        self.exit_code = self.default_exit_code if exit_code is None else exit_code


class ArgumentError(Error, ValueError):
    """A call that makes no sense: order, size, shape, memory."""
    code = _abi.E_ARGUMENT
    default_exit_code = 64


class ConfigError(Error):
    """A setting or a variable is wrong."""
    code = _abi.E_CONFIG
    default_exit_code = 64


class Timeout(Error, TimeoutError):
    """Not yet: the call, or wait() after a step, may be made again."""
    code = _abi.E_TIMEOUT
    default_exit_code = 69


class DataError(Error):
    """A gradient that is not finite, ranks with different learning rates."""
    code = _abi.E_DATA
    default_exit_code = 65


class PeerError(Error):
    """A server is missing or has lost its state."""
    code = _abi.E_PEER
    default_exit_code = 69


class RetryError(Error):
    """Something is in use; the same may succeed later."""
    code = _abi.E_RETRY
    default_exit_code = 75


class FencedError(Error):
    """A newer process has this rank."""
    code = _abi.E_FENCED
    default_exit_code = 76


class RefusedError(Error):
    """The servers refuse this worker: another model, job or protocol."""
    code = _abi.E_REFUSED
    default_exit_code = 77


class StateError(Error):
    """The state directory."""
    code = _abi.E_STATE
    default_exit_code = 78


class StoppedError(Error):
    """stop() was called, or the launcher is gone."""
    code = _abi.E_STOPPED
    default_exit_code = 69


class ForkedError(Error):
    """The worker belongs to the parent process."""
    code = _abi.E_FORKED


class InternalError(Error):
    """No memory, a failed read or write, or a mistake of the library."""
    code = _abi.E_INTERNAL


_CLASSES: Dict[int, Type[Error]] = {
    kind.code: kind for kind in (ArgumentError, ConfigError, Timeout, DataError, PeerError, RetryError, FencedError,
                                 RefusedError, StateError, StoppedError, ForkedError, InternalError)
}


def last_error(library: ctypes.CDLL, handle: Optional[int], code: int) -> Error:
    exit_code = ctypes.c_int(0)
    words = (library.gkps_error(handle, ctypes.byref(exit_code)) or b"").decode("utf-8", "replace")
    kind = _CLASSES.get(code, InternalError)
    return kind(words or f"libgkps failed with code {code} and no words", exit_code.value or None)


def exit_code_of(error: Optional[BaseException]) -> int:
    """What a process ends with that does not catch it; never 0."""
    if isinstance(error, Error):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit) and isinstance(error.code, int) and 0 < error.code < 256:
        return error.code
    return 1


def words_of(error: Optional[BaseException]) -> str:
    """One line about it, for the launcher."""
    name = "the script has failed" if error is None else type(error).__name__
    text = " ".join(str(error).split())[:300] if error is not None else ""
    return f"{name}: {text}" if text else name


class _Hook:
    """Ends Python with the exit code of an Error that nobody caught, after the usual traceback, and remembers that
    something was not caught: a worker whose script has failed is missed by the others, and does not leave them."""

    def __init__(self) -> None:
        self.former: Any = None
        self.former_of_threads: Any = None
        self.error: Optional[BaseException] = None  # that nobody has caught
        self.thread_error: Optional[BaseException] = None  # that has ended a thread which used a worker
        self._thread = threading.local()

    def install(self) -> None:
        if self.former is None:
            self.former = sys.excepthook
            sys.excepthook = self
            self.former_of_threads = threading.excepthook
            threading.excepthook = self._of_thread

    def uses_worker(self) -> None:
        """This thread does: the training fails with it."""
        self._thread.uses_worker = True

    def failure(self) -> Optional[BaseException]:
        """What the script has failed with, at the end of Python.  Python's own note of it counts as well: something may have
        put another hook in our place."""
        return self.error or getattr(sys, "last_value", None) or self.thread_error

    def _of_thread(self, args: Any) -> None:
        if getattr(self._thread, "uses_worker", False) and args.exc_type is not SystemExit:
            self.thread_error = args.exc_value or args.exc_type()
        self.former_of_threads(args)

    def __call__(self, kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        self.error = error
        self.former(kind, error, trace)
        if isinstance(error, Error):
            sys.exit(error.exit_code)


hook = _Hook()
