"""gkps.torch.Optimizer: a torch optimizer whose step() is one step of a job.

It wraps an optimizer of torch, shares its param groups (so that learning-rate schedulers and GradScaler see one optimizer),
and replaces its step(): the gradient goes to the servers, and what all workers made of it comes back into the parameters.
_plan.py decides whether the servers or every worker run the arithmetic."""
import atexit
import math
import os
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Optional, Set, Tuple, Union

import torch

from .. import _errors
from .._errors import ArgumentError, StateError
from ..worker import Start, Stats, Worker, cuda_devices, give_up
from . import _kept, _plan
from ._slots import Slot, device_kept

NamedParams = Iterable[Tuple[str, torch.Tensor]]


def _named(model: Union[torch.nn.Module, NamedParams]) -> Tuple[List[Tuple[str, torch.Tensor]], Optional[torch.nn.Module]]:
    if isinstance(model, torch.nn.Module):
        return list(model.named_parameters()), model
    pairs = list(model)
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ArgumentError("expected a module, or pairs of name and parameter (model.named_parameters())")
    return [(name, param) for name, param in pairs], None


def _device_of(named: List[Tuple[str, torch.Tensor]], settings: Dict[str, Any]) -> torch.device:
    """Where the library works: with the parameters, if they are all on one device that it can use."""
    devices = {param.device for _, param in named}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    wish = os.environ.get("GKPS_BACKEND") or str(settings.get("backend") or "auto")
    if device.type == "cuda" and wish in ("auto", "cuda", str(device)) and (device.index or 0) < cuda_devices():
        return device
    return torch.device("cpu")


