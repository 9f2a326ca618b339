"""What must survive together with the step, beside parameters and residual: one region of bytes, bound with aux().

It holds the length of a pickle and the pickle: random generators, buffers of the model, objects of the script, and what
the optimizer has when it runs locally.  The region has the same size in every life, so that it is fixed at the start."""
import io
import pickle
import random
import struct
import sys
from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch

from .._errors import ArgumentError

_LENGTH = struct.Struct("<Q")

# What is looked into for tensors; other kinds of dict (Counter, defaultdict) are pickled as they are.
_REBUILT = (dict, OrderedDict)


class Plain:
    """A tensor as bytes: pickles of tensors are slower, and differ between versions of torch."""

    def __init__(self, tensor: torch.Tensor) -> None:
        flat = tensor.detach().cpu().contiguous()
        self.dtype = str(flat.dtype).rpartition(".")[2]
        self.shape = tuple(flat.shape)
        self.bytes = bytes_of(flat)

    def tensor(self) -> torch.Tensor:
        made = torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        if made.numel():
            made.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(self.bytes), dtype=torch.uint8))
        return made


def bytes_of(tensor: torch.Tensor) -> bytes:
    stream = io.BytesIO(bytes(tensor.numel() * tensor.element_size()))
    if tensor.numel():
        view = torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)
        view.copy_(tensor.reshape(-1).view(torch.uint8))
        del view
    return stream.getvalue()


def packed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Plain(value)
    if type(value) in _REBUILT:
        return type(value)((key, packed(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(packed(item) for item in value)
    return value


def unpacked(value: Any) -> Any:
    if isinstance(value, Plain):
        return value.tensor()
    if type(value) in _REBUILT:
        return type(value)((key, unpacked(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(unpacked(item) for item in value)
    return value


def random_states() -> Dict[str, Any]:
    states: Dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def set_random_states(states: Dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    for device, state in enumerate(states.get("cuda", [])[:torch.cuda.device_count()]):  # this machine may have fewer
        torch.cuda.set_rng_state(state, device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])


class Region:
    def __init__(self, capacity: int) -> None:
        self.memory = bytearray(_LENGTH.size + capacity)

    def write(self, content: Dict[str, Any]) -> None:
        data = pickle.dumps(packed(content), protocol=4)
        room = len(self.memory) - _LENGTH.size
        if len(data) > room:
            sizes = sorted(((len(pickle.dumps(packed(value), protocol=4)), key) for key, value in content.items()), reverse=True)
            largest = ", ".join(f"{key} {size}" for size, key in sizes[:3])
            raise ArgumentError(
                f"what must survive has {len(data)} bytes ({largest}), and there is room for {room} since the start: give "
                f"gkps.torch.Optimizer aux_bytes={2 * len(data)}, and begin the job anew")
        self.memory[_LENGTH.size:_LENGTH.size + len(data)] = data
        _LENGTH.pack_into(self.memory, 0, len(data))

    def read(self) -> Optional[Dict[str, Any]]:
        (length,) = _LENGTH.unpack_from(self.memory, 0)
        if length == 0 or length > len(self.memory) - _LENGTH.size:
            return None
        content = unpacked(pickle.loads(self.memory[_LENGTH.size:_LENGTH.size + length]))
        return content if isinstance(content, dict) else None


def capacity_for(buffers: Iterable[Tuple[str, torch.Tensor]], parameters: List[torch.Tensor], local: bool, room: int) -> int:
    """Bytes for buffers, generators, and an optimizer that runs locally: parameters and up to three values beside each."""
    size = room + sum(b.numel() * b.element_size() + 256 for _, b in buffers)
    size += 16384  # random generators
    if local:
        size += sum(p.numel() * max(4, p.element_size()) * 4 + 1024 for p in parameters)
    return size
