"""Goal: what peers come and go with, or leave unread, does not stay in a server's memory; a disk that is full stops versions
and nothing else.
Method: a client of our own (zmtp.py) beside real daemons that train: it connects, is refused and goes, thousands of times; or
it has left the job as a rank, pulls at full rate, and then reads no more.  /proc tells the memory, the hash of the finished job
that nobody was harmed.  The full disk is a tmpfs of 8 MiB, which takes root.  The environment says how much:
GKPS_TEST_RECONNECTS and GKPS_TEST_FROZEN_S, as tests/soak/run.sh does."""
import json
import os
import re
import subprocess
import tempfile
import threading
import time

import zmtp
from cluster import Cluster, address_of, expect, gkps, job_hash, main, resident, skip, wait_until

MIB = 1 << 20
RECONNECTS = int(os.environ.get("GKPS_TEST_RECONNECTS", 1000))
FROZEN_S = int(os.environ.get("GKPS_TEST_FROZEN_S", 10))
PARAMS = 55210  # of fnn3 on digits
# GK_OUTBOX_BYTES_MAX and GK_OUTBOX_SMALL_BYTES_MAX: what waits for one peer; and GK_ZSOCK_SEND_HWM chunks inside ZeroMQ.
OWED_BYTES = 25 * MIB + 16 * 4 * PARAMS
ALLOWED = 1.1
RANK_READER = 2  # of three: it leaves at step 0 and only reads
WINDOW = 8
LEAVE, LEAVE_OK, PARAMS_KIND, AT_LEAST = 14, 15, 10, 8


def status(address):
    with zmtp.Dealer(address) as dealer:
        _, parts = dealer.ask(zmtp.message(zmtp.STATUS, req_id=1, rank=zmtp.RANK_NONE), 1)
        return json.loads(parts[0])


