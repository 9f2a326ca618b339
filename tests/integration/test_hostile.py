"""Goal: whatever strangers do to a server's port harms nobody: it is counted and, where it can be, answered; the log and the
memory stay bounded; and the job that trains meanwhile ends with the model that an undisturbed run gives.
Method: a client of our own (zmtp.py) that breaks the rules at every level, against real daemons that train; the server's
STATUS, log and /proc tell.  Attacks are repeated as long as the job runs, so that none comes too late."""
import contextlib
import json
import math
import os
import random
import struct
import threading
import time

import zmtp
from cluster import Cluster, address_of, expect, job_hash, main, train, wait_until

TRAINING = ("--model", "fnn3", "--batch", 64, "--seed", 9)
STEPS, STEPS_MAX = 4000, 12000
WORKERS = 2
MIB = 1 << 20
# Beside a fifth of what the server had: an unfinished message and a full outbox, and what the allocator keeps of them.
SLACK_BYTES = 64 * MIB
# A message without end is cut off in the next turn of the loop, which on a busy machine is not at once; a gigabyte is sent.
SLACK_ENDLESS_BYTES = 400 * MIB
LINES_PER_ID = 64  # GK_LOG_RATE, in ten seconds
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Peak:
    """The largest memory that a process has while the block runs."""

    def __init__(self, pid):
        self.pid = pid
        self.begin = self.bytes = resident(pid)
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        while not self.end.wait(0.01):
            with contextlib.suppress(OSError, IndexError):  # it has ended
                self.bytes = max(self.bytes, resident(self.pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.end.set()
        self.thread.join()


def check_memory(pid, base, attack, peak):
    """Never more than a bounded amount, and not for long.  What the attack before has left may still be there at first."""
    slack = SLACK_ENDLESS_BYTES if attack is message_without_end else SLACK_BYTES
    expect(peak.bytes <= max(1.2 * base, peak.begin) + slack,
           f"{attack.__name__}: the server grew from {base / MIB:.0f}, then {peak.begin / MIB:.0f}, to {peak.bytes / MIB:.0f} MiB")
    wait_until(lambda: resident(pid) <= 1.2 * base + SLACK_BYTES, f"{attack.__name__}: {resident(pid) / MIB:.0f} MiB stay", 30)


def status(address):
    with zmtp.Dealer(address) as dealer:
        _, parts = dealer.ask(zmtp.message(zmtp.STATUS, req_id=1, rank=zmtp.RANK_NONE), 1)
        return json.loads(parts[0])


def settled(dealer):
    """All that was sent on this connection has been judged: a connection is served in order."""
    number = random.getrandbits(60) + 1
    header, _ = dealer.ask(zmtp.message(zmtp.STATUS, req_id=number, rank=zmtp.RANK_NONE), number)
    expect(header["kind"] == zmtp.STATUS_OK, f"no STATUS_OK but {header}")


# Each attack takes the address and a list of connections that stay open until the end; what it gives back is how much the
# counters of the server must have grown: of the ledger, or of the net.

def noise(address, kept):
    draw = random.Random(1)
    for size in (1, 9, 70, 5000, 65536):
        with zmtp.Raw(address) as raw:
            raw.send(draw.randbytes(size))
    return {"rejected": 4}  # a beginning like that of a greeting may end as silently as it came


def stray_http(address, kept):
    with zmtp.Raw(address) as raw:
        raw.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser\r\nAccept: */*\r\n\r\n")
    return {"rejected": 1}


def half_handshake(address, kept):
    for text in (b"", zmtp.SIGNATURE, zmtp.greeting()[:40], zmtp.greeting(), zmtp.greeting() + zmtp.ready()[:9]):
        raw = zmtp.Raw(address)
        raw.send(text)
        kept.append(raw)
    return {}


def wrong_mechanism(address, kept):
    for mechanism in (b"PLAIN", b"CURVE", b"GSSAPI", b"\xff" * 20, b""):
        with zmtp.Raw(address) as raw:
            raw.send(zmtp.greeting(mechanism) + zmtp.ready())
            expect(raw.wait_closed(), f"mechanism {mechanism} is not refused")
    return {"rejected": 5}


def wrong_socket_type(address, kept):
    with zmtp.Raw(address) as raw:
        raw.send(zmtp.greeting() + zmtp.ready(b"PUB"))
        expect(raw.wait_closed(), "a PUB socket is not refused")
    return {}  # ZeroMQ does not tell


def garbage_in_frames(address, kept):
    draw = random.Random(2)
    with zmtp.Dealer(address) as dealer:
        for i in range(100):
            dealer.put([draw.randbytes(draw.randrange(0, 400)) for _ in range(1 + i % 4)])
        settled(dealer)
    return {"bad_messages": 100}


def oversized_frame(address, kept):
    for size in (1 << 30, (1 << 63) - 1, 2 * MIB + 1):
        with zmtp.Dealer(address) as dealer:
            dealer.send(bytes([zmtp.LONG]) + size.to_bytes(8, "big") + bytes(1000))
            expect(dealer.wait_closed(), f"a frame of {size} bytes is announced, and the connection stays")
    return {}


def too_many_parts(address, kept):
    with zmtp.Dealer(address) as dealer:
        for _ in range(10):
            dealer.put([b"part"] * 1000)
        settled(dealer)
    return {"dropped_in": 10}


def message_without_end(address, kept):
    frame = zmtp.frame(bytes(MIB), more=True)
    with zmtp.Dealer(address) as dealer:
        sent = 0
        while sent < 1024 and dealer.send(frame):
            sent += 1
        expect(sent < 1024, "a message of a gigabyte without an end is still read")
    return {"cut": 1}


def bad_checksums(address, kept):
    good = zmtp.message(zmtp.STATUS, req_id=7, rank=zmtp.RANK_NONE)[0]
    with zmtp.Dealer(address) as dealer:
        for i in range(len(good)):
            dealer.put([good[:i] + bytes([good[i] ^ 4]) + good[i + 1:]])
        settled(dealer)
    with zmtp.Dealer(address) as dealer:  # a part that its header does not vouch for can be answered
        parts = zmtp.hello(5, workers=WORKERS)
        header, _ = dealer.ask([parts[0], parts[1] + b"\0", parts[2]], 5)
        expect(header["kind"] == zmtp.NACK and header["code"] == 22, f"no NACK(BAD_MESSAGE) but {header}")
    return {"bad_messages": len(good) + 1, "nacks": 1}


def unknown_kinds(address, kept):
    with zmtp.Dealer(address) as dealer:
        for kind in (11, 26, 99, 1 << 20):  # 26: the first that has no meaning yet
            header, _ = dealer.ask(zmtp.message(kind, req_id=kind), kind)
            expect(header["kind"] == zmtp.NACK and header["code"] == 23, f"kind {kind}: no NACK(UNSUPPORTED) but {header}")
        header, _ = dealer.ask(zmtp.message(zmtp.STATUS, req_id=8, rank=zmtp.RANK_NONE, unknown=1), 8)
        expect(header["kind"] == zmtp.NACK and header["code"] == 23, f"unknown field: no NACK(UNSUPPORTED) but {header}")
        for kind in (zmtp.WELCOME, zmtp.STATUS_OK, zmtp.NACK):  # answers are counted, and not answered
            dealer.put(zmtp.message(kind, req_id=9))
        settled(dealer)
    return {"bad_messages": 8, "nacks": 5}


def unknown_sessions(address, kept):
    with zmtp.Dealer(address) as dealer:
        for i in range(50):
            header, _ = dealer.ask(zmtp.message(zmtp.PULL, session=1000 + i, req_id=i + 1, rank=i % WORKERS, incarnation=1, lo=0,
                                                hi=10), i + 1)
            expect(header["kind"] == zmtp.NACK and header["code"] == 20, f"no NACK(NO_SESSION) but {header}")
    return {"nacks": 50}


def hello_flood(address, kept):
    """Other lives of the ranks, other jobs, other ranks: the living keep what they have."""
    with zmtp.Dealer(address) as dealer:
        for i in range(300):
            nonce = 10000 + i
            job = "gkps" if i % 3 else f"job-{i}"
            dealer.put(zmtp.hello(nonce, rank=i % (WORKERS + 1), job=job, workers=WORKERS, incarnation=1 + i))
            header, _ = dealer.get()
            expect(header["kind"] == zmtp.REFUSE and header["req_id"] == nonce, f"HELLO {i} is not refused: {header}")
    return {}


def clients_that_leave(address, kept):
    """peers.md 5.4: they send a megabyte and go; what waits for them, or came from them, goes too."""
    whole, part = zmtp.frame(bytes(MIB)), zmtp.frame(bytes(MIB), more=True)
    for i in range(200):
        with zmtp.Dealer(address) as dealer:
            dealer.send((whole, part, part[:MIB // 2])[i % 3])
    return {}


def clients_that_knock(address, kept):
    for _ in range(200):
        zmtp.Raw(address).close()
    return {}


def reader_that_never_reads(address, kept):
    question = b"".join(zmtp.frame(part) for part in zmtp.message(zmtp.STATUS, req_id=3, rank=zmtp.RANK_NONE))
    for _ in range(4):
        dealer = zmtp.Dealer(address, receive_bytes=4096)
        dealer.send_some(question * 3000, 1)
        kept.append(dealer)
    return {}


ATTACKS = (noise, stray_http, half_handshake, wrong_mechanism, wrong_socket_type, garbage_in_frames, oversized_frame,
           too_many_parts, message_without_end, bad_checksums, unknown_kinds, unknown_sessions, hello_flood, clients_that_leave,
           clients_that_knock, reader_that_never_reads)


def counters(address):
    found = status(address)
    return {**found["ledger"], **found["net"]}


def grown(address, before, least):
    """The counters have grown by so much; those of connections a little later than the connection ends."""
    def look():
        now = counters(address)
        return all(now[name] >= before[name] + count for name, count in least.items())
    wait_until(look, f"{least} more than {before}, but {counters(address)}", 30)


def attack_while_training(server, workers, address):
    """All attacks in turn until the job ends; how often each was over while the job still trained."""
    times = dict.fromkeys(ATTACKS, 0)
    kept = []
    pid = server.process.pid
    base = resident(pid)
    try:
        while True:
            for attack in ATTACKS:
                before = status(address)
                with Peak(pid) as peak:
                    least = attack(address, kept)
                if any(w.process.poll() is not None for w in workers) or server.process.poll() is not None:
                    return times
                grown(address, {**before["ledger"], **before["net"]}, least)
                check_memory(pid, base, attack, peak)
                times[attack] += 1
                wait_until(lambda: any(w.process.poll() is not None for w in workers) or
                           status(address)["version"] > before["version"], f"the job stands still after {attack.__name__}")
            for connection in kept[:-16]:
                connection.close()
            del kept[:-16]
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError, FileNotFoundError):
        # The job has ended, and with it the server; anything else is seen by the caller.
        expect(all(w.wait() == 0 for w in workers) and server.wait() == 0, f"the server is gone:\n{server.text()}")
        return times
    finally:
        for connection in kept:
            connection.close()


def check_log(server, seconds):
    lines = server.text().splitlines()
    ids = {}
    for line in lines:
        expect(len(line) < 1200, f"a line of {len(line)} bytes: {line[:200]}")
        name = next((word for word in line.split() if word.startswith("SERVER-")), "other")
        ids[name] = ids.get(name, 0) + 1
    most = LINES_PER_ID * (seconds / 10 + 2)
    for name, count in ids.items():
        expect(count <= most, f"{count} lines {name} in {seconds:.0f} s")
    expect(ids.get("SERVER-BAD-MESSAGE", 0) <= seconds + 2, f"{ids} in {seconds:.0f} s")
    expect("assertion" not in server.text(), server.text())


def train_under_attack(steps):
    """True when every attack came to its end at least once before the job did."""
    with Cluster() as cluster:
        server = cluster.server(0, 1, WORKERS)
        address = address_of(server)
        start = time.monotonic()
        workers = [cluster.worker(r, WORKERS, [address], *TRAINING, "--steps", steps) for r in range(WORKERS)]
        wait_until(lambda: status(address)["version"] >= 10, "ten versions")
        times = attack_while_training(server, workers, address)
        for daemon in workers + [server]:
            expect(daemon.wait() == 0, f"{daemon.process.args[:2]}: {daemon.process.returncode}\n{daemon.text()}")
        check_log(server, time.monotonic() - start)
        found, version = job_hash([server])
    expected = train("--servers", 1, "--workers", WORKERS, *TRAINING, "--steps", steps)["model_hash"]
    expect(found == expected and version == steps, f"hash {found} at {version}, undisturbed {expected}")
    return min(times.values()) > 0


def test_training_under_attack():
    steps = STEPS
    while not train_under_attack(steps):
        expect(steps < STEPS_MAX, f"the attacks are not over after {steps} steps")
        steps *= 3


def test_waiting_server():
    """Before the job begins the same holds, connections end by themselves, and nothing of them stays."""
    with Cluster() as cluster:
        server = cluster.server(0, 1, WORKERS)
        address = address_of(server)
        pid = server.process.pid
        status(address)
        base, files = resident(pid), descriptors(pid)
        kept = []
        for attack in ATTACKS:
            if attack is hello_flood:
                continue  # nobody holds the ranks yet: a HELLO is welcome
            before = counters(address)
            with Peak(pid) as peak:
                least = attack(address, kept)
            grown(address, before, least)
            check_memory(pid, base, attack, peak)
        for connection in kept:
            if not isinstance(connection, zmtp.Dealer):
                expect(connection.wait_closed(), "half a handshake is held open for ever")
            connection.close()
        wait_until(lambda: descriptors(pid) <= files, f"{descriptors(pid)} descriptors are open, {files} at first", 60)
        workers = [cluster.worker(r, WORKERS, [address], *TRAINING, "--steps", 20) for r in range(WORKERS)]
        for daemon in workers + [server]:
            expect(daemon.wait() == 0, daemon.text())


def test_puller_that_never_reads():
    """A rank of the job that asks for much more than it may, and takes nothing: a window of chunks is owed to it."""
    with Cluster() as cluster:
        server = cluster.server()
        address = address_of(server)
        pid = server.process.pid
        chunk = 1 << 18
        with zmtp.Dealer(address, receive_bytes=4096) as dealer:
            header, _ = dealer.ask(zmtp.hello(77), 77)
            session = header["session"]
            zmtp.init(dealer, session, 4 * chunk)
            base = resident(pid)
            with Peak(pid) as peak:
                for i in range(1000):  # other ranges each time: no two answers share their bytes
                    dealer.put(zmtp.message(zmtp.PULL, session=session, req_id=1000 + i, incarnation=1, lo=64 * i,
                                            hi=64 * i + chunk))
                wait_until(lambda: counters(address)["dropped_out"] >= 900, "answers that nobody reads are dropped")
                expect(resident(pid) <= 1.2 * base + SLACK_BYTES, "the answers pile up")
            expect(peak.bytes <= 1.2 * base + SLACK_BYTES, f"from {base / MIB:.0f} to {peak.bytes / MIB:.0f} MiB")


def test_pushes_that_add_up_to_infinity():
    """Each push is finite and so is each sum: when the parameters are not any more, the server says so and ends."""
    with Cluster() as cluster:
        server = cluster.server()
        address = address_of(server)
        value = struct.pack("<f", 3e38) * 16
        with zmtp.Dealer(address) as dealer:
            header, _ = dealer.ask(zmtp.hello(77), 77)
            session = header["session"]
            zmtp.init(dealer, session, 16)
            with contextlib.suppress(ConnectionResetError):
                for step in range(50):
                    dealer.ask(zmtp.message(zmtp.PUSH, value, session=session, req_id=1000 + step, incarnation=1, step=step,
                                            base_version=step, lo=0, hi=16, samples=1, push_id=9 + step, chunks=1, push_bytes=64,
                                            index_encoding=4, value_encoding=1, count=16), 1000 + step)
                    header, parts = dealer.ask(zmtp.message(zmtp.PULL, session=session, req_id=5000 + step, incarnation=1,
                                                            version=step + 1, lo=0, hi=16), 5000 + step)
                    expect(math.isfinite(struct.unpack("<f", parts[0][:4])[0]), f"an infinity is served: {header}")
        words = server.wait_event("death")["words"]
        expect(server.wait(30) == 65 and "not finite" in words, f"{server.process.returncode}: {words}")


def test_many_unfinished_messages():
    """Each of them within the limit: all together have one, too."""
    with Cluster() as cluster:
        server = cluster.server()
        address = address_of(server)
        frame = zmtp.frame(bytes(MIB), more=True) * 12
        dealers = []
        with Peak(server.process.pid) as peak:
            for _ in range(40):
                dealer = zmtp.Dealer(address)
                dealer.send_some(frame, 5)
                dealers.append(dealer)
            grown(address, dict.fromkeys(("cut",), 0), {"cut": 1})
        for dealer in dealers:
            dealer.close()
        expect(peak.bytes <= 320 * MIB, f"480 MiB were sent, {peak.bytes / MIB:.0f} MiB held")
        expect(status(address)["state"] == "waiting", "the server goes on")


main(globals())
