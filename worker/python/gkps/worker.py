"""One rank of one job: the calls of libgkps, with their errors as exceptions.

Memory is given as torch tensors, numpy arrays or anything with a buffer (on a CUDA device: torch tensors or anything with a
__cuda_array_interface__), of float32 and contiguous.  It is not copied: the worker keeps a reference, reads gradients from
there and writes parameters to it, but only inside step(), or from push() to the end of wait().  Waits let other threads run,
and Ctrl-C ends them."""
import atexit
import ctypes
import os
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _abi, _errors, _memory
from ._errors import ArgumentError

# How long a wait may keep the interpreter from looking at signals.
_SLICE_S = 0.2
_DIMS_MAX = 4

_LEVELS = ("debug", "info", "warn", "error")


@dataclass
class Tensor:
    """A part of the model.  `shape` is needed when neither memory is given yet; the flags are those of gkps.h."""

    name: str
    params: Any = None
    gradient: Any = None
    shape: Optional[Sequence[int]] = None
    no_decay: bool = False
    frozen: bool = False
    dense: bool = False
    density: float = 0.0


class Start(NamedTuple):
    rank: int
    workers: int
    step: int  # the next one to compute; its version is in the parameters
    resumed: bool  # a former life of this rank goes on where it was
    lost: bool  # the job goes on, but what this rank had is gone
    finished: bool  # the last step of the setting `steps` is done
    left: bool  # a former life had left: the parameters are not here, and nothing is to be done


class Step(NamedTuple):
    version: int  # that is in the parameters now, and the next step to compute
    selected: int  # entries of the push
    lost: bool  # the job went on without this push
    finished: bool  # that was the last step of the setting `steps`


class Stats(NamedTuple):
    steps: int
    samples: int
    selected: int
    bytes_pushed: int
    bytes_pulled: int
    bytes_headers: int
    bytes_dense: int
    retries: int
    lost: int
    residuals_lost: int
    compute_s: float
    select_s: float
    push_s: float
    wait_s: float
    pull_s: float


def version() -> str:
    """Of the library."""
    return str(_abi.library().gkps_version().decode())


def cuda_devices() -> int:
    """How many CUDA devices the library can use; 0: it was built without CUDA, or there is no driver."""
    return int(_abi.library().gkps_cuda_devices())


