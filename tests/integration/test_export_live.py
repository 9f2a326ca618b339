"""Goal: `gkps export --server` writes the model of a running job as it was at one version, bit for bit, and the job does not
notice.
Method: a job of two servers and two workers is exported while it trains, also across the kill of a server; each file holds
the model that the same job gives when it is trained to exactly that version, and the job ends with the model of a run that
nobody asked.  Then what can be wrong with the servers that are named."""
import json
import os
import re
import signal
import subprocess
import tempfile

from cluster import (Cluster, Failure, address_of, environment, expect, free_addresses, gkps, job_hash, main, program, train,
                     wait_until)

JOB = ("--model", "softmax", "--seed", "5")


def status(address):
    code, out, err = gkps("status", "--server", address, "--json")
    expect(code == 0, f"gkps status ended with {code}: {err}")
    return json.loads(out)["servers"][0]["status"]


def version(address):
    return status(address)["version"]


def reserved(address):
    return status(address)["memory"]["reserved"]


def read_line(out):
    """What the export says it has written: version and hash."""
    found = re.search(r"^version (\d+) of the job '.*': 2 tensors, (\d+) parameters, model hash ([0-9a-f]{16}), to ", out)
    expect(found, f"no such line: {out}")
    return int(found[1]), found[3]


def read_model(path):
    """The values of a safetensors file and its notes."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = json.loads(file.read(length))
        return head.pop("__metadata__"), head, file.read()


def export(addresses, path, *args):
    code, out, err = gkps("export", "--server", ",".join(addresses), "-o", path, *args)
    expect(code == 0, f"gkps export ended with {code}: {out}{err}")
    return read_line(out)


def undisturbed(steps):
    return train("--servers", 2, "--workers", 2, "--steps", steps, "--quiet", *JOB)["model_hash"]


def servers_of(cluster, *args):
    servers = [cluster.server(s, 2, 2, *args) for s in range(2)]
    return servers, [address_of(s) for s in servers]


def lasting_server(cluster, shard, folder, addresses):
    """One with state, whose next life comes back to its address."""
    server = cluster.server(shard, 2, 2, "--state-dir", os.path.join(folder, f"server-{shard}"), bind=addresses[shard])
    address_of(server)
    return server


def workers_of(cluster, addresses, steps, *args):
    return [cluster.worker(r, 2, addresses, "--steps", steps, *JOB, *args) for r in range(2)]


def pause(daemons, number):
    for daemon in daemons:
        daemon.process.send_signal(number)


def stand_still(workers, addresses):
    """Stop the workers when both shards have one version, not in the middle of their pushes; that version."""
    def stands():
        pause(workers, signal.SIGSTOP)
        seen = {version(a) for a in addresses * 2}  # twice: what was on its way is there by then
        if len(seen) > 1:
            pause(workers, signal.SIGCONT)
        return seen if len(seen) == 1 else None

    return wait_until(stands, "both shards at one version").pop()


def test_while_it_trains():
    steps = 3000
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        servers, addresses = servers_of(cluster)
        workers = workers_of(cluster, addresses, steps)
        wait_until(lambda: version(addresses[0]) >= 3, "training")
        found = []
        for i in range(2):
            path = os.path.join(folder, f"{i}.safetensors")
            # The order of the addresses does not matter.
            found.append(export(addresses[::-1] if i else addresses, path))
            notes, _, values = read_model(path)
            expect((int(notes["version"]), notes["model_hash"]) == found[i], f"{notes} but {found[i]}")
            expect(len(values) == 650 * 4, f"{len(values)} bytes")
            wait_until(lambda i=i: version(addresses[0]) > found[i][0], "training goes on")
        expect(0 < found[0][0] < found[1][0] < steps, f"versions {found}")
        for worker in workers:
            expect(worker.wait() == 0, worker.text())
        final = job_hash(servers)
        expect(final == (undisturbed(steps), steps), f"the job ended with {final}")
        for v, model_hash in found:
            expect(undisturbed(v) == model_hash, f"version {v} has the hash {model_hash} in the export")


def test_same_values_as_of_the_state():
    """Value by value, and tensor by tensor: what the state directories say of that version."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        dirs = [os.path.join(folder, f"server-{s}") for s in range(2)]
        servers = [cluster.server(s, 2, 2, "--state-dir", dirs[s], "--keep-versions", 1000) for s in range(2)]
        addresses = [address_of(s) for s in servers]
        workers = workers_of(cluster, addresses, 200)
        a, b = (os.path.join(folder, name) for name in ("a.safetensors", "b.safetensors"))
        wait_until(lambda: version(addresses[0]) >= 1, "training")
        expect(export(addresses, a, "--at", 60)[0] == 60, "another version than --at")
        for daemon in workers + servers:
            expect(daemon.wait() == 0, daemon.text())
        code, out, err = gkps("export", *dirs, "--at", 60, "-o", b)
        expect(code == 0, f"{out}{err}")
        expect(read_model(a) == read_model(b), "the running job and its state differ")


