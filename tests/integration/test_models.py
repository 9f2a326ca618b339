"""Goal: the built-in models and the data sets that are read from files train in a cluster of real daemons, the same model
each time, and files that are wrong end a run with one clear line.
Method: small files made here: images whose class is a colour, a text that repeats itself."""
import gzip
import os
import random
import struct
import subprocess
import tempfile

from cluster import environment, expect, main, program, train

SIDE = 32


def write(path, content, packed=False):
    with (gzip.open if packed else open)(path, "wb") as file:
        file.write(content)


def record(rng, label):
    """An image whose three planes are the label's colour, with noise."""
    colour = (25 * label, 255 - 25 * label, 128 if label % 2 else 30)
    planes = [bytes(max(0, min(255, value + rng.randrange(-20, 21))) for _ in range(SIDE * SIDE)) for value in colour]
    return bytes([label]) + b"".join(planes)


def cifar_files(folder):
    rng = random.Random(1)
    for name, count, packed in (("data_batch_1.bin", 40, False), ("data_batch_2.bin.gz", 24, True), ("test_batch.bin", 20, False)):
        write(os.path.join(folder, name), b"".join(record(rng, i % 10) for i in range(count)), packed)


def test_resnet20_on_cifar_files():
    with tempfile.TemporaryDirectory() as folder:
        cifar_files(folder)
        job = ("--model", "resnet20", "--data", f"cifar10:{folder}", "--workers", 2, "--batch", 8, "--steps", 16, "--density", 0.2,
               "--optimizer", "sgd", "--lr", 0.02)
        first = train(*job)
        expect(first["parameters"] == 269722, f"parameters: {first['parameters']}")
        # -ln(1/10) = 2.30 is where guessing stands.
        expect(first["loss"] < 2.15, f"the loss has not fallen: {first['loss']}")
        expect(train(*job)["model_hash"] == first["model_hash"], "the same job twice: two models")


def test_charlstm_on_a_text():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.txt")
        write(path, b"round and round the ragged rock the ragged rascal ran\n" * 60)
        job = ("--model", "charlstm", "--data", f"text:{path}", "--workers", 2, "--batch", 4, "--steps", 60, "--density", 0.1)
        first = train(*job)
        expect(first["config"]["optimizer"] == "adamw" and first["config"]["clip"] == 1, f"not its defaults: {first['config']}")
        expect(first["test_loss"] < 2.0, f"the loss has not fallen: {first['test_loss']}")
        again = train(*job, "--servers", 3)
        expect(again["model_hash"] == first["model_hash"], "another number of servers: another model")
        other = train(*job, "--clip", 0.01)
        expect(other["model_hash"] != first["model_hash"], "clipping changes nothing")


def test_state_beside_the_parameters_survives_a_kill():
    """Without the running statistics of its norms rank 0 would measure another loss; without what the LSTM carried its
    gradients, and so the model, would be others."""
    with tempfile.TemporaryDirectory() as folder:
        cifar_files(folder)
        text, script = os.path.join(folder, "a.txt"), os.path.join(folder, "kill.yaml")
        write(text, b"the cat sat on the mat, and that was that; " * 600)
        for model, data, steps in (("resnet20", f"cifar10:{folder}", 8), ("charlstm", f"text:{text}", 44)):
            write(script, f"faults:\n  - {{at: {{step: {steps // 4}}}, do: kill, who: worker 0}}\n"
                          "expect: {completes: true, restarts: 1, pushes-lost: 0}\n".encode())
            job = ("--model", model, "--data", data, "--workers", 2, "--batch", 4, "--steps", steps, "--density", 0.1,
                   "--optimizer", "sgd", "--lr", 0.02)
            plain, killed = train(*job), train("--faults", script, "--state-dir", os.path.join(folder, model), *job)
            for key in ("model_hash", "accuracy", "test_loss"):
                expect(plain[key] == killed[key], f"{model}: {key} is {plain[key]}, after a kill {killed[key]}")


def test_lenet5_on_the_built_in_digits():
    summary = train("--model", "lenet5", "--workers", 2, "--steps", 100, "--density", 0.1, "--optimizer", "adamw", "--lr", 0.003)
    expect(summary["parameters"] == 61706 and summary["accuracy"] > 0.5, f"accuracy: {summary['accuracy']}")


def expect_refused(words, *args):
    done = subprocess.run([program("gkps"), "run", "--quiet", "--workers", "2", *args], capture_output=True, text=True,
                          timeout=120, check=False, stdin=subprocess.DEVNULL, env=environment())
    text = done.stdout + done.stderr
    expect(done.returncode == 65, f"{args}: exit code {done.returncode}, expected 65\n{text}")
    expect(words in text and len(text.strip().splitlines()) == 1, f"{args}: expected one line with '{words}':\n{text}")


def test_wrong_files():
    with tempfile.TemporaryDirectory() as folder:
        cifar_files(folder)
        path = os.path.join(folder, "test_batch.bin")
        write(path, b"\x0b" + bytes(3 * SIDE * SIDE))
        expect_refused("test_batch.bin: label 11 of image 0 is out of range", "--model", "resnet20", "--data", f"cifar10:{folder}")
        write(path, bytes(3000))
        expect_refused("test_batch.bin: 3000 bytes are no whole number of records of 3073 bytes", "--data", f"cifar10:{folder}")
        path = os.path.join(folder, "three")
        write(path, b"abc")
        expect_refused("three: 3 bytes are too short a text: at least 650", "--model", "charlstm", "--data", f"text:{path}")
        write(os.path.join(folder, "t10k-images-idx3-ubyte"), struct.pack(">4I", 0x12340803, 1, 28, 28) + bytes(784))
        write(os.path.join(folder, "t10k-labels-idx1-ubyte"), struct.pack(">2I", 0x801, 1) + bytes(1))
        expect_refused("t10k-images-idx3-ubyte: not an IDX file", "--model", "lenet5", "--data", f"mnist:{folder}")


main(globals())
