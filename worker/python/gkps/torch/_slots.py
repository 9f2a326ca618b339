"""One tensor of the model: where the library reads its gradient and writes its parameters.

Where torch has float32, contiguous, on the device that the library works on, the library uses torch's own memory.
Everything else (bfloat16, channels_last, local steps, another device) has a float32 copy there."""
import contextlib
import hashlib
from typing import Any, ContextManager, Optional

import torch

from .._errors import ArgumentError
from ..worker import Tensor, Worker

_NAME_BYTES = 63


def short_name(name: str) -> str:
    """A name that the job's table of tensors can hold, as unique as the long one."""
    if len(name.encode()) <= _NAME_BYTES:
        return name
    mark = "~" + hashlib.sha256(name.encode()).hexdigest()[:16]
    return name.encode()[len(mark) - _NAME_BYTES:].decode("utf-8", "ignore") + mark


def device_kept(device: torch.device) -> ContextManager[Any]:
    """Around calls of a library that works there: the current device is afterwards what it was before."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def is_plain(tensor: torch.Tensor, device: torch.device) -> bool:
    return (tensor.layout == torch.strided and tensor.device == device and tensor.dtype == torch.float32
            and tensor.is_contiguous())


class Slot:
    def __init__(self, index: int, name: str, param: torch.Tensor, trained: bool, decays: bool, copied: bool,
                 device: torch.device) -> None:
        if not param.is_floating_point():
            raise ArgumentError(f"parameter {name} has type {param.dtype}; expected real numbers")
        self.index = index
        self.name = name
        self.param = param
        self.trained = trained
        self.thaws = False  # the optimizer has it, but it was frozen at the start
        self.decays = decays
        self.device = device
        self.copied = copied or not is_plain(param, device)
        self.values = torch.empty(param.shape, dtype=torch.float32, device=device) if self.copied else param.detach()
        self.own: Optional[torch.Tensor] = None  # gradient memory of ours
        self.bound_values = self.values.data_ptr()
        self.bound_gradient = 0
        if self.copied:
            self.values.copy_(param.detach())

    def declare(self) -> Tensor:
        return Tensor(short_name(self.name), params=self.values, no_decay=not self.decays, frozen=not self.trained)

    def own_gradient(self) -> torch.Tensor:
        if self.own is None:
            self.own = torch.zeros(self.param.shape, dtype=torch.float32, device=self.device)
        return self.own

    def _moved(self) -> Optional[torch.Tensor]:
        """The parameters, when they lie elsewhere by now."""
        if self.copied or self.param.data_ptr() == self.bound_values:
            return None
        now = self.param.detach()
        if not is_plain(now, self.device):
            raise ArgumentError(f"parameter {self.name} has become {now.dtype} on {now.device}, strides {now.stride()}")
        if now.numel() != self.values.numel():
            raise ArgumentError(f"parameter {self.name} had the shape {tuple(self.values.shape)} at the start, and has "
                                f"{tuple(now.shape)} now")
        return now

    def _tell(self, worker: Worker, values: Optional[torch.Tensor], gradient: Optional[int], count: int) -> None:
        with device_kept(self.device):
            worker.bind_known(self.index, None if values is None else values.data_ptr(), gradient, count)

    def follow(self, worker: Worker) -> None:
        """The next version goes to where the parameters are, also when there is no gradient."""
        values = self._moved()
        if values is not None:
            self._tell(worker, values, None, values.numel())
            self.values, self.bound_values = values, values.data_ptr()

    def bind(self, worker: Worker, gradient: torch.Tensor) -> None:
        """The library reads the gradient here; and the parameters may have moved."""
        values = self._moved()
        address = gradient.data_ptr()
        if values is None and address == self.bound_gradient:
            return
        self._tell(worker, values, address, gradient.numel())
        if values is not None:
            self.values, self.bound_values = values, values.data_ptr()
        self.bound_gradient = address

    def take_gradient(self, worker: Worker) -> None:
        """What backward() has left, or zeros when this part of the model had no part in the loss."""
        gradient = self.param.grad
        if gradient is not None and gradient.shape != self.values.shape:
            raise ArgumentError(f"parameter {self.name} had the shape {tuple(self.values.shape)} at the start, and its gradient "
                                f"has {tuple(gradient.shape)}")
        if gradient is not None and is_plain(gradient, self.device):
            self.bind(worker, gradient)
            return
        own = self.own_gradient()
        if gradient is None:
            own.zero_()
        else:
            own.copy_(gradient.to_dense() if gradient.layout != torch.strided else gradient)
        self.bind(worker, own)

    def take_change(self, worker: Worker) -> None:
        """What steps here have made of the version, as if it were a gradient."""
        change = self.own_gradient()
        change.copy_(self.values).sub_(self.param.detach().to(self.device, torch.float32))
        self.bind(worker, change)

    def give_gradient(self) -> None:
        """After a step with optimizer `none` the mean of all is where the gradient was read."""
        gradient = self.param.grad
        if gradient is not None and gradient.data_ptr() == self.bound_gradient:
            return
        assert self.own is not None
        if gradient is None and is_plain(self.param, self.device):
            self.param.grad = self.own
        elif gradient is None or gradient.layout != torch.strided:
            self.param.grad = torch.empty_like(self.param).copy_(self.own)
        else:
            gradient.copy_(self.own)

    def give_values(self) -> None:
        if self.copied:
            self.param.detach().copy_(self.values)
