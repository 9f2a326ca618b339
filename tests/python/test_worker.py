"""Goal: what gkps.Worker does by itself: memory, settings, waits that can be interrupted, errors, the end.
Method: a stub library that counts calls and returns what it is told; scripts of their own for what ends Python."""
import array
import gc
import os
import signal
import threading
import time
import unittest
import weakref

from support import python, use_stub

import gkps
from gkps import _abi

stub = use_stub()


def floats(count):
    return array.array("f", range(count))


def worker_with(count=6, **settings):
    worker = gkps.Worker(**settings)
    params, gradient = floats(count), floats(count)
    worker.tensors([("w", params, gradient)])
    return worker, params, gradient


class Memory(unittest.TestCase):
    def refused(self, words, call, *args, **kwargs):
        with self.assertRaisesRegex(gkps.ArgumentError, words) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.exit_code, 64)

    def test_what_is_no_memory_is_refused(self):
        stub.calls()
        worker = gkps.Worker()
        self.refused("tensor w: has items of format 'd'; expected float32", worker.tensors, [("w", array.array("d", [1]), None)])
        self.refused("tensor w: is read-only", worker.tensors, [("w", memoryview(bytes(8)).cast("f"), None)])
        self.refused("gradient of tensor w: is not contiguous", worker.tensors, [("w", floats(4), memoryview(floats(8))[::2])])
        self.refused("tensor w: is a list", worker.tensors, [("w", [1.0], None)])
        self.refused("neither memory nor a shape", worker.tensors, [("w", None, None)])
        self.refused("gradient of 3 elements, shape .4,. has 4", worker.tensors, [("w", floats(4), floats(3))])
        self.refused("aux: is read-only", worker.aux, b"1234")
        self.assertNotIn("tensors", stub.calls())
        worker.close()

    def test_strides_of_what_is_contiguous_may_be_named(self):
        numbers = floats(24)

        class Array:  # as PyCUDA describes its own
            def __init__(self, shape, strides):
                self.__cuda_array_interface__ = {"shape": shape, "strides": strides, "typestr": "<f4", "version": 3,
                                                 "data": (numbers.buffer_info()[0], False)}

        for shape, strides in (((24,), (4,)), ((2, 3, 4), (48, 16, 4)), ((1, 24), (7, 4)), ((24, 1), (4, 99)), ((), ())):
            worker = gkps.Worker(device="cuda:0")
            worker.tensors([("w", Array(shape, strides), None)])
            worker.close()
        worker = gkps.Worker(device="cuda:0")
        for shape, strides in (((12,), (8,)), ((4, 6), (4, 16)), ((24,), (-4,)), ((2, 3), (16, 4))):
            self.refused("tensor w: is not contiguous .strides", worker.tensors, [("w", Array(shape, strides), None)])
        worker.close()

    def test_steps_run_in_the_memory_of_the_caller(self):
        worker, params, gradient = worker_with()
        worker.start()
        worker.step(2, lr=0.5)
        self.assertEqual(list(params), [x - 0.5 * x for x in range(6)])
        other = array.array("f", [1] * 6)
        worker.bind("w", gradient=other)
        worker.step(2, lr=0.5)
        self.assertEqual(list(params), [x / 2 - 0.5 for x in range(6)])
        self.refused("no tensor of this worker is named v", worker.bind, "v", other)
        with self.assertRaises(gkps.ArgumentError):
            worker.bind(0, floats(5))
        with self.assertRaises(BufferError):  # a buffer that is bound cannot move
            params.append(1)
        worker.close()
        params.append(1)

    def test_large_shapes_and_flags(self):
        worker = gkps.Worker()
        worker.tensors([gkps.Tensor("w", shape=(2, 3, 4, 5, 6), frozen=True), gkps.Tensor("x", floats(6), shape=(2, 3))])
        self.refused("tensor y: 7 parameters, but a gradient of 6", lambda: (
            worker.tensors([gkps.Tensor("y", shape=(7,))]), worker.bind("y", floats(7), floats(6))))
        worker.close()

    def test_sparse(self):
        worker = gkps.Worker()
        params = array.array("f", [0] * 8)
        worker.tensors([("a", params, None), ("b", floats(2), None)])
        worker.start()
        worker.push_sparse([(array.array("I", [1, 6]), array.array("f", [1, 2])), None], samples=4)
        self.assertEqual((stub.last_sparse(), stub.last_step().samples, list(params)), (2, 4, [0, -1, 0, 0, 0, 0, -2, 0]))
        self.refused("1 selections for 2 tensors", worker.push_sparse, [None])
        self.refused("2 indices, but 1 values", worker.push_sparse, [None, (array.array("i", [0, 1]), array.array("f", [1]))])
        self.refused("indices of tensor b", worker.push_sparse, [None, (array.array("q", [0]), array.array("f", [1]))])
        worker.close()