def test_server_killed_meanwhile():
    steps = 400
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        addresses = free_addresses(2)

        def start(s):
            return lasting_server(cluster, s, folder, addresses)

        servers = [start(s) for s in range(2)]
        workers = workers_of(cluster, addresses, steps)
        wait_until(lambda: version(addresses[0]) >= 3, "training")
        pause(workers, signal.SIGSTOP)
        before = [reserved(a) for a in addresses]
        wanted = max(version(a) for a in addresses) + 20
        path = os.path.join(folder, "model.safetensors")
        with subprocess.Popen([program("gkps"), "export", "--server", ",".join(addresses), "-o", path, "--at", str(wanted)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as tool:
            wait_until(lambda: all(reserved(a) > b for a, b in zip(addresses, before)), "both shards wait for the version")
            servers[1].process.kill()
            servers[1].process.wait()
            servers[1] = start(1)
            pause(workers, signal.SIGCONT)
            out, err = tool.communicate(timeout=100)
            expect(tool.returncode == 0, f"exit code {tool.returncode}: {err}")
        v, model_hash = read_line(out)
        expect(v == wanted, f"version {v}, not {wanted}")
        wait_until(lambda: reserved(addresses[0]) == before[0], "the pin is released")
        for daemon in workers + servers:
            expect(daemon.wait() == 0, daemon.text())
        final = job_hash(servers)
        expect(final == (undisturbed(steps), steps), f"the job ended with {final}")
        expect(undisturbed(v) == model_hash, f"version {v} has the hash {model_hash} in the export")


def test_pin_lost_and_found():
    """A server is killed when it holds the version while the other is not there yet: it pins the version again."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        addresses = free_addresses(2)

        def start(s):
            return lasting_server(cluster, s, folder, addresses)

        servers = [start(s) for s in range(2)]
        workers = workers_of(cluster, addresses, 100000)
        wait_until(lambda: version(addresses[0]) >= 3, "training")
        stood = stand_still(workers, addresses)
        before = [reserved(a) for a in addresses]
        wanted = stood + 1
        path = os.path.join(folder, "model.safetensors")
        with subprocess.Popen([program("gkps"), "export", "--server", ",".join(addresses), "-o", path, "--at", str(wanted)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as tool:
            wait_until(lambda: all(reserved(a) > b for a, b in zip(addresses, before)), "both shards wait for the version")
            pause(servers[1:], signal.SIGSTOP)
            pause(workers, signal.SIGCONT)
            wait_until(lambda: version(addresses[0]) == wanted, "shard 0 is there")
            servers[0].process.kill()
            servers[0].process.wait()
            servers[0] = start(0)
            wait_until(lambda: reserved(addresses[0]) > before[0], "shard 0 is asked again")
            pause(servers[1:], signal.SIGCONT)
            out, err = tool.communicate(timeout=100)
            expect(tool.returncode == 0, f"exit code {tool.returncode}: {err}")
        v, model_hash = read_line(out)
        expect(v == wanted and undisturbed(v) == model_hash, f"version {v} has the hash {model_hash} in the export")


def test_begins_again():
    """The tool stands still until its pins are of the past, and one of them is lost: it takes another version."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        addresses = free_addresses(2)

        def start(s):
            return lasting_server(cluster, s, folder, addresses)

        servers = [start(s) for s in range(2)]
        workers = workers_of(cluster, addresses, 100000)
        wait_until(lambda: version(addresses[0]) >= 3, "training")
        pause(workers, signal.SIGSTOP)
        before = [reserved(a) for a in addresses]
        stood = max(version(a) for a in addresses)
        path = os.path.join(folder, "model.safetensors")
        with subprocess.Popen([program("gkps"), "export", "--server", ",".join(addresses), "-o", path],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as tool:
            wait_until(lambda: all(reserved(a) > b for a, b in zip(addresses, before)), "both shards wait for the version")
            tool.send_signal(signal.SIGSTOP)
            pause(workers, signal.SIGCONT)
            wait_until(lambda: version(addresses[0]) >= stood + 10, "training goes on")
            servers[1].process.kill()
            servers[1].process.wait()
            servers[1] = start(1)
            tool.send_signal(signal.SIGCONT)
            out, err = tool.communicate(timeout=100)
            expect(tool.returncode == 0, f"exit code {tool.returncode}: {err}")
        v, model_hash = read_line(out)
        expect(v >= stood + 10, f"version {v}, the pin of which was lost")
        expect(undisturbed(v) == model_hash, f"version {v} has the hash {model_hash} in the export")


def test_job_that_stands():
    """Nothing comes any more: the version where it stands is taken."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        _, addresses = servers_of(cluster)
        workers = workers_of(cluster, addresses, 100000)
        wait_until(lambda: version(addresses[0]) >= 3, "training")
        stood = stand_still(workers, addresses)
        v, model_hash = export(addresses, os.path.join(folder, "model.npz"))
        expect(v == stood, f"version {v}, but the job stands at {stood}")
        expect(undisturbed(v) == model_hash, f"version {v} has the hash {model_hash} in the export")
        pause(workers, signal.SIGCONT)


def expect_error(code, words, *args):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        got, out, err = gkps("export", "-o", path, *args)
        expect(got == code and words in err and err.count("\n") == 1, f"{args}: exit code {got}: {out}{err}")
        expect(not os.listdir(folder), f"{args}: a file was written")


def test_errors():
    with Cluster() as cluster:
        _, addresses = servers_of(cluster)
        everybody = ",".join(addresses)
        expect_error(75, "no version yet", "--server", everybody)
        workers = workers_of(cluster, addresses, 100000)
        wait_until(lambda: version(addresses[0]) >= 3, "training")
        expect_error(78, "shard 1 of 2 is missing", "--server", addresses[0])
        expect_error(78, "which we have already", "--server", f"{everybody},{addresses[0]}")
        expect_error(78, "is past", "--server", everybody, "--at", "1")
        nobody, = free_addresses(1)
        expect_error(69, f"{nobody}: no server is there", "--server", f"{addresses[0]},{nobody}", "--timeout", "1")
        expect_error(69, "(shard ", "--server", everybody, "--at", "1000000000", "--timeout", "1")
        expect_error(64, "not both", "--server", everybody, "DIR")
        expect_error(64, "address", "--server", f"{everybody},")
        other = cluster.server(0, 1, 1, "--job", "other")
        cluster.worker(0, 1, [address_of(other)], "--job", "other", "--steps", "100000", *JOB)
        wait_until(lambda: version(address_of(other)) >= 1, "training of another job")
        expect_error(78, "another job", "--server", f"{addresses[0]},{address_of(other)}")
        pause(workers, signal.SIGSTOP)
        for worker in workers:
            if worker.process.poll() is not None:
                raise Failure(worker.text())


main(globals())