def setting_text(key: str, value: Any) -> str:
    """A value as the library reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(setting_text(key, item) for item in value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (str, int, os.PathLike)):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    raise ArgumentError(f"setting {key}: is a {type(value).__name__}; expected a string, a number, a bool or a list of them")


def _settings(values: Dict[str, Any]) -> Tuple[Any, int]:
    given = {key.replace("_", "-"): setting_text(key, value) for key, value in values.items() if value is not None}
    list_ = (_abi.Setting * max(1, len(given)))()
    for place, (key, text) in zip(list_, given.items()):
        place.key = key.encode()
        place.value = text.encode()
    return list_, len(given)


def _dims(name: str, shape: Sequence[int]) -> Tuple[int, ...]:
    dims = tuple(int(extent) for extent in shape)
    if any(extent < 0 for extent in dims):
        raise ArgumentError(f"tensor {name}: the shape {dims} is none")
    if len(dims) <= _DIMS_MAX:
        return dims
    leading = 1
    for extent in dims[:len(dims) - _DIMS_MAX + 1]:
        leading *= extent
    return (leading, *dims[len(dims) - _DIMS_MAX + 1:])


def _stream_of(stream: Any) -> int:
    for name in ("cuda_stream", "ptr"):  # torch, cupy
        stream = getattr(stream, name, stream)
    if not isinstance(stream, int):
        raise ArgumentError(f"stream: is a {type(stream).__name__}; expected a number, or a stream of torch or cupy")
    return stream


class Worker:
    """Reads settings and GKPS_* variables; nothing is connected before start().

    Settings are keywords with underscores: Worker(density=0.001, state_dir="state").  A GKPS_* variable wins over a
    setting of the same name, unless `environment` is False.  `log` is called with level and line from threads of the
    library; without it lines go to standard error.  `ended` is called once, with exit code and words, when the worker
    cannot go on.  `device` is where the memory of the tensors lies ("cpu", "cuda:1", or a device of torch), `stream` the one in
    which the program computes there: a number, or a stream of torch or cupy; 0: the device's default stream.  `arithmetic` is
    what computes the gradients, for the launcher's summary: "numpy 1.24"."""

    def __init__(self, *, environment: bool = True, log: Optional[Callable[[str, str], None]] = None,
                 ended: Optional[Callable[[int, str], None]] = None, device: Any = "cpu", stream: Any = 0,
                 arithmetic: str = "Python", **settings: Any) -> None:
        self._handle: Optional[int] = None
        device = str(device)  # or one of torch
        self._device = "cuda:0" if device == "cuda" else device
        self._stream = stream  # the library has no more than its address
        _errors.hook.install()
        self._library = _abi.library()
        self._busy = threading.Lock()
        self._ending = threading.RLock()  # between stop() and the end of the handle
        self._closing = False  # the call that is under way closes on its way out
        self._names: List[str] = []
        self._bound: List[List[Optional[_memory.Memory]]] = []
        self._aux: Optional[_memory.Memory] = None
        self._started = self._left = self._over = False
        self._amid = False  # a push is on its way, and nobody waits
        self.rank = 0
        self.workers = 0
        self._log_function = _abi.LogFunction(0)
        if log is not None:
            self._log_function = _abi.LogFunction(
                lambda context, level, line: log(_LEVELS[level], line.decode("utf-8", "replace")))
        self._ended_function = _abi.EndedFunction(0)
        if ended is not None:
            self._ended_function = _abi.EndedFunction(
                lambda context, code, words: ended(code, words.decode("utf-8", "replace")))
        list_, count = _settings(settings)
        config = _abi.Config(size=ctypes.sizeof(_abi.Config), flags=0 if environment else _abi.NO_ENVIRONMENT,
                             settings=list_, settings_count=count, log=self._log_function, ended=self._ended_function,
                             device=device.encode(), stream=_stream_of(stream), arithmetic=arithmetic.encode())
        handle = ctypes.c_void_p()
        code = self._library.gkps_open(ctypes.byref(config), ctypes.byref(handle))
        if code:
            raise _errors.last_error(self._library, None, code)
        self._pid = os.getpid()
        self._handle = handle.value

    # How calls are made.

    @contextmanager
    def _use(self) -> Iterator[int]:
        if self.closed:
            raise ArgumentError("this worker is closed")
        if not self._busy.acquire(blocking=False):
            raise ArgumentError("another thread is in a call of this worker: one at a time")
        try:
            if self._handle is None:
                raise ArgumentError("this worker is closed")
            _errors.hook.uses_worker()
            yield self._handle
        finally:
            self._busy.release()
            if self._closing:
                self.close()

    def _check(self, code: int) -> None:
        if code == _abi.OK:
            return
        if code not in (_abi.E_ARGUMENT, _abi.E_TIMEOUT):
            self._over = True
        raise _errors.last_error(self._library, self._handle, code)

    @staticmethod
    def _until(timeout: Optional[float], first: Callable[[int], int], again: Callable[[int], int]) -> Tuple[int, bool]:
        """The code of first(milliseconds), or of the last again() after it; was there one?  Python looks at signals only
        between calls, and only in its main thread: there no call is long."""
        end = None if timeout is None else time.monotonic() + timeout
        slices = threading.current_thread() is threading.main_thread()
        call, repeated = first, False
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if slices:
                left = _SLICE_S if left is None else min(left, _SLICE_S)
            code = call(0 if left is None else max(1, round(left * 1000)))
            if code != _abi.E_TIMEOUT or (end is not None and time.monotonic() >= end):
                return code, repeated
            call, repeated = again, True

    # Before training.

    def _array(self, what: str, item: Any) -> _memory.Memory:
        return _memory.array(what, item, device=self._device)

    def tensors(self, tensors: Sequence[Union[Tensor, Tuple[str, Any, Any]]]) -> None:
        """The model: Tensor objects, or triples of name, parameters and gradient.  The same on all ranks."""
        items = [item if isinstance(item, Tensor) else Tensor(*item) for item in tensors]
        list_ = (_abi.Tensor * max(1, len(items)))()
        bound: List[List[Optional[_memory.Memory]]] = []
        alive: List[Any] = []
        for place, item in zip(list_, items):
            params = None if item.params is None else self._array(f"tensor {item.name}", item.params)
            gradient = None if item.gradient is None else self._array(f"gradient of tensor {item.name}", item.gradient)
            known = params or gradient
            if known is None and item.shape is None:
                raise ArgumentError(f"tensor {item.name}: neither memory nor a shape is given")
            shape = tuple(item.shape) if item.shape is not None else (known.shape if known else ())
            dims = _dims(item.name, shape)
            count = 1
            for extent in dims:
                count *= extent
            for memory, what in ((params, "parameters"), (gradient, "gradient")):
                if memory is not None and memory.size != count:
                    raise ArgumentError(f"tensor {item.name}: {what} of {memory.size} elements, shape {shape} has {count}")
            array = (ctypes.c_uint64 * max(1, len(dims)))(*dims)
            alive.append(array)
            place.size = ctypes.sizeof(_abi.Tensor)
            place.name = item.name.encode()
            place.dims = array
            place.dims_count = len(dims)
            place.flags = ((_abi.NO_DECAY if item.no_decay else 0) | (_abi.FROZEN if item.frozen else 0)
                           | (_abi.DENSE if item.dense else 0))
            place.density = item.density
            place.params = _memory.pointer(params)
            place.gradient = _memory.pointer(gradient)
            bound.append([params, gradient])
        with self._use() as handle:
            self._check(self._library.gkps_tensors(handle, list_, len(items)))
        self._names = [item.name for item in items]
        self._bound = bound

    def bind(self, which: Union[int, str], params: Any = None, gradient: Any = None) -> None:
        """Memory of a tensor, by its place or name, also in exchange for what was bound."""
        if isinstance(which, str):
            if which not in self._names:
                raise ArgumentError(f"no tensor of this worker is named {which}")
            which = self._names.index(which)
        if not 0 <= which < len(self._names):
            raise ArgumentError(f"tensor {which}: there are {len(self._names)}")
        name = self._names[which]
        new = [None if params is None else self._array(f"tensor {name}", params),
               None if gradient is None else self._array(f"gradient of tensor {name}", gradient)]
        for memory in new:
            if memory is not None:
                count = memory.size
                break
        else:
            return
        if new[0] is not None and new[1] is not None and new[0].size != new[1].size:
            raise ArgumentError(f"tensor {name}: {new[0].size} parameters, but a gradient of {new[1].size}")
        with self._use() as handle:
            self._check(self._library.gkps_bind(handle, which, _memory.pointer(new[0]), _memory.pointer(new[1]), count))
        for side, memory in enumerate(new):
            if memory is not None:
                self._bound[which][side] = memory

    def bind_known(self, which: int, params: Optional[int], gradient: Optional[int], count: int) -> None:
        """bind() by address, for a caller that has checked the memory and keeps it while a call uses it."""
        with self._use() as handle:
            self._check(self._library.gkps_bind(handle, which, params, gradient, count))

    def aux(self, memory: Any) -> None:
        """Bytes that survive together with the step (a bytearray, a tensor, an array), once, before start()."""
        held = _memory.bytes_of("aux", memory)
        with self._use() as handle:
            self._check(self._library.gkps_aux(handle, held.address, held.size))
        self._aux = held

    def start(self, timeout: Optional[float] = None) -> Start:
        """Connect, join, and fill the parameters.  Blocks until all ranks and servers are there; `timeout` in seconds."""
        record = _abi.Start(size=ctypes.sizeof(_abi.Start))
        with self._use() as handle:
            def call(milliseconds: int) -> int:
                record.timeout_ms = milliseconds
                return int(self._library.gkps_start(handle, ctypes.byref(record)))
            code, _ = self._until(timeout, call, call)
            self._check(code)
        self._started = True
        _started_workers.add(self)
        self.rank, self.workers = record.rank, record.workers
        self._left = bool(record.left)
        return Start(record.rank, record.workers, record.step, bool(record.resumed), bool(record.lost),
                     bool(record.finished), bool(record.left))

    # Training.

    @staticmethod
    def _record(samples: int, lr: Optional[float], loss: Optional[float], sum: bool, skip: bool) -> _abi.Step:
        flags = ((_abi.SUM if sum else 0) | (_abi.SKIP if skip else 0) | (_abi.LR if lr is not None else 0)
                 | (_abi.LOSS if loss is not None else 0))
        if samples < 0 or samples >= 1 << 64:
            raise ArgumentError(f"samples: {samples} is no number of samples")
        return _abi.Step(size=ctypes.sizeof(_abi.Step), flags=flags, samples=samples, lr=lr or 0.0, loss=loss or 0.0)

    def _wait(self, handle: int, record: _abi.Step, timeout: Optional[float], first: Any) -> bool:
        """Until the step is complete; True: not by the first call, so that what has come must be fetched."""
        def call(function: Any) -> Callable[[int], int]:
            def with_time(milliseconds: int) -> int:
                record.timeout_ms = milliseconds
                return int(function(handle, ctypes.byref(record)))
            return with_time
        try:
            code, repeated = self._until(timeout, call(first), call(self._library.gkps_wait))
        except BaseException:
            self._amid = True
            raise
        if code != _abi.E_ARGUMENT:
            self._amid = code == _abi.E_TIMEOUT
        self._check(code)
        return repeated

    @staticmethod
    def _result(record: _abi.Step) -> Step:
        return Step(record.version, record.selected, bool(record.lost), bool(record.finished))

    def step(self, samples: int = 1, *, lr: Optional[float] = None, loss: Optional[float] = None, sum: bool = False,
             skip: bool = False, timeout: Optional[float] = None) -> Step:
        """Push the gradient of a batch of `samples`, wait, and bring the next version into the parameters.

        The gradient is the mean over the samples, with `sum` their sum; with `skip` there is none in this step.  `lr`: a
        learning rate instead of that of the servers, the same on all ranks.  `loss`: for the launcher, as a mean.  After
        Timeout or KeyboardInterrupt the push is on its way: go on with wait() and pull()."""
        record = self._record(samples, lr, loss, sum, skip)
        with self._use() as handle:
            if self._wait(handle, record, timeout, self._library.gkps_step):
                self._check(self._library.gkps_pull(handle))
        return self._result(record)

    def push(self, samples: int = 1, *, lr: Optional[float] = None, loss: Optional[float] = None, sum: bool = False,
             skip: bool = False) -> None:
        """Begin a step.  The gradient is read until wait() returns."""
        record = self._record(samples, lr, loss, sum, skip)
        with self._use() as handle:
            self._check(self._library.gkps_push(handle, ctypes.byref(record)))
            self._amid = True

    def push_sparse(self, selection: Sequence[Optional[Tuple[Any, Any]]], samples: int = 1, *, lr: Optional[float] = None,
                    loss: Optional[float] = None, skip: bool = False) -> None:
        """Begin a step with a selection of one's own: for each tensor a pair of indices (rising, uint32 or int32) and
        values (float32, sums over the samples), or None.  What is not pushed is the caller's to keep."""
        if len(selection) != len(self._names):
            raise ArgumentError(f"{len(selection)} selections for {len(self._names)} tensors")
        record = self._record(samples, lr, loss, False, skip)
        list_ = (_abi.Sparse * max(1, len(selection)))()
        alive = []
        for place, name, pair in zip(list_, self._names, selection):
            place.size = ctypes.sizeof(_abi.Sparse)
            if pair is None:
                continue
            indices = _memory.array(f"indices of tensor {name}", pair[0], ("uint32", "int32"), writable=False)
            values = _memory.array(f"values of tensor {name}", pair[1], writable=False)
            if indices.size != values.size:
                raise ArgumentError(f"tensor {name}: {indices.size} indices, but {values.size} values")
            alive.append((indices, values))
            if indices.size:
                place.indices, place.values, place.count = indices.address, values.address, indices.size
        with self._use() as handle:
            self._check(self._library.gkps_push_sparse(handle, ctypes.byref(record), list_))
            self._amid = True

    def wait(self, timeout: Optional[float] = None) -> Step:
        """Until the push that was begun is decided for good and the next version has arrived."""
        record = _abi.Step(size=ctypes.sizeof(_abi.Step))
        with self._use() as handle:
            self._wait(handle, record, timeout, self._library.gkps_wait)
        return self._result(record)

    def pull(self) -> None:
        """What wait() has brought, into the parameters; into the gradients with optimizer `none`."""
        with self._use() as handle:
            self._check(self._library.gkps_pull(handle))

    # The rest.

    def stats(self) -> Stats:
        record = _abi.Stats(size=ctypes.sizeof(_abi.Stats))
        with self._use() as handle:
            self._check(self._library.gkps_stats(handle, ctypes.byref(record)))
        return Stats(*(getattr(record, name) for name in Stats._fields))

    def report(self, accuracy: Optional[float] = None, loss: Optional[float] = None) -> None:
        """Accuracy (share of 1) and loss on held-out data at the present version, for the summary of `gkps run`."""
        unknown = float("nan")
        if accuracy is not None and (accuracy < 0 or accuracy > 1):
            raise ArgumentError(f"accuracy: {accuracy} is no share of 1")
        with self._use() as handle:
            self._check(self._library.gkps_report(handle, unknown if accuracy is None else accuracy,
                                                  unknown if loss is None else loss))

    def note(self, words: str) -> None:
        """One line for the launcher's output."""
        with self._use() as handle:
            self._check(self._library.gkps_note(handle, words.encode()))

    def stop(self, exit_code: int = 69) -> None:
        """Every wait, under way or to come, fails with StoppedError.  From any thread."""
        with self._ending:
            if self._handle is not None:
                self._library.gkps_stop(self._handle, exit_code)

    def fail(self, words: str, exit_code: int = 1) -> None:
        """This program cannot go on, for a reason of its own: words and exit code go to the launcher and the log."""
        with self._use() as handle:
            self._over = True
            if self._library.gkps_fail(handle, exit_code, words.encode("utf-8", "replace")) == _abi.E_ARGUMENT:
                self._library.gkps_stop(handle, exit_code)  # amid a step

    def leave(self, timeout: Optional[float] = None) -> None:
        """No more pushes from this rank: the others go on without it, at once.  Waits until every server knows; before, for the
        step that Ctrl-C or a timeout has left under way."""
        if self._amid:
            try:
                self.wait(timeout)
            except ArgumentError:  # it had come to its end
                self._amid = False
        with self._use() as handle:
            def call(milliseconds: int) -> int:
                return int(self._library.gkps_leave(handle, milliseconds))
            code, _ = self._until(timeout, call, call)
            self._check(code)
        self._left = True

    def close(self) -> None:
        """Ends threads and connections.  Without leave() before it this rank is missed: the others wait for its next
        life.  From another thread, or a signal handler, it ends the call that is under way, as stop() does."""
        if self._handle is None:
            return
        if self._pid != os.getpid():  # the thread of that call is not here
            self._free()
            return
        self._closing = True
        if not self._busy.acquire(blocking=False):
            self.stop()
            if not self._busy.acquire(blocking=False):
                return
        try:
            self._free()
        finally:
            self._busy.release()

    def _free(self) -> None:
        with self._ending:
            handle, self._handle = self._handle, None
        if handle is not None:
            _started_workers.discard(self)
            self._library.gkps_close(handle)
            self._bound = []
            self._aux = None

    @property
    def closed(self) -> bool:
        return self._handle is None or self._closing

    @property
    def usable(self) -> bool:
        """Started, and neither left, closed nor ended by an error."""
        return not self.closed and self._started and not (self._left or self._over)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._end(error)

    def _end(self, error: Optional[BaseException]) -> None:
        """Close; before, leave when the training has come to its end, or say why it has not."""
        try:
            if self.usable and error is None:
                self.leave()
            elif error is not None and not (self.closed or self._left or self._over):
                self.fail(_errors.words_of(error), _errors.exit_code_of(error))
        finally:
            self.close()

    def __del__(self) -> None:  # of one that was not started
        if getattr(self, "_handle", None) is not None:
            self.close()


# They live until they are closed: a worker of which the script has let go, say at the end of its main(), must leave.
_started_workers: Set["Worker"] = set()


def _close_all() -> None:
    """At the end of Python: workers whose script has come to its end leave; those of one that has failed do not, and are
    waited for."""
    failed = False
    for worker in list(_started_workers):
        failed = failed or (worker._pid == os.getpid() and worker.usable)
        if worker._pid != os.getpid():
            worker.close()
            continue
        try:
            worker._end(_errors.hook.failure())
        except _errors.Error as error:  # Python would end with 0
            give_up(error)
    ended = _errors.hook.thread_error
    if failed and ended is not None and ended is _errors.hook.failure():  # and here too
        sys.stdout.flush()
        os._exit(_errors.exit_code_of(ended))


def give_up(error: _errors.Error) -> None:
    """End the process, from a place where an exception would be only printed."""
    print(f"gkps: {error}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(error.exit_code)


atexit.register(_close_all)