class Calls(unittest.TestCase):
    def setUp(self):
        stub.calls()

    def test_settings(self):
        gkps.Worker(density=1e-3, state_dir=None, state_sync=True, milestones=[10, 20], job="j", steps=5).close()
        self.assertEqual(stub.settings(), {"density": "0.001", "state-sync": "true", "milestones": "10,20", "job": "j", "steps": "5"})
        with self.assertRaisesRegex(gkps.ArgumentError, "setting density: is a dict"):
            gkps.Worker(density={})

    def test_a_stream_lives_as_long_as_its_worker(self):
        class Stream:
            ptr = 4711

        stream = Stream()
        seen = weakref.ref(stream)
        class Device:  # as torch writes its own
            def __str__(self):
                return "cuda:1"

        with gkps.Worker(device=Device(), stream=stream) as worker:
            self.assertEqual(stub.place(), ["cuda:1", "4711"])
            del stream
            gc.collect()
            self.assertIsNotNone(seen())
        del worker
        gc.collect()
        self.assertIsNone(seen())

    def test_flags_of_a_step(self):
        worker, _, _ = worker_with()
        worker.start()
        for kwargs, flags in (({}, 0), ({"sum": True}, _abi.SUM), ({"skip": True}, _abi.SKIP), ({"lr": 0.0}, _abi.LR),
                              ({"loss": 2.0}, _abi.LOSS)):
            result = worker.step(3, **kwargs)
            self.assertEqual((stub.last_step().flags, stub.last_step().samples), (flags, 3))
        self.assertEqual(result, gkps.Step(5, 7, False, False))
        self.assertEqual((worker.stats().steps, worker.stats().pull_s), (5, 0.5))
        with self.assertRaisesRegex(gkps.ArgumentError, "-1 is no number of samples"):
            worker.step(-1)
        for accuracy in (None, 0, 1.0, float("nan")):
            worker.report(accuracy)
        for accuracy in (17, -0.1, float("inf")):
            with self.assertRaisesRegex(gkps.ArgumentError, "is no share of 1"):
                worker.report(accuracy)
        worker.close()

    def test_every_code_is_an_exception(self):
        worker, _, _ = worker_with()
        for kind in gkps._errors._CLASSES.values():
            stub.fail("note", kind.code)
            with self.assertRaisesRegex(kind, "words of a handle") as caught:
                worker.note("x")
            self.assertEqual((caught.exception.code, caught.exception.exit_code), (kind.code, 60 + kind.code))
        stub.fail("open", _abi.E_CONFIG)
        with self.assertRaisesRegex(gkps.ConfigError, "words without a handle"):
            gkps.Worker()
        worker.close()

    def test_a_step_that_takes_long_is_waited_for_in_slices(self):
        worker, _, _ = worker_with()
        worker.start()
        stub.calls()
        stub.fail("step", _abi.E_TIMEOUT)
        worker.step()
        self.assertEqual(stub.calls(), ["step", "wait", "pull"])
        stub.fail("start", _abi.E_TIMEOUT, 3)
        worker.start()
        stub.fail("leave", _abi.E_TIMEOUT, 2)
        worker.leave()
        self.assertEqual(stub.calls(), ["start"] * 4 + ["leave"] * 3)
        worker.close()

    def test_timeout(self):
        worker, _, _ = worker_with()
        worker.start()
        stub.wait_ms(20)
        stub.fail("wait", _abi.E_TIMEOUT, 1000)
        began = time.monotonic()
        with self.assertRaises(gkps.Timeout) as caught:
            worker.wait(timeout=0.2)
        self.assertTrue(0.2 <= time.monotonic() - began < 5)
        self.assertIsInstance(caught.exception, TimeoutError)
        stub.fail("wait", _abi.E_TIMEOUT, 0)
        worker.wait()
        worker.close()

    def test_interrupted_wait(self):
        worker, _, _ = worker_with()
        worker.start()
        stub.wait_ms(1000)
        stub.fail("wait", _abi.E_TIMEOUT, 1000)
        main = threading.main_thread().ident
        timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            worker.wait()
        self.assertLess(time.monotonic() - began, 2)
        timer.join()
        stub.fail("wait", _abi.E_TIMEOUT, 0)
        self.assertEqual(worker.wait().version, 0)  # it can go on
        worker.close()

    def test_leave_amid_a_step(self):
        worker, _, _ = worker_with()
        worker.start()
        stub.fail("wait", _abi.E_TIMEOUT, 1000)
        with self.assertRaises(gkps.Timeout):
            worker.wait(timeout=0)
        stub.fail("wait", _abi.E_TIMEOUT, 2)
        stub.calls()
        worker.leave()
        self.assertEqual(stub.calls(), ["wait"] * 3 + ["leave"])
        worker.close()
        for end in (_abi.OK, _abi.E_ARGUMENT):  # the latter: the step was complete
            worker, _, _ = worker_with()
            worker.start()
            worker.push()
            stub.calls()
            stub.fail("wait", end)
            worker.leave()
            self.assertEqual(stub.calls(), ["wait", "leave"])
            worker.close()

    def test_other_threads_run_while_a_call_waits(self):
        worker, _, _ = worker_with()
        worker.start()
        stub.wait_ms(150)
        stub.fail("wait", _abi.E_TIMEOUT, 2)
        refused = []

        def use_it_too():
            try:
                worker.wait()
            except gkps.ArgumentError as error:
                refused.append(str(error))

        timer = threading.Timer(0.05, use_it_too)
        timer.start()
        worker.wait()
        timer.join()
        self.assertEqual(refused, ["another thread is in a call of this worker: one at a time"])
        worker.close()

    def test_closed_amid_a_call(self):
        """By another thread, and by a signal handler of the same: the handle lives until the call has returned."""
        for by_signal in (False, True):
            worker, _, _ = worker_with()
            worker.start()
            stub.calls()
            stub.wait_ms(100)
            stub.fail("wait", _abi.E_TIMEOUT, 1000)

            def close():
                worker.close()
                self.assertTrue(worker.closed)
                calls.extend(stub.calls())
                stub.fail("wait", _abi.E_STOPPED)
            calls = []
            main = threading.main_thread().ident
            former = signal.signal(signal.SIGUSR1, lambda *args: close())
            timer = threading.Timer(0.05, (lambda: signal.pthread_kill(main, signal.SIGUSR1)) if by_signal else close)
            timer.start()
            with self.assertRaises(gkps.StoppedError):
                worker.wait()
            timer.join()
            signal.signal(signal.SIGUSR1, former)
            self.assertEqual([call for call in calls + stub.calls() if call != "wait"], ["stop", "close"])
            self.assertNotIn("close", calls)
            with self.assertRaisesRegex(gkps.ArgumentError, "closed"):
                worker.wait()

    def test_log_lines(self):
        lines = []
        worker, _, _ = worker_with(log=lambda level, line: lines.append((level, line)))
        worker.start()
        worker.close()
        self.assertEqual(lines, [("warn", "a line")])

    def test_block(self):
        with worker_with()[0] as worker:
            worker.start()
        self.assertEqual(stub.calls()[-2:], ["leave", "close"])
        with self.assertRaises(RuntimeError), worker_with()[0] as worker:
            worker.start()
            raise RuntimeError
        self.assertEqual(stub.calls(), ["open", "tensors", "start", "fail", "close"])
        with self.assertRaises(gkps.PeerError), worker_with()[0] as worker:
            worker.start()
            stub.fail("step", _abi.E_PEER)
            try:
                worker.step()
            finally:
                self.assertFalse(worker.usable)
        self.assertEqual(stub.calls()[-1], "close")
        worker.close()
        with self.assertRaisesRegex(gkps.ArgumentError, "closed"):
            worker.start()