def _calls_on(device: torch.device) -> ContextManager[Any]:
    """Around calls of the library: what the present stream has begun is done, and the current device is afterwards what it
    was before."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return device_kept(device)


class Optimizer(torch.optim.Optimizer):
    """Train `model` with all workers of a job.

    model        the module, or its named_parameters(): all of the model, also what the optimizer does not train
    inner        any optimizer of torch over (some of) these parameters
    batch_size   samples of a step, when step() is not told; 1: every worker counts the same
    loss_is_sum  the loss is a sum over the samples, not their mean
    local_steps  the optimizer takes so many steps in the worker before the change goes to the servers
    aux_bytes    room for what keep() and `user` hold; used only with a state directory
    settings     of the library: density=0.001, state_dir=..., see docs/library.md; GKPS_* variables win over them

    After it was made the parameters are those of all workers.  `rank` and `workers` say which part of the data is ours,
    `start_step` is the next step to compute, `resumed` says that a former life of this rank goes on here, and `left_before`
    that one had come to its end: then there is nothing to do, and the parameters are not here.  `finished` says that the
    last step of the setting `steps` is done."""

    # GradScaler hands its findings over and leaves it to step() what to do about an overflow.
    _step_supports_amp_scaling = True

    def __init__(self, model: Union[torch.nn.Module, NamedParams], inner: torch.optim.Optimizer, /, *, batch_size: int = 1,
                 loss_is_sum: bool = False, local_steps: Optional[int] = None, aux_bytes: int = 65536, **settings: Any) -> None:
        if not isinstance(inner, torch.optim.Optimizer):
            raise ArgumentError(f"expected an optimizer of torch, not a {type(inner).__name__}")
        if isinstance(inner, torch.optim.LBFGS):
            raise ArgumentError("LBFGS computes several gradients a step, and a step of a job has one")
        if isinstance(inner, Optimizer):
            raise ArgumentError("this optimizer is wrapped already")
        if local_steps is not None and local_steps < 1:
            raise ArgumentError(f"local_steps is {local_steps}; expected 1 or more")
        if any(other._pid == os.getpid() and not other.worker.closed for other in _started_optimizers):
            raise ArgumentError("this process has a gkps.torch.Optimizer already, and is one rank of one job: close() it before, or "
                                "give both parts of the model to one")
        named, self.module = _named(model)
        super().__init__([dict(group) for group in inner.param_groups], dict(inner.defaults))
        self.inner = inner
        self._share()
        self.batch_size = batch_size
        self.user: Dict[str, Any] = {}
        self._sum = loss_is_sum
        self._local_steps = local_steps
        self._plan = _plan.make(inner, settings, local_steps)
        self._fixed_rate = local_steps is not None or self._plan.local or bool(_plan.rates_of_launch(settings))
        self._objects: Dict[str, Any] = {}
        self._saved: Dict[str, Any] = {}
        self._done = 0  # local steps since the last exchange
        self._samples = 0
        self._loss = 0.0
        self._left = False
        self._pid = os.getpid()
        self._device = _device_of(named, settings)
        self._slots = self._make_slots(named, self._device)
        self.worker = Worker(device=str(self._device), arithmetic=f"torch {torch.__version__}", **{**self._plan.settings, **settings})
        try:
            self._begin(bool(settings.get("state_dir") or os.environ.get("GKPS_STATE_DIR")), aux_bytes)
        except BaseException as error:
            self.worker.__exit__(type(error), error, None)
            raise
        _started_optimizers.add(self)

    # The start.

    def _share(self) -> None:
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state
        self.defaults = self.inner.defaults

    def _make_slots(self, named: List[Tuple[str, torch.Tensor]], device: torch.device) -> List[Slot]:
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        missing = len(mine - {id(p) for _, p in named})
        if missing:
            raise ArgumentError(f"{missing} parameters of the optimizer are none of the model's")
        slots: List[Slot] = []
        names: Dict[int, str] = {}
        for name, param in named:
            if names.setdefault(id(param), name) != name:
                raise ArgumentError(f"parameter {name} is there as {names[id(param)]} already: give named_parameters() that have each "
                                    "once")
            if param.numel() == 0:
                continue
            trained = param.requires_grad and id(param) in mine
            decays = id(param) not in self._plan.without_decay
            slots.append(Slot(len(slots), name, param, trained, decays, self._local_steps is not None, device))
            slots[-1].thaws = not trained and id(param) in mine
        if not any(slot.trained for slot in slots):
            raise ArgumentError("no parameter of the optimizer requires a gradient")
        return slots

    def _buffers(self) -> List[Tuple[str, torch.Tensor]]:
        return list(self.module.named_buffers()) if self.module is not None else []

    def _begin(self, has_state: bool, room: int) -> None:
        self.worker.tensors([slot.declare() for slot in self._slots])
        self._region: Optional[_kept.Region] = None
        if has_state:
            keeps = self._plan.local or self._local_steps is not None
            self._region = _kept.Region(_kept.capacity_for(self._buffers(), [s.param for s in self._slots], keeps, room))
            self.worker.aux(self._region.memory)
        if self._plan.local:
            # On a resume the mean gradient of the last step comes back here.
            for slot in self._slots:
                if slot.trained:
                    slot.bind(self.worker, slot.own_gradient())
        with _calls_on(self._device):
            started: Start = self.worker.start()
        self.rank, self.workers = started.rank, started.workers
        self.resumed, self.left_before, self.finished = started.resumed, started.left, started.finished
        self._version = started.step
        with torch.no_grad():
            for slot in self._slots:
                slot.give_values()
            self._resume(started)
        for slot in self._slots:
            slot.own = None
        self.start_step = self._version * (self._local_steps or 1)
        if self.rank == 0:
            self.worker.note(self._plan.words)

    def _resume(self, started: Start) -> None:
        content = self._region.read() if self._region is not None and started.resumed and not started.left else None
        if content is None:
            if self._plan.local and started.step > 0 and not started.left:
                raise StateError(
                    f"rank {started.rank} begins at step {started.step} without its state, and {type(self.inner).__name__} runs "
                    "in the workers: what its parameters have become is known to none of the servers.  Start the job with "
                    "--state-dir, or with an optimizer that the servers run (SGD, AdamW)")
            return
        self._saved = content.get("objects", {})
        self.user = content.get("user", {})
        buffers = dict(self._buffers())
        for name, value in content.get("buffers", {}).items():
            if name in buffers:
                buffers[name].copy_(value)
        if "inner" in content:
            self.inner.load_state_dict(content["inner"])
            self._share()
        if self._plan.local:
            for slot in self._slots:
                if slot.name in content["params"]:
                    slot.param.copy_(content["params"][slot.name])
            if started.step > 0:
                self._step_with_the_last_mean()
        _kept.set_random_states(content["random"])

    # Training.

    def _skip_of_scaler(self, amp: Dict[str, Any]) -> bool:
        """What GradScaler has found; gradients are unscaled here unless the script did it before."""
        scaler = amp.pop("grad_scaler", None)  # torch before 2.0
        if amp:
            raise TypeError(f"step() got an unexpected argument '{next(iter(amp))}'")
        if scaler is not None:
            state = scaler._per_optimizer_states[id(self)]
            if state["stage"].name == "READY":
                scaler.unscale_(self)
            return any(bool(found.item()) for found in state["found_inf_per_device"].values())
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is not None and bool(found):
            return True
        if scale is not None:
            inverse = scale.double().reciprocal().float()
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        param.grad.mul_(inverse.to(param.grad.device))
        return False

    def _rate(self) -> Optional[float]:
        """The learning rate for the servers; None: theirs.  What else they were told must be as it was."""
        if self._plan.hyper:
            for group in self.param_groups:
                for key, value in _plan.hyper_of(group).items():
                    if self._plan.hyper.get(key, value) != value:
                        raise ArgumentError(
                            f"{key} is {value} now, and the servers run with {self._plan.hyper[key]}: only the learning rate may "
                            "change (schedulers: cycle_momentum=False), or give gkps.torch.Optimizer optimizer='none'")
        now = _plan.decays_of(self)
        if self._plan.hyper and now != self._plan.decays:
            raise ArgumentError(
                f"weight_decay of the param groups is {list(now)} now, and the servers run with {list(self._plan.decays)}: only the "
                "learning rate may change, or give gkps.torch.Optimizer optimizer='none'")
        return None if self._fixed_rate else _plan.lr_of(self)

    def _check_parts(self) -> None:
        """What is trained is what was trained at the start: the servers have been told."""
        for slot in self._slots:
            if slot.trained and not slot.param.requires_grad:
                raise ArgumentError(f"parameter {slot.name} was trained when gkps.torch.Optimizer was made, and is frozen now: the "
                                    "servers would move it on; freeze it before, or begin another job with this model")
            if slot.thaws and slot.param.requires_grad and slot.param.grad is not None:
                raise ArgumentError(f"parameter {slot.name} was frozen when gkps.torch.Optimizer was made, and has a gradient now: "
                                    "the servers know it as fixed")

    def _keep(self) -> None:
        """Into the region, what belongs to the push that comes now."""
        if self._region is None:
            return
        content: Dict[str, Any] = {
            "random": _kept.random_states(), "buffers": dict(self._buffers()), "user": self.user,
            "objects": {**self._saved, **{name: thing.state_dict() for name, thing in self._objects.items()}},
        }
        if self._plan.local or self._local_steps is not None:
            content["inner"] = self.inner.state_dict()
        if self._plan.local:
            content["params"] = {slot.name: slot.param for slot in self._slots}
        self._region.write(content)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None, *, samples: Optional[int] = None, loss: Any = None,
             skip: bool = False, **amp: Any) -> Any:
        """One step of the job with the gradients in .grad: push, wait, and the next version is in the parameters.

        samples: of this batch (of all batches, when gradients were accumulated), by which the workers are weighted; loss:
        their mean loss, for the launcher; skip: this worker has no gradient for this step.  GradScaler.step() works as
        with any optimizer."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
            loss = value if loss is None else loss
        skip = self._skip_of_scaler(amp) or skip
        if self._left or self.left_before:
            raise ArgumentError("this rank has left the job: no step can follow" if self._left else
                                "a former life of this rank had left the job: there is nothing to do (left_before)")
        samples = self.batch_size if samples is None else int(samples)
        loss = None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        if self._local_steps is not None:
            self._step_apart(samples, loss, skip)
        else:
            self._exchange(samples, loss, skip)
        return value

    def _exchange(self, samples: int, loss: Optional[float], skip: bool) -> None:
        rate = self._rate()
        self._check_parts()
        for slot in self._slots:
            if slot.trained and (self._plan.local or not skip):
                slot.take_gradient(self.worker)
            else:
                slot.follow(self.worker)
        self._keep()
        self._push(samples, rate, loss, skip)
        if self._plan.local:
            for slot in self._slots:
                if slot.trained:
                    slot.give_gradient()
            self._step_locally()
        else:
            for slot in self._slots:
                slot.give_values()

    def _push(self, samples: int, rate: Optional[float], loss: Optional[float], skip: bool) -> None:
        if loss is not None and not math.isfinite(loss):
            loss = None
        with _calls_on(self._device):
            result = self.worker.step(samples, lr=rate, loss=loss, sum=self._sum and not self._local_steps, skip=skip)
        self._version, self.finished = result.version, result.finished

    def _step_with_the_last_mean(self) -> None:
        """What survived is from before the mean gradient of the last step was there; now it is, in memory of ours."""
        for slot in self._slots:
            if slot.trained:
                slot.give_gradient()
        self._step_locally()
        for slot in self._slots:
            if slot.trained:
                slot.param.grad = None

    def _step_locally(self) -> None:
        """The optimizer's own step on the mean gradient, unless nobody had one: then it would coast on its momentum."""
        if any(slot.param.grad is not None and bool(slot.param.grad.any()) for slot in self._slots if slot.trained):
            self.inner.step()

    # Local steps.

    def _step_apart(self, samples: int, loss: Optional[float], skip: bool) -> None:
        if samples < (0 if skip else 1):
            raise ArgumentError(f"samples is {samples}; expected 1 or more, or skip=True")
        self._check_parts()
        if not skip:
            self.inner.step()
        self._done += 1
        self._samples += samples
        self._loss = math.nan if loss is None else self._loss + loss * samples
        if self._done == self._local_steps:
            self._meet()

    def _meet(self) -> None:
        """The change since the last version goes out as a gradient; the mean of all is in the next version."""
        for slot in self._slots:
            if slot.trained:
                slot.take_change(self.worker)
        samples, loss = self._samples, self._loss / self._samples if self._samples else math.nan
        self._done = self._samples = 0
        self._loss = 0.0
        self._keep()
        self._push(samples, None, None if math.isnan(loss) else loss, samples == 0)
        for slot in self._slots:
            slot.give_values()

    # What survives.

    def keep(self, **objects: Any) -> None:
        """Objects with state_dict() and load_state_dict() whose state survives with the step: as it was when step() was
        called the last time.  In a life that goes on they are given back what they had, here and now.  `user` is a
        dictionary for everything else."""
        for name, thing in objects.items():
            self._objects[name] = thing
            if name in self._saved:
                thing.load_state_dict(self._saved.pop(name))

    def state_dict(self) -> Dict[str, Any]:
        """That of the wrapped optimizer.  When the servers run it, what it has beside the parameters is there."""
        return dict(self.inner.state_dict())

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Param groups, and the state of an optimizer that runs locally; the same on all ranks."""
        if state_dict.get("state") and not self._plan.local and self._local_steps is None:
            raise ArgumentError("this state has what the servers keep (momentum), and they cannot be given it: go on from the "
                                "job's --state-dir, or give gkps.torch.Optimizer optimizer='none'")
        self.inner.load_state_dict(state_dict)
        self._share()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if hasattr(self, "inner"):
            raise ArgumentError("the job knows all parameters from its start: add param groups before it")
        super().add_param_group(param_group)

    # The rest.

    @property
    def version(self) -> int:
        """Of the model that is in the parameters: the number of exchanges so far."""
        return self._version

    @property
    def runs_locally(self) -> bool:
        return self._plan.local

    def report(self, accuracy: Optional[float] = None, loss: Optional[float] = None) -> None:
        """What was measured on held-out data, for the summary of `gkps run`."""
        if self.left_before:
            return  # the parameters are not here
        self.worker.report(None if accuracy is None else float(accuracy), None if loss is None else float(loss))

    def note(self, words: str) -> None:
        """One line for the launcher's output."""
        self.worker.note(words)

    def stats(self) -> Stats:
        return self.worker.stats()

    def leave(self) -> None:
        """This rank has no more data: the others go on without it.  At the end of the script that happens by itself."""
        if not self.worker.usable:
            return
        if self._done:
            with torch.no_grad():
                self._meet()
        self._left = True
        with device_kept(self._device):
            self.worker.leave()

    def close(self) -> None:
        _started_optimizers.discard(self)
        with device_kept(self._device):
            self.worker.close()

    def __enter__(self) -> "Optimizer":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.leave()
        _started_optimizers.discard(self)
        with device_kept(self._device):
            self.worker.__exit__(kind, error, trace)

    def __getstate__(self) -> Any:
        raise TypeError("gkps.torch.Optimizer cannot be pickled: it belongs to this process; state_dict() can")


_started_optimizers: Set[Optimizer] = set()


def _leave_all() -> None:
    """Before gkps.worker closes what is open: local steps that were not sent yet go out."""
    for optimizer in list(_started_optimizers):
        if optimizer._pid == os.getpid() and _errors.hook.failure() is None and optimizer.worker.usable:
            try:
                optimizer.leave()
            except _errors.Error as error:
                give_up(error)


atexit.register(_leave_all)
