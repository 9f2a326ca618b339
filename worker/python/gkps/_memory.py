"""Where the numbers of an array lie: torch tensors, numpy arrays, whatever has a buffer (array.array, bytearray, memoryview),
and on a CUDA device torch tensors and whatever has a __cuda_array_interface__.  Neither torch nor numpy is imported;
nothing is copied; what does not fit is one clear error."""
import ctypes
import sys
from typing import Any, NamedTuple, Optional, Tuple

from ._errors import ArgumentError


class Memory(NamedTuple):
    address: int
    shape: Tuple[int, ...]
    size: int
    keep: Any  # what must live as long as the address is used


_NAMES = {
    "float32": ("<f4", "torch.float32", "f"),
    # torch before 2.3 has no unsigned integers; the bits of an index are the same.
    "uint32": ("<u4", "torch.uint32", "I"),
    "int32": ("<i4", "torch.int32", "i"),
}


def _product(shape: Tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _torch(what: str, tensor: Any, kinds: Tuple[str, ...], device: str) -> Memory:
    place = "cpu" if tensor.device.type == "cpu" else f"{tensor.device.type}:{tensor.device.index or 0}"
    if place != device:
        raise ArgumentError(f"{what}: lies on device {tensor.device}; expected {device}")
    if str(tensor.layout) != "torch.strided":
        raise ArgumentError(f"{what}: has layout {tensor.layout}; expected a dense tensor")
    if str(tensor.dtype) not in [_NAMES[kind][1] for kind in kinds]:
        raise ArgumentError(f"{what}: has type {tensor.dtype}; expected {' or '.join(_NAMES[k][1] for k in kinds)}")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{what}: is not contiguous (strides {tuple(tensor.stride())}): use .contiguous()")
    return Memory(tensor.data_ptr(), tuple(tensor.shape), tensor.numel(), tensor)


def _is_contiguous(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]]) -> bool:
    """Strides are in bytes; None says that it is.  Those of a dimension of one element mean nothing."""
    expected = 4
    for extent, stride in zip(reversed(shape), reversed(strides or ())):
        if extent != 1 and stride != expected:
            return _product(shape) == 0
        expected *= extent
    return True


def _strided(what: str, array: Any, interface: Any, kinds: Tuple[str, ...], writable: bool) -> Memory:
    """numpy's protocol and CUDA's, which say the same."""
    if interface["typestr"] not in [_NAMES[kind][0] for kind in kinds]:
        raise ArgumentError(f"{what}: has type {getattr(array, 'dtype', interface['typestr'])}; expected {' or '.join(kinds)}")
    shape = tuple(interface["shape"])
    if not _is_contiguous(shape, interface.get("strides")):
        raise ArgumentError(f"{what}: is not contiguous (strides {interface['strides']} bytes): use ascontiguousarray()")
    address, read_only = interface["data"]
    if read_only and writable:
        raise ArgumentError(f"{what}: is read-only")
    return Memory(address, shape, _product(shape), array)


def _address_of(view: memoryview) -> Tuple[int, Any]:
    """The address of a writable buffer, and the object that keeps it there."""
    if view.nbytes == 0:
        return 0, view
    keep = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(keep), keep


def _buffer(what: str, item: Any, kinds: Tuple[str, ...]) -> Memory:
    try:
        view = memoryview(item)
    except TypeError:
        raise ArgumentError(
            f"{what}: is a {type(item).__name__}; expected a torch tensor, a numpy array or a buffer") from None
    formats = [_NAMES[kind][2] for kind in kinds] + ["<" + _NAMES[kind][2] for kind in kinds]
    if view.format not in formats:
        raise ArgumentError(f"{what}: has items of format '{view.format}'; expected {' or '.join(kinds)}")
    if not view.c_contiguous:
        raise ArgumentError(f"{what}: is not contiguous")
    if view.readonly:
        raise ArgumentError(f"{what}: is read-only")
    address, keep = _address_of(view)
    shape = tuple(view.shape or ())
    return Memory(address, shape, _product(shape), keep)


def array(what: str, item: Any, kinds: Tuple[str, ...] = ("float32",), writable: bool = True, device: str = "cpu") -> Memory:
    """The memory of an array of numbers on this device; `what` begins the words of an error."""
    if sys.byteorder != "little":
        raise ArgumentError(f"{what}: this machine is not little-endian")
    if hasattr(item, "data_ptr") and hasattr(item, "is_contiguous"):
        return _torch(what, item, kinds, device)
    if device != "cpu":
        if not hasattr(item, "__cuda_array_interface__"):
            raise ArgumentError(f"{what}: is a {type(item).__name__}; expected an array on {device}")
        return _strided(what, item, item.__cuda_array_interface__, kinds, writable)
    if hasattr(item, "__array_interface__"):
        return _strided(what, item, item.__array_interface__, kinds, writable)
    return _buffer(what, item, kinds)


def bytes_of(what: str, item: Any) -> Memory:
    """The memory of anything contiguous and writable, whatever its items are."""
    if hasattr(item, "data_ptr") and hasattr(item, "is_contiguous"):
        if item.device.type != "cpu" or not item.is_contiguous():
            raise ArgumentError(f"{what}: expected a contiguous tensor on the cpu")
        size = item.numel() * item.element_size()
        return Memory(item.data_ptr(), (size,), size, item)
    try:
        view = memoryview(item)
    except TypeError:
        raise ArgumentError(f"{what}: is a {type(item).__name__}; expected a bytearray, a tensor or an array") from None
    if view.readonly:
        raise ArgumentError(f"{what}: is read-only")
    if not view.c_contiguous:
        raise ArgumentError(f"{what}: is not contiguous")
    address, keep = _address_of(view)
    return Memory(address, (view.nbytes,), view.nbytes, keep)


def pointer(memory: Optional[Memory]) -> Optional[int]:
    return memory.address if memory else None