class End(unittest.TestCase):
    """Scripts whose stub prints, at its very end, which calls it got."""

    SCRIPT = """
import atexit, ctypes, sys
atexit.register(lambda: sys.stdout.write((library.stub_calls() + library.stub_failed_with()).decode()))  # called last
from gkps import _abi
import gkps
library = _abi.library()
library.stub_calls.restype = library.stub_failed_with.restype = ctypes.c_char_p
worker = gkps.Worker()
worker.tensors([gkps.Tensor("w", shape=(4,))])
worker.start()
"""

    def run_script(self, rest):
        return python(self.SCRIPT + rest)

    def test_a_script_that_ends_leaves(self):
        self.assertEqual(self.run_script("pass"), (0, "open tensors start leave close ", ""))

    def test_a_worker_that_the_script_has_let_go_of_leaves(self):
        self.assertEqual(self.run_script("del worker; import gc; gc.collect(); print(library.stub_calls().decode())")[:2],
                         (0, "open tensors start \nleave close "))

    def test_a_script_that_fails_does_not(self):
        code, out, err = self.run_script("1 / 0")
        self.assertEqual((code, out), (1, "open tensors start fail close 1 ZeroDivisionError: division by zero"))
        code, out, _ = self.run_script("library.stub_fail(b'fail', 1, 1)\nraise gkps.StateError('of the\\nscript')")
        self.assertEqual((code, out), (78, "open tensors start fail stop close 78 StateError: of the script"))
        self.assertIn("ZeroDivisionError", err)

    def test_a_script_that_fails_under_another_hook(self):
        code, out, _ = self.run_script("sys.excepthook = lambda *args: None\n1 / 0")
        self.assertEqual((code, out), (1, "open tensors start fail close 1 ZeroDivisionError: division by zero"))

    def test_a_thread_that_fails(self):
        script = """
import threading
def run():
    {}
    raise gkps.StateError("of a thread")
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
        code, _, err = self.run_script(script.format("worker.note('trains')"))
        self.assertEqual(code, 78)
        self.assertIn("StateError: of a thread", err)
        code, out, _ = self.run_script(script.format("pass"))  # what it is for has nothing to do with the training
        self.assertEqual((code, out), (0, "open tensors start leave close "))

    def test_an_error_ends_with_its_exit_code(self):
        code, out, err = self.run_script("library.stub_fail(b'step', 5, 1)\nworker.step()")
        self.assertEqual((code, out), (65, "open tensors start step close "))
        self.assertIn("PeerError: words of a handle", err)
        code, out, err = self.run_script("library.stub_fail(b'leave', 5, 1)")
        self.assertEqual(code, 65)
        self.assertEqual(err, "gkps: words of a handle\n")

    def test_a_wrong_setting_ends_with_its_exit_code(self):
        code, _, err = python("import gkps; from gkps import _abi; _abi.library().stub_fail(b'open', 2, 1); gkps.Worker()")
        self.assertEqual(code, 62)
        self.assertIn("ConfigError: words without a handle", err)

    def test_a_child_does_not_speak_for_its_parent(self):
        code, out, _ = self.run_script("""
import os
library.stub_calls()
pid = os.fork()
if pid == 0:
    library.stub_fail(b"note", 11, 1)
    try:
        worker.note("x")
    except gkps.ForkedError:
        sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
""")
        self.assertEqual((code, out), (0, "note close leave close "))

    def test_no_library(self):
        code, _, err = python("import gkps; gkps.Worker()", library="/nowhere/libgkps.so.0")
        self.assertEqual(code, 1)
        self.assertRegex(err, "LibraryNotFound: libgkps cannot be loaded .*set GKPS_LIBRARY")

    def test_ctrl_c_ends_a_script(self):
        code, _, err = self.run_script("""
import os, signal, threading
library.stub_wait_ms(1000)
library.stub_fail(b"wait", 3, 1000)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
worker.wait()
""")
        self.assertIn(code, (-signal.SIGINT, 130))
        self.assertIn("KeyboardInterrupt", err)


if __name__ == "__main__":
    unittest.main()
