"""Which torch optimizers the servers can run, and with which settings.

The arithmetic of the servers is that of torch up to the rounding: SGD, momentum, Nesterov, AdamW (and Adam, as long as
nothing decays).  One set of hyper-parameters holds for the model, except that weight decay may be off for some groups.
Everything else runs locally, on the mean of all gradients, and `words` say why."""
import os
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import torch

from .._errors import ArgumentError


class Plan(NamedTuple):
    local: bool  # every worker runs the optimizer on the mean gradient
    settings: Dict[str, Any]
    hyper: Dict[str, Any]  # what must stay as it is, because the servers were told
    decays: Tuple[float, ...]  # of the param groups, likewise
    without_decay: FrozenSet[int]  # ids of parameters that do not decay
    words: str


class _NotThere(Exception):
    """The servers have no such optimizer; the words say what is in the way."""


# torch's words for how a step is computed, not what it is.
_HOW = {"params", "param_names", "lr", "initial_lr", "weight_decay", "foreach", "fused", "capturable", "differentiable",
        "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def hyper_of(group: Dict[str, Any]) -> Dict[str, Any]:
    """What of a param group the servers must know, but for learning rate and decay."""
    return {key: tuple(map(_number, value)) if isinstance(value, (tuple, list)) else _number(value)
            for key, value in group.items() if key not in _HOW}


def lr_of(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate of all groups; ArgumentError when they differ."""
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1:
        raise ArgumentError(
            f"the param groups have different learning rates {sorted(rates)}, and the servers have one: give "
            "gkps.torch.Optimizer the setting optimizer='none', so that the optimizer runs locally")
    return rates.pop()


def _sgd(hyper: Dict[str, Any]) -> Tuple[str, Dict[str, Any]]:
    momentum = hyper.get("momentum", 0.0)
    if momentum == 0:
        return "sgd", {}
    if hyper.get("dampening", 0.0) != 0:
        raise _NotThere(f"dampening is {hyper['dampening']}")
    if not 0 < momentum < 1:
        raise _NotThere(f"momentum is {momentum}")
    return ("nesterov" if hyper.get("nesterov") else "momentum"), {"momentum": float(momentum)}


def _adamw(hyper: Dict[str, Any]) -> Tuple[str, Dict[str, Any]]:
    beta1, beta2 = hyper["betas"]
    if hyper.get("amsgrad"):
        raise _NotThere("amsgrad is on")
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise _NotThere(f"betas are {hyper['betas']}")
    if not 1e-30 <= hyper["eps"] <= 1:
        raise _NotThere(f"eps is {hyper['eps']}")
    return "adamw", {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(hyper["eps"])}


def decays_of(optimizer: torch.optim.Optimizer) -> Tuple[float, ...]:
    return tuple(float(_number(group.get("weight_decay", 0.0))) for group in optimizer.param_groups)


def _decay(optimizer: torch.optim.Optimizer) -> Tuple[float, FrozenSet[int]]:
    decays = set(decays_of(optimizer))
    most = max(decays)
    if not decays <= {0.0, most}:
        raise _NotThere(f"the param groups decay by {sorted(decays)}")
    if most == 0:
        return 0.0, frozenset()
    return most, frozenset(id(p) for group in optimizer.param_groups if float(_number(group["weight_decay"])) == 0
                           for p in group["params"])


def _on_servers(optimizer: torch.optim.Optimizer) -> Plan:
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise _NotThere("the servers do not know it")
    groups = optimizer.param_groups
    hyper = hyper_of(groups[0])
    if any(hyper_of(group) != hyper for group in groups):
        raise _NotThere("its param groups have different settings")
    if len({float(group["lr"]) for group in groups}) > 1:
        raise _NotThere("its param groups have different learning rates")
    if hyper.get("maximize"):
        raise _NotThere("maximize is on")
    if optimizer.state:
        raise _NotThere("it has a state already, and the servers begin without one")
    decay, without = _decay(optimizer)
    name, settings = _sgd(hyper) if kind is torch.optim.SGD else _adamw(hyper)
    if kind is torch.optim.Adam and decay != 0 and not hyper.get("decoupled_weight_decay"):
        raise _NotThere("its weight decay is not decoupled (AdamW)")
    settings = {"optimizer": name, "lr": lr_of(optimizer), "weight_decay": decay, **settings}
    told = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in settings.items()
                     if key not in ("optimizer", "lr") and value)
    words = f"the servers run {kind.__name__} ({name}{', ' + told if told else ''})"
    return Plan(False, settings, hyper, decays_of(optimizer), without, words)


def _locally(optimizer: torch.optim.Optimizer, why: str) -> Plan:
    words = f"{type(optimizer).__name__} runs in every worker, on the mean of all gradients: {why}"
    return Plan(True, {"optimizer": "none"}, {}, (), frozenset(), words)


def make(optimizer: torch.optim.Optimizer, given: Dict[str, Any], local_steps: Optional[int]) -> Plan:
    """`given`: the settings of the script, which are added by the caller; those of the launch win over both."""
    name = type(optimizer).__name__
    launched = os.environ.get("GKPS_OPTIMIZER") or given.get("optimizer")
    where = "GKPS_OPTIMIZER" if os.environ.get("GKPS_OPTIMIZER") else "the script"
    if local_steps is not None:
        if launched == "none":
            raise ArgumentError("local_steps needs an optimizer on the servers, for the mean of what the workers have done: "
                                f"{where} says none")
        settings: Dict[str, Any] = {} if launched else {"optimizer": "sgd", "lr": 1.0}
        words = (f"{name} runs in every worker; each {local_steps} steps the servers add the mean of what they have done "
                 f"({launched or 'sgd'})")
        return Plan(False, settings, {}, (), frozenset(), words)
    if launched == "none":
        return _locally(optimizer, f"{where} says so")
    try:
        plan = _on_servers(optimizer)
    except _NotThere as reason:
        if launched:
            return Plan(False, {}, {}, (), frozenset(), f"the servers run {launched}, as {where} says, not {name}")
        return _locally(optimizer, str(reason))
    if launched and launched != plan.settings["optimizer"]:
        return Plan(False, {"lr": plan.settings["lr"]}, {}, (), frozenset(),
                    f"the servers run {launched}, as {where} says, not {name}")
    return plan


# Variables of the launch that make the learning rate a matter of the servers.
_RATES = ("GKPS_LR", "GKPS_SCHEDULE", "GKPS_MILESTONES", "GKPS_WARMUP", "GKPS_LR_GAMMA", "GKPS_LR_MIN")


def rates_of_launch(given: Dict[str, Any]) -> List[str]:
    """Names of variables and settings that give the servers a schedule: the rate of the script does not count then."""
    return ([variable for variable in _RATES if os.environ.get(variable)]
            + [key for key in ("lr", "schedule", "milestones", "warmup", "lr_gamma", "lr_min") if given.get(key) is not None])
