"""gkps: train any model on many machines, by sparse gradients.

`gkps.Worker` has the calls of the C library; `gkps.torch.Optimizer` (import gkps.torch) makes them for a PyTorch script."""
from ._abi import LibraryNotFound
from ._errors import (ArgumentError, ConfigError, DataError, Error, FencedError, ForkedError, InternalError, PeerError,
                      RefusedError, RetryError, StateError, StoppedError, Timeout)
from ._version import __version__
from .worker import Start, Stats, Step, Tensor, Worker, cuda_devices, version

__all__ = [
    "ArgumentError", "ConfigError", "DataError", "Error", "FencedError", "ForkedError", "InternalError", "LibraryNotFound",
    "PeerError", "RefusedError", "RetryError", "Start", "StateError", "Stats", "Step", "StoppedError", "Tensor", "Timeout",
    "Worker", "__version__", "cuda_devices", "version",
]