def come_and_go(address, number):
    """A stranger: one half says hello as a rank that is held, and is refused."""
    with zmtp.Dealer(address) as dealer:
        nonce = 10**6 + number
        if number % 2:
            header, _ = dealer.ask(zmtp.hello(nonce, rank=number % 4 // 2, workers=2, incarnation=1 + number), nonce)
            expect(header["kind"] == zmtp.REFUSE, f"a held rank is given away: {header}")
        else:
            header, _ = dealer.ask(zmtp.hello(nonce, job=f"job-{number}", workers=2), nonce)
            expect(header["kind"] == zmtp.REFUSE, f"a stranger is welcome: {header}")


def test_reconnects():
    with Cluster() as cluster:
        server = cluster.server(0, 1, 2)
        address = address_of(server)
        workers = [cluster.worker(r, 2, [address], "--steps", 10**7) for r in range(2)]
        wait_until(lambda: status(address)["version"] >= 10, "ten versions")
        for number in range(RECONNECTS // 10):
            come_and_go(address, number)
        first, version = resident(server.process.pid), status(address)["version"]
        for number in range(RECONNECTS // 10, RECONNECTS):
            come_and_go(address, number)
        last, found = resident(server.process.pid), status(address)
        print(f"   {RECONNECTS} reconnects: {first / MIB:.1f} MiB after a tenth, {last / MIB:.1f} MiB at the end, "
              f"{found['version'] - version} versions meanwhile", flush=True)
        expect(last <= ALLOWED * first, f"the server grew from {first} to {last} bytes")
        expect(found["version"] > version, "the job stands still")
        expect(all(w.process.poll() is None for w in workers), workers[0].text() + workers[1].text())


class Reader:
    """A rank that has left at step 0, and reads."""

    def __init__(self, address, receive_bytes=None):
        self.dealer = zmtp.Dealer(address, receive_bytes)
        self.requests = 10**6
        self.read = self.version = 0
        header, _ = self.dealer.ask(zmtp.hello(77, rank=RANK_READER, workers=3), 77)
        expect(header["kind"] == zmtp.WELCOME, f"the reader is not welcome: {header}")
        self.session = header["session"]

    def message(self, kind, **fields):
        self.requests += 1
        return zmtp.message(kind, session=self.session, req_id=self.requests, rank=RANK_READER, incarnation=1, **fields)

    def leave(self):
        """Once there is a version; the rounds do not wait for this rank from then on."""
        header, _ = self.dealer.ask(self.message(LEAVE, step=0), self.requests)
        expect(header["kind"] == LEAVE_OK, f"no LEAVE_OK: {header}")

    def ask(self, **fields):
        return self.dealer.send(b"".join(zmtp.frame(part) for part in self.message(zmtp.PULL, lo=0, hi=PARAMS, **fields)))

    def pull_some(self, count):
        """At full rate: a window of requests is always on its way."""
        for _ in range(WINDOW):
            self.ask(flags=AT_LEAST)
        while self.read < count:
            header, parts = self.dealer.get()
            if header["kind"] == PARAMS_KIND:
                expect(len(parts[0]) == 4 * PARAMS, "a short answer")
                self.version = header["version"]
                self.read += 1
                self.ask(flags=AT_LEAST)


def trained_with_reader(cluster, steps, *server_options):
    """A job of two workers and a third rank that only reads: server, workers, reader."""
    server = cluster.server(0, 1, 3, *server_options)
    address = address_of(server)
    reader = Reader(address, receive_bytes=65536)
    workers = [cluster.worker(r, 3, [address], "--steps", steps) for r in range(2)]
    wait_until(lambda: status(address)["state"] == "running", "the job begins")
    reader.leave()
    return server, workers, reader


def finish(server, workers):
    for daemon in workers + [server]:
        expect(daemon.wait(400) == 0, f"{daemon.process.args[:2]}: {daemon.process.returncode}\n{daemon.text()}")
    return job_hash([server])


def undisturbed(steps):
    with Cluster() as cluster:
        server, workers, reader = trained_with_reader(cluster, steps)
        reader.dealer.close()
        return finish(server, workers)


def freeze(address, server, workers, reader):
    """Ask for more and more and read none of it, until the job ends; seconds, most bytes, bytes at first."""
    pid, base = server.process.pid, resident(server.process.pid)
    peak, start, dropped = base, time.monotonic(), threading.Event()

    def ask_on():
        reader.dealer.socket.settimeout(1)
        while not dropped.wait(0.02):
            try:
                reader.ask(flags=AT_LEAST)
            except (TimeoutError, OSError):
                break  # the server does not read us either, or has ended

    thread = threading.Thread(target=ask_on, daemon=True)
    thread.start()
    while all(w.process.poll() is None for w in workers) and server.process.poll() is None:
        peak = max(peak, resident(pid))
        time.sleep(0.01)
    seconds = time.monotonic() - start
    dropped.set()
    thread.join()
    return seconds, peak, base


def frozen_reader(steps):
    with Cluster() as cluster:
        server, workers, reader = trained_with_reader(cluster, steps)
        address = address_of(server)
        wait_until(lambda: status(address)["version"] >= 20, "twenty versions")
        reader.pull_some(200)
        seconds, peak, base = freeze(address, server, workers, reader)
        found = finish(server, workers)
        reader.dealer.close()
    bound = ALLOWED * (base + OWED_BYTES)
    print(f"   a reader frozen for {seconds:.1f} s of {steps} steps: from {base / MIB:.1f} to {peak / MIB:.1f} MiB, "
          f"bound {bound / MIB:.1f}", flush=True)
    expect(peak <= bound, f"the server grew from {base / MIB:.1f} to {peak / MIB:.1f} MiB, bound {bound / MIB:.1f}")
    expect(peak > base + OWED_BYTES / 4, "nothing was owed to the reader: this test tests nothing")
    expect(found == undisturbed(steps), "the model is not that of an undisturbed run")
    return seconds


def test_frozen_reader():
    steps = 300 * FROZEN_S  # about so many seconds; a soak test makes sure
    while frozen_reader(steps) < FROZEN_S and FROZEN_S >= 60:
        expect(steps < 10**6, "the job is over too soon")
        steps *= 2


def served(reader, version):
    """The server answers a pull of exactly this version."""
    reader.ask(version=version)
    while True:
        header, parts = reader.dealer.get()
        if header.get("req_id") == reader.requests:
            return header["kind"] == PARAMS_KIND and header["version"] == version and len(parts[0]) == 4 * PARAMS


def mount(*args):
    run = subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
    expect(run.returncode == 0, f"mount {args}: {run.stderr}")


def full_disk_and_room(folder, steps):
    options = ("--state-dir", folder, "--fold-every", 10**6, "--log-bytes", "64M")
    with Cluster() as cluster:
        server, workers, reader = trained_with_reader(cluster, steps, *options)
        address = address_of(server)
        server.wait_text(r"SERVER-DISK-FULL .*No space left on device.*version \d+ stays served until there is room")
        version = status(address)["version"]
        expect(0 < version < steps, f"full at version {version} of {steps}")
        for worker in workers:
            worker.wait_text(r"WORKER-STALL step \d+: waiting .* s for shard 0 at .*whose disk has been full for .*make room there")
        code, out, err = gkps("status", "--server", address)
        expect(code == 0 and re.search(rf"shard 0: the disk of {folder} has been full for .*: make room there; "
                                       rf"version {version} stays served", out), f"{code}\n{out}{err}")
        expect(status(address)["version"] == version and served(reader, version), f"version {version} is not served any more")
        mount("-o", "remount,size=64m", folder)
        server.wait_text("SERVER-DISK-ROOM")
        reader.dealer.close()
        print(f"   full at version {version} of {steps}, room again", flush=True)
        return finish(server, workers)


def test_tmpfs():
    steps = 1200  # 9 KiB each
    if os.geteuid() != 0:
        skip("only root can mount a tmpfs")
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "state")
        os.mkdir(folder)
        mount("-t", "tmpfs", "-o", "size=8m", "none", folder)
        try:
            found = full_disk_and_room(folder, steps)
        finally:
            subprocess.run(["umount", folder], check=True)
    expect(found == undisturbed(steps), "the model is not that of an undisturbed run")


main(globals())
