"""Goal: gkps.torch.Optimizer behaves as a user of PyTorch expects, whatever the model and the optimizer are.
Method: a stub library that is one worker with plain SGD; the same training by torch alone is the measure.

Needs torch, any version from 1.13, and numpy."""
import collections
import contextlib
import copy
import os
import random
import sys
import unittest
import warnings
from unittest import mock

from support import ROOT, python, use_stub

import numpy
import torch
from torch import nn

import gkps
import gkps.torch
from gkps import _abi
from gkps.torch import _kept, _optimizer, _plan, _slots

stub = use_stub()
torch.set_num_threads(1)  # the models are tiny, and other tests run beside this one


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)


def backward(model, step, scale=1.0):
    x, y = batch(step)
    dtype = next(model.parameters()).dtype
    loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
    (loss * scale).backward()
    return loss


def sgd(model, **kwargs):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **kwargs})


def wrapped(model, inner=None, **kwargs):
    return gkps.torch.Optimizer(model, inner or sgd(model), **kwargs)


class Plans(unittest.TestCase):
    def plan(self, kind, groups=None, given=None, **kwargs):
        model = network()
        inner = kind(groups(model) if groups else model.parameters(), **kwargs)
        return _plan.make(inner, given or {}, None), model

    def test_what_the_servers_run(self):
        optim = torch.optim
        for kind, kwargs, settings in (
                (optim.SGD, {"lr": 0.1}, {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}),
                (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
                 {"optimizer": "momentum", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
                (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True},
                 {"optimizer": "nesterov", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}),
                (optim.AdamW, {"lr": 1e-3, "betas": (0.8, 0.99), "eps": 1e-7},
                 {"optimizer": "adamw", "lr": 1e-3, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7, "weight_decay": 0.01}),
                (optim.Adam, {}, {"optimizer": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8,
                                  "weight_decay": 0.0})):
            plan, _ = self.plan(kind, **kwargs)
            self.assertEqual((plan.local, plan.settings), (False, settings), kind)
            self.assertIn("the servers run", plan.words)

    def test_what_runs_locally_and_why(self):
        optim = torch.optim
        for kind, kwargs, why in (
                (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, "dampening is 0.5"),
                (optim.SGD, {"lr": 0.1, "maximize": True}, "maximize is on"),
                (optim.AdamW, {"amsgrad": True}, "amsgrad is on"),
                (optim.Adam, {"weight_decay": 0.1}, "its weight decay is not decoupled"),
                (optim.RMSprop, {}, "the servers do not know it"),
                (type("Own", (optim.SGD,), {}), {"lr": 0.1}, "the servers do not know it")):
            plan, _ = self.plan(kind, **kwargs)
            self.assertEqual((plan.local, plan.settings), (True, {"optimizer": "none"}))
            self.assertIn(why, plan.words)
        plan, _ = self.plan(optim.SGD, given={"optimizer": "none"}, lr=0.1)
        self.assertIn("the script says so", plan.words)
        model = network()
        inner = sgd(model, momentum=0.9)
        backward(model, 0)
        inner.step()
        self.assertIn("it has a state already", _plan.make(inner, {}, None).words)

    def test_param_groups(self):
        def split(**other):
            def groups(model):
                vectors = [p for p in model.parameters() if p.dim() == 1]
                return [{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": vectors, **other}]
            return groups
        plan, model = self.plan(torch.optim.AdamW, split(weight_decay=0.0), weight_decay=0.1)
        self.assertEqual(plan.settings["weight_decay"], 0.1)
        self.assertEqual(plan.without_decay, {id(p) for p in model.parameters() if p.dim() == 1})
        for other, why in (({"lr": 0.5}, "different learning rates"), ({"weight_decay": 0.5}, r"decay by \[0.1, 0.5\]"),
                           ({"betas": (0.5, 0.9)}, "different settings")):
            plan, _ = self.plan(torch.optim.AdamW, split(**other), weight_decay=0.1)
            self.assertRegex(plan.words, why)

    def test_the_launch_has_the_last_word(self):
        for variable, kind, local, settings in (("none", torch.optim.SGD, True, {"optimizer": "none"}),
                                                ("adamw", torch.optim.SGD, False, {"lr": 0.1}),
                                                ("sgd", torch.optim.Rprop, False, {})):
            os.environ["GKPS_OPTIMIZER"] = variable
            try:
                plan, _ = self.plan(kind, lr=0.1)
            finally:
                del os.environ["GKPS_OPTIMIZER"]
            self.assertEqual((plan.local, plan.settings), (local, settings))
            self.assertIn("as GKPS_OPTIMIZER says" if not local else "GKPS_OPTIMIZER says so", plan.words)


class Training(unittest.TestCase):
    def both(self, make=network, inner=sgd, steps=6, zero=lambda model, optimizer: optimizer.zero_grad(), schedule=None,
             tolerance=1e-6, **kwargs):
        """The same training by torch and over the library: the parameters agree."""
        mine, its = make(), make()
        optimizers = wrapped(mine, inner(mine), **kwargs), inner(its)
        for model, optimizer in zip((mine, its), optimizers):
            rates = schedule(optimizer) if schedule else None
            for step in range(steps):
                zero(model, optimizer)
                backward(model, step)
                optimizer.step()
                if rates:
                    rates.step()
        for one, other in zip(mine.parameters(), its.parameters()):
            self.assertLessEqual(float((one.detach() - other.detach()).abs().max()), tolerance)
        optimizers[0].close()
        return mine

    def test_as_torch(self):
        self.both()

    def test_gradients_that_were_let_go_of(self):
        self.both(zero=lambda model, optimizer: optimizer.zero_grad(set_to_none=True))
        self.both(zero=lambda model, optimizer: optimizer.zero_grad(set_to_none=False))
        self.both(zero=lambda model, optimizer: model.zero_grad(set_to_none=True))

    def test_schedulers(self):
        rates = torch.optim.lr_scheduler
        self.both(schedule=lambda optimizer: rates.StepLR(optimizer, 2, 0.5))
        self.both(schedule=lambda optimizer: rates.CosineAnnealingLR(optimizer, 6))
        self.both(schedule=lambda optimizer: rates.LambdaLR(optimizer, lambda step: 1 / (step + 1)))
        self.both(schedule=lambda optimizer: rates.OneCycleLR(optimizer, 0.2, total_steps=8, cycle_momentum=False))

    def test_memory_that_is_not_plain(self):
        stub.calls()
        self.both()
        plain = stub.calls()
        self.both(make=lambda: network().to(memory_format=torch.channels_last))
        self.assertEqual(plain.count("step"), 6)

        def half():
            return network().to(torch.bfloat16)
        model = self.both(make=half, tolerance=0.02)
        self.assertEqual(next(model.parameters()).dtype, torch.bfloat16)

    def test_an_optimizer_that_runs_locally(self):
        def rmsprop(model):
            return torch.optim.RMSprop(model.parameters(), lr=1e-3)
        # The stub's "mean of all" is the gradient of its one worker; its own step has the rate 0.
        self.both(inner=rmsprop)
        self.both(inner=rmsprop, zero=lambda model, optimizer: optimizer.zero_grad(set_to_none=True))
        self.both(make=lambda: network().to(memory_format=torch.channels_last), inner=rmsprop, tolerance=1e-5)

    def test_local_steps(self):
        mine, its = network(), network()
        optimizer, reference = wrapped(mine, sgd(mine, momentum=0.9), local_steps=3), sgd(its, momentum=0.9)
        self.assertEqual(stub.settings(), {"optimizer": "sgd", "lr": "1.0"})
        start = [p.detach().clone() for p in mine.parameters()]
        for step in range(6):
            for model, one in ((mine, optimizer), (its, reference)):
                one.zero_grad()
                loss = backward(model, step)
                one.step(**({"samples": 8, "loss": loss} if one is optimizer else {}))
            if step == 2:
                self.assertEqual((stub.last_step().samples, stub.last_step().flags), (24, _abi.LOSS))
                # The stub does not move with rate 0: what was done locally came back as nothing.
                for one, other in zip(mine.parameters(), start):
                    self.assertTrue(torch.equal(one, other))
                its.load_state_dict(mine.state_dict())
        self.assertEqual((optimizer.version, stub.calls()[-1]), (2, "step"))
        optimizer.close()

    def test_local_steps_without_samples(self):
        model = network()
        optimizer = wrapped(model, local_steps=2)
        backward(model, 0)
        with self.assertRaisesRegex(gkps.ArgumentError, "samples is 0; expected 1 or more"):
            optimizer.step(samples=0)
        optimizer.step(samples=8)
        optimizer.step(samples=0, skip=True)
        self.assertEqual((stub.last_step().samples, stub.last_step().flags & _abi.SKIP), (8, 0))
        for _ in range(2):
            optimizer.step(samples=0, skip=True)
        self.assertEqual((stub.last_step().samples, stub.last_step().flags & _abi.SKIP, optimizer.version), (0, _abi.SKIP, 2))
        optimizer.close()

    def test_accumulated_gradients(self):
        model = network()
        optimizer = wrapped(model)
        for step in range(4):
            backward(model, step, 0.25)
        stub.calls()
        optimizer.step(samples=32)
        self.assertEqual((stub.last_step().samples, stub.last_step().lr, optimizer.version), (32, 0.1, 1))
        optimizer.close()

    def test_closure_and_batch_size(self):
        model = network()
        optimizer = wrapped(model, batch_size=8, loss_is_sum=True)

        def closure():
            optimizer.zero_grad()
            return backward(model, 0)
        loss = optimizer.step(closure)
        step = stub.last_step()
        self.assertEqual((step.samples, step.flags, step.loss), (8, _abi.SUM | _abi.LR | _abi.LOSS, float(loss.detach())))
        optimizer.step(skip=True, loss=float("nan"))
        self.assertEqual(stub.last_step().flags, _abi.SUM | _abi.LR | _abi.SKIP)
        with self.assertRaisesRegex(TypeError, "unexpected argument 'sample'"):
            optimizer.step(sample=8)
        optimizer.close()

    def test_rates_of_the_launch(self):
        os.environ["GKPS_LR"] = "0.5"
        try:
            model = network()
            optimizer = wrapped(model)
        finally:
            del os.environ["GKPS_LR"]
        backward(model, 0)
        optimizer.step()
        self.assertEqual(stub.last_step().flags, 0)
        optimizer.close()

    def test_parts_without_gradient(self):
        model = network()
        model[0].weight.requires_grad_(False)
        before = model[0].weight.detach().clone(), model[4].bias.detach().clone()
        optimizer = wrapped(model)
        self.assertEqual([slot.trained for slot in optimizer._slots], [False] + [True] * 5)
        backward(model, 0)
        model[4].bias.grad = None
        optimizer.step()
        self.assertTrue(torch.equal(model[0].weight, before[0]))
        self.assertTrue(torch.equal(model[4].bias, before[1]))
        model[0].weight.requires_grad_(True)
        backward(model, 1)
        with self.assertRaisesRegex(gkps.ArgumentError, "parameter 0.weight was frozen"):
            optimizer.step()
        optimizer.close()

    def test_what_is_trained_must_stay(self):
        for local_steps in (None, 4):
            model = network()
            model[0].weight.requires_grad_(False)
            optimizer = wrapped(model, local_steps=local_steps)
            backward(model, 0)
            optimizer.step()
            model[4].weight.requires_grad_(False)
            with self.assertRaisesRegex(gkps.ArgumentError, "parameter 4.weight was trained .* is frozen now"):
                optimizer.step()
            model[4].weight.requires_grad_(True)
            model[0].weight.requires_grad_(True)
            backward(model, 1)
            with self.assertRaisesRegex(gkps.ArgumentError, "parameter 0.weight was frozen"):
                optimizer.step()
            optimizer.close()

    def test_only_a_part_is_trained(self):
        model = network()
        optimizer = wrapped(model, torch.optim.SGD(model[4].parameters(), lr=0.1))
        before = [p.detach().clone() for p in model.parameters()]
        backward(model, 0)
        optimizer.step()
        moved = [not torch.equal(one, other) for one, other in zip(model.parameters(), before)]
        self.assertEqual(moved, [False] * 4 + [True] * 2)
        optimizer.close()

    def test_memory_that_moves(self):
        model = network()
        optimizer = wrapped(model)
        backward(model, 0)
        bias = model[4].bias
        bias.data = bias.data.clone()
        before = bias.detach().clone()
        optimizer.step()
        self.assertFalse(torch.equal(bias, before))
        bias.data = bias.data.clone()
        stub.calls()
        optimizer.step(skip=True)
        self.assertEqual((stub.calls(), optimizer._slots[-1].values.data_ptr()), (["bind", "step"], bias.data_ptr()))
        bias.data = torch.zeros(11)
        bias.grad = None
        with self.assertRaises(gkps.ArgumentError):
            optimizer.step()
        optimizer.close()

    def test_what_the_servers_were_told_must_stay(self):
        model = network()
        optimizer = wrapped(model, sgd(model, momentum=0.9))
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8)
        backward(model, 0)
        with self.assertRaisesRegex(gkps.ArgumentError, r"momentum is 0.95 now, and the servers run with 0.9.*cycle_momentum"):
            optimizer.step()
        optimizer.param_groups[0]["momentum"] = 0.9
        optimizer.param_groups[0]["weight_decay"] = 0.5
        with self.assertRaisesRegex(gkps.ArgumentError, r"weight_decay of the param groups is \[0.5\] now, .* with \[0.0\]"):
            optimizer.step()
        optimizer.param_groups[0]["weight_decay"] = 0.0
        optimizer.step()
        optimizer.close()

    def test_refused(self):
        model = network()
        for words, args in (("expected an optimizer of torch", (model, 3)), ("none of the model's", (network(), sgd(model))),
                            ("expected a module, or pairs", (list(model.parameters()), sgd(model)))):
            with self.assertRaisesRegex(gkps.ArgumentError, words):
                gkps.torch.Optimizer(*args)
        with self.assertRaisesRegex(gkps.ArgumentError, "LBFGS computes several gradients"):
            wrapped(model, torch.optim.LBFGS(model.parameters()))
        with self.assertRaisesRegex(gkps.ArgumentError, "local_steps is 0"):
            wrapped(model, local_steps=0)
        with self.assertRaisesRegex(gkps.ArgumentError, "parameter again is there as 0.weight already"):
            gkps.torch.Optimizer([*model.named_parameters(), ("again", model[0].weight)], sgd(model))
        optimizer = gkps.torch.Optimizer(model.named_parameters(), sgd(model))
        with self.assertRaisesRegex(gkps.ArgumentError, "wrapped already"):
            wrapped(model, optimizer)
        other = network()
        with self.assertRaisesRegex(gkps.ArgumentError, "has a gkps.torch.Optimizer already"):
            wrapped(other)
        with self.assertRaisesRegex(gkps.ArgumentError, "add param groups before"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            copy.deepcopy(optimizer)
        optimizer.leave()
        with self.assertRaisesRegex(gkps.ArgumentError, "has left the job"):
            optimizer.step()
        optimizer.close()

    def test_long_names(self):
        names = ["".join(f"block{i}." for i in range(20)) + end for end in ("weight", "bias", "x" * 63)]
        short = [_slots.short_name(name) for name in names]
        self.assertEqual(len(set(short)), 3)
        self.assertTrue(all(len(name) == 63 for name in short), short)
        self.assertEqual(_slots.short_name("a.b"), "a.b")


class Scaler(unittest.TestCase):
    def gradient_after(self, step_with):
        """A step with scaled gradients: (flags, how the parameters moved)."""
        model = network()
        optimizer = wrapped(model)
        before = [p.detach().clone() for p in model.parameters()]
        step_with(model, optimizer)
        moved = [one - other.detach() for one, other in zip(before, model.parameters())]
        optimizer.close()
        return stub.last_step().flags, moved

    def test_old_protocol(self):
        """Of torch 1.13: step() gets the scaler itself."""
        class State:
            name = "READY"

        class OldScaler:
            def __init__(self, found):
                self.found, self._per_optimizer_states, self.unscaled = found, {}, 0

            def unscale_(self, optimizer):
                self.unscaled += 1
                for group in optimizer.param_groups:
                    for param in group["params"]:
                        param.grad.div_(1024)

            def step(self, optimizer):
                self._per_optimizer_states[id(optimizer)] = {
                    "stage": State(), "found_inf_per_device": {"cpu": torch.tensor([float(self.found)])}}
                optimizer.step(grad_scaler=self)

        _, plain = self.gradient_after(lambda model, optimizer: (backward(model, 0), optimizer.step()))
        for found in (False, True):
            scaler = OldScaler(found)
            flags, moved = self.gradient_after(lambda model, optimizer: (backward(model, 0, 1024.0), scaler.step(optimizer)))
            self.assertEqual((scaler.unscaled, bool(flags & _abi.SKIP)), (1, found))
            for one, other in zip(moved, plain):
                self.assertTrue(torch.allclose(one, torch.zeros_like(other) if found else other, atol=1e-6))

    def test_new_protocol(self):
        """Since torch 2.0: scale and finding are attributes; where there is a scaler for the CPU, the real one."""
        _, plain = self.gradient_after(lambda model, optimizer: (backward(model, 0), optimizer.step()))

        def by_hand(found, scale):
            def step(model, optimizer):
                backward(model, 0, 1024.0 if scale else 1.0)
                optimizer.grad_scale = torch.tensor(1024.0) if scale else None
                optimizer.found_inf = torch.tensor(float(found))
                optimizer.step()
                del optimizer.grad_scale
                del optimizer.found_inf
            return step

        def real(found, unscale):
            def step(model, optimizer):
                scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
                loss = backward_of(scaler, model)
                if found:
                    model[4].bias.grad[3] = float("inf")
                if unscale:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1e6)
                scaler.step(optimizer)
                scaler.update()
                self.assertEqual(scaler.get_scale(), 512.0 if found else 1024.0)
                return loss

            def backward_of(scaler, model):
                x, y = batch(0)
                scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            return step

        cases = [(by_hand(found, scale), found) for found in (False, True) for scale in (False, True)]
        try:
            torch.amp.GradScaler("cpu")
            cases += [(real(found, unscale), found) for found in (False, True) for unscale in (False, True)]
        except (AttributeError, TypeError):
            print("torch", torch.__version__, "has no GradScaler for the CPU: its protocol by hand alone")
        for step, found in cases:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                flags, moved = self.gradient_after(step)
            self.assertEqual(bool(flags & _abi.SKIP), found)
            for one, other in zip(moved, plain):
                self.assertTrue(torch.allclose(one, torch.zeros_like(other) if found else other, atol=1e-6))

    def test_nobody_had_a_gradient(self):
        """An optimizer that runs locally does not coast on when all workers skip."""
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
        optimizer = wrapped(model, inner)
        backward(model, 0)
        optimizer.step()
        before = [p.detach().clone() for p in model.parameters()]
        for param in model.parameters():
            param.grad.zero_()  # what the library writes then
        optimizer.step(skip=True)
        self.assertTrue(all(torch.equal(one, other) for one, other in zip(before, model.parameters())))
        optimizer.close()


class Kept(unittest.TestCase):
    def test_region(self):
        region = _kept.Region(100000)
        self.assertIsNone(region.read())
        content = {"a": torch.arange(5), "b": {"c": [torch.randn(2, 3), (torch.tensor(2.5), "x")]}, "half": torch.ones(3).half(),
                   "none": torch.zeros(0), "flag": torch.tensor([True, False])}
        region.write(content)
        got = region.read()
        self.assertTrue(torch.equal(got["a"], content["a"]) and torch.equal(got["b"]["c"][0], content["b"]["c"][0]))
        self.assertEqual((got["b"]["c"][1][1], float(got["b"]["c"][1][0]), got["half"].dtype, got["none"].shape, got["flag"].tolist()),
                         ("x", 2.5, torch.float16, (0,), [True, False]))
        kinds = {"counter": collections.Counter("aab"), "lists": collections.defaultdict(list, x=[1]),
                 "ordered": collections.OrderedDict(y=torch.ones(2))}
        region.write(kinds)
        again = region.read()
        self.assertEqual({key: type(value) for key, value in again.items()}, {key: type(value) for key, value in kinds.items()})
        self.assertEqual((again["counter"]["a"], again["lists"]["new"], float(again["ordered"]["y"].sum())), (2, [], 2.0))
        region.write(content)
        with self.assertRaisesRegex(gkps.ArgumentError, r"what must survive has \d+ bytes \(large \d+.*room for 100000.*aux_bytes="):
            region.write({"large": "x" * 200000, "small": 1})
        self.assertTrue(torch.equal(region.read()["a"], content["a"]))

    def test_fewer_devices_than_before(self):
        given = []
        states = {**_kept.random_states(), "cuda": [torch.zeros(16, dtype=torch.uint8)] * 3}
        with mock.patch.object(torch.cuda, "device_count", lambda: 2), \
                mock.patch.object(torch.cuda, "set_rng_state", lambda state, device: given.append(device)):
            _kept.set_random_states(states)
        self.assertEqual(given, [0, 1])

    def optimizer(self, model, kind=sgd):
        os.environ["GKPS_STATE_DIR"] = "somewhere"
        try:
            return wrapped(model, kind(model))
        finally:
            del os.environ["GKPS_STATE_DIR"]

    def resume(self, optimizer, content, step):
        """As if gkps_start() had brought this back."""
        optimizer._region.memory[:] = content
        optimizer._resume(gkps.Start(0, 1, step, True, False, False, False))

    def test_a_new_life(self):
        model, loader = network(), network()
        first = self.optimizer(model)
        first.user["epoch"] = 3
        first.keep(loader=Loader(7))
        torch.manual_seed(5)
        random.seed(5)
        backward(model, 0)
        first.step()
        expected = torch.rand(3), random.random(), {k: v.clone() for k, v in model.named_buffers()}
        content = bytes(first._region.memory)
        first.close()
        other = network()
        second = self.optimizer(other)
        self.resume(second, content, 1)
        backward(other, 1)
        second.step()  # what nobody has asked for yet is not lost
        self.assertEqual(second._region.read()["objects"], {"loader": {"position": 7}})
        self.resume(second, content, 1)
        again = Loader(0)
        second.keep(loader=again)
        self.assertEqual((second.user, again.position), ({"epoch": 3}, 7))
        self.assertTrue(torch.equal(torch.rand(3), expected[0]) and random.random() == expected[1])
        for name, value in other.named_buffers():
            self.assertTrue(torch.equal(value, expected[2][name]), name)
        second.close()

    def test_a_new_life_of_a_local_optimizer(self):
        def adagrad(model):
            return torch.optim.Adagrad(model.parameters(), lr=0.01)
        model = network()
        first = self.optimizer(model, adagrad)
        for step in range(3):
            first.zero_grad()
            backward(model, step)
            first.step()
        content, mean = bytes(first._region.memory), [p.grad.clone() for p in model.parameters()]
        first.close()
        other = network()
        second = self.optimizer(other, adagrad)
        for slot, gradient in zip(second._slots, mean):
            slot.bind(second.worker, slot.own_gradient().copy_(gradient))  # the library brings it back
        with torch.no_grad():
            self.resume(second, content, 3)
        for one, its in zip(model.parameters(), other.parameters()):
            self.assertTrue(torch.equal(one, its))
        for one, its in zip(first.inner.state.values(), second.inner.state.values()):
            self.assertTrue(torch.equal(one["sum"], its["sum"]))
        self.assertTrue(all(p.grad is None for p in other.parameters()))
        self.assertEqual(len(second.state), len(list(other.parameters())))
        with self.assertRaisesRegex(gkps.StateError, "begins at step 3 without its state, and Adagrad runs in the workers"):
            second._resume(gkps.Start(0, 1, 3, False, True, False, False))
        second.close()

    def test_state_dicts(self):
        model = network()
        optimizer = wrapped(model)
        saved = optimizer.state_dict()
        saved["param_groups"][0]["lr"] = 0.025
        optimizer.load_state_dict(saved)
        backward(model, 0)
        optimizer.step()
        self.assertEqual(stub.last_step().lr, 0.025)
        reference = sgd(network(), momentum=0.9)
        for group in reference.param_groups:
            for param in group["params"]:
                reference.state[param]["momentum_buffer"] = torch.zeros_like(param)
        with self.assertRaisesRegex(gkps.ArgumentError, "what the servers keep"):
            optimizer.load_state_dict(reference.state_dict())
        optimizer.close()


class Loader:
    def __init__(self, position):
        self.position = position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Arrays(unittest.TestCase):
    """gkps.Worker on arrays of numpy and torch."""

    def setUp(self):
        self.worker = gkps.Worker()

    def tearDown(self):
        self.worker.close()

    def refused(self, words, call, *args):
        with self.assertRaisesRegex(gkps.ArgumentError, words):
            call(*args)

    def test_steps_run_in_their_memory(self):
        params = [numpy.arange(6, dtype=numpy.float32).reshape(2, 3), torch.arange(4, dtype=torch.float32)]
        gradients = [numpy.ones((2, 3), numpy.float32), torch.ones(4)]
        self.worker.tensors([(f"w{i}", p, g) for i, (p, g) in enumerate(zip(params, gradients))])
        self.worker.start()
        self.worker.step(1, lr=0.5)
        self.assertTrue((params[0] == numpy.arange(6).reshape(2, 3) - 0.5).all())
        self.assertTrue(torch.equal(params[1], torch.arange(4) - 0.5))
        self.worker.push_sparse([(numpy.array([1, 5], numpy.uint32), numpy.array([1, 2], numpy.float32)),
                                 (torch.tensor([3], dtype=torch.int32), torch.tensor([4.0]))])
        self.assertEqual((params[0][0, 1], params[0][1, 2], params[1][3]), (-0.5, 2.5, -1.5))
        self.refused("indices of tensor w1: has type torch.int64; expected torch.uint32 or torch.int32", self.worker.push_sparse,
                     [None, (torch.tensor([3]), torch.tensor([4.0]))])

    def test_what_does_not_fit_is_refused(self):
        frozen = numpy.zeros(4, numpy.float32)
        frozen.setflags(write=False)
        for array, words in ((numpy.zeros(4), "has type float64; expected float32"), (frozen, "is read-only"),
                             (numpy.zeros((4, 4), numpy.float32)[:, 1], "is not contiguous"),
                             (torch.zeros(4).double(), "has type torch.float64"), (torch.zeros(4, 4)[:, 1], "is not contiguous"),
                             (torch.zeros(4).to_sparse(), "has layout torch.sparse_coo; expected a dense tensor"),
                             (torch.zeros(4, device="meta"), "lies on device meta; expected cpu")):
            self.refused(f"tensor w: {words}", self.worker.tensors, [("w", array, None)])

    def test_memory_of_a_device(self):
        """As far as it goes without one: what is asked of the arrays, and what the library hears."""
        class Stream:
            cuda_stream = 4711

        class There:
            """Stands for an array on a device; its numbers lie here, where the stub finds them."""

            def __init__(self, array, kind="<f4"):
                self.array = array
                self.__cuda_array_interface__ = {"shape": array.shape, "typestr": kind, "strides": None, "version": 3,
                                                 "data": (array.ctypes.data, False)}

        params, gradient = numpy.zeros(4, numpy.float32), numpy.ones(4, numpy.float32)
        with gkps.Worker(device="cuda", stream=Stream()) as worker:
            self.assertEqual(stub.place(), ["cuda", "4711"])
            for array, words in ((numpy.zeros(4, numpy.float32), "is a ndarray; expected an array on cuda:0"),
                                 (torch.zeros(4), "lies on device cpu; expected cuda:0"),
                                 (There(params, "<f8"), "has type <f8; expected float32")):
                self.refused(f"tensor w: {words}", worker.tensors, [("w", array, None)])
            worker.tensors([("w", There(params), There(gradient))])
            worker.start()
            worker.step(1, lr=0.5)
            self.assertEqual(params.tolist(), [-0.5] * 4)
        self.refused("stream: is a str; expected a number, or a stream of torch or cupy", lambda: gkps.Worker(stream="1"))

    def test_calls_on_a_device(self):
        seen = []

        class Stream:
            def synchronize(self):
                seen.append("synchronized")

        def current_stream(device):
            seen.append(str(device))
            return Stream()

        with mock.patch("torch.cuda.current_stream", current_stream), \
                mock.patch("torch.cuda.device", lambda device: contextlib.nullcontext(f"with {device}")):
            with _optimizer._calls_on(torch.device("cpu")) as place:
                self.assertEqual((place, seen), (None, []))
            with _optimizer._calls_on(torch.device("cuda:1")) as place:
                self.assertEqual((place, seen), ("with cuda:1", ["cuda:1", "synchronized"]))

    def test_local_steps_stay_on_the_device(self):
        """Arithmetic between devices is refused, and what has no numbers cannot be copied to the processor."""
        meta = torch.device("meta")
        for kind in (torch.float32, torch.bfloat16):
            slot = _slots.Slot(0, "w", torch.empty(3, dtype=kind, device=meta), True, True, True, meta)
            slot.take_change(self.worker)
            self.assertEqual((slot.own.device, slot.own.dtype), (meta, torch.float32))

    def test_binding_keeps_the_current_device(self):
        slot = _slots.Slot(0, "w", torch.zeros(3), True, True, False, torch.device("cpu"))
        slot.device = torch.device("cuda:1")
        seen = []
        with mock.patch("torch.cuda.device", lambda device: contextlib.nullcontext(seen.append(str(device)))):
            slot.bind(mock.Mock(), torch.zeros(3))
            slot.param = torch.zeros(3)
            with mock.patch.object(_slots, "is_plain", lambda tensor, device: True):
                slot.follow(mock.Mock())
        self.assertEqual(seen, ["cuda:1", "cuda:1"])

    def test_the_device_of_a_model(self):
        """On that of its parameters, if there is one that the library can use, and nobody wants another."""
        class Param:
            def __init__(self, device):
                self.device = torch.device(device)

        def device(*devices, **settings):
            return str(_optimizer._device_of([(str(i), Param(name)) for i, name in enumerate(devices)], settings))

        self.assertEqual(gkps.cuda_devices(), 2)
        self.assertEqual([device("cpu"), device("cuda:1", "cuda:1"), device("cuda:0", "cuda:1"), device("cuda:0", "cpu"),
                          device("cuda:2"), device("cuda:1", backend="cpu"), device("cuda:1", backend="cuda:1"),
                          device("cuda:1", backend="cuda:0"), device("meta")],
                         ["cpu", "cuda:1", "cpu", "cpu", "cpu", "cpu", "cuda:1", "cpu", "cpu"])

    def test_aux(self):
        memory = torch.ones(5, dtype=torch.int64)
        self.worker.aux(memory)
        self.assertEqual(int(memory.sum()), 0)  # the stub clears it
        self.refused("aux: expected a contiguous tensor", self.worker.aux, torch.zeros(4, 4)[:, 1])


class End(unittest.TestCase):
    def test_local_steps_that_were_not_sent(self):
        code, out, err = python("""
            import atexit, ctypes, sys
            atexit.register(lambda: sys.stdout.write(library.stub_calls().decode()))
            import torch
            from gkps import _abi
            import gkps.torch
            library = _abi.library()
            library.stub_calls.restype = ctypes.c_char_p
            model = torch.nn.Linear(4, 4)
            optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), local_steps=4)
            for _ in range(6):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
        """)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual([call for call in out.split() if call != "bind"],
                         ["open", "tensors", "start", "note", "step", "step", "leave", "close"])


class Sparsifier(unittest.TestCase):
    def test_every_tensor_pushes(self):
        sys.path.insert(0, os.path.join(ROOT, "examples"))
        from sparsifier import select
        self.assertEqual(select(torch.tensor([1.0, -2.0, 1.5]), 1, 3.0).tolist(), [1])
        self.assertEqual(select(torch.tensor([0.0, 9.0, 0.0, -8.0, 0.0, 0.0]), 2, 2.0).tolist(), [1, 3])
        self.assertEqual(select(torch.tensor([0.0, 8.0, 0.0, -9.0, 0.0, 0.0]), 1, 2.0).tolist(), [3])


if __name__ == "__main__":
    unittest.main()
