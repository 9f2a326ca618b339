"""Goal: whoever is gone is found out in a bounded time and by name, whoever is only slow is not, and the job goes on to the
model of an undisturbed run as soon as it can; a shard that lost its disk, or came back with an older one, is named by every
worker together with the command that repairs it.
Method: real daemons behind a slow proxy, stopped by SIGSTOP, or in network namespaces of their own whose link goes down
without a word and comes back with another address; their log lines, exit codes and hashes tell.  The bounds are those that
docs/run.md lists."""
import concurrent.futures
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from cluster import Cluster, Daemon, address_of, expect, free_addresses, gkps, job_hash, main, skip, train, wait_until

PARAMS_BYTES = 4 * 55210  # of fnn3 on digits: one chunk
SLOW = 65000  # bytes a second: a chunk takes longer than three pings
OPTIONS = ("--steps", 600, "--seed", 5)
# ZMQ_TCP_MAXRT and keepalive end a connection that nothing comes from in 15 to 25 s; the first stall line comes after 5 s.
HALF_OPEN_S = 60
FOREVER = 10**7


class SlowLink:
    """A TCP proxy that passes so many bytes a second in each direction, and holds next to nothing."""

    def __init__(self, address, rate):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.target, self.rate = (host, int(port)), rate
        self.passed = [0, 0]  # to the server, from it
        self.listener = self.end()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.ends = [self.listener]
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for end in self.ends:
            end.close()

    @staticmethod
    def end():
        """With segments and buffers as on a real link, not those of loopback."""
        end = socket.socket()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 16384)
        return end

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = self.end()
                far.connect(self.target)
                self.ends += [near, far]
                for way, (source, sink) in enumerate(((near, far), (far, near))):
                    threading.Thread(target=self.pump, args=(way, source, sink), daemon=True).start()

    def pump(self, way, source, sink):
        due = 0
        with contextlib.suppress(OSError):
            while data := source.recv(self.rate // 20):
                due = max(due, time.monotonic()) + len(data) / self.rate
                time.sleep(max(0, due - time.monotonic()))
                sink.sendall(data)
                self.passed[way] += len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@functools.cache
def undisturbed(options):
    """Of two workers; the number of servers changes no bit."""
    return train("--servers", 1, "--workers", 2, *options)["model_hash"]


def finish(servers, workers, options=OPTIONS):
    """All end well, with the model of an undisturbed run."""
    for daemon in workers + servers:
        expect(daemon.wait() == 0, f"{daemon.process.args[:3]}: {daemon.process.returncode}\n{daemon.text()}")
    found, version = job_hash(servers)
    expect(found == undisturbed(options), f"hash {found} at {version}, undisturbed {undisturbed(options)}")


def carried_once():
    """A job over a slow link, in which nobody is called dead; whether the link carried each chunk about once."""
    steps = 2
    options = ("--steps", steps, "--seed", 3)
    with Cluster() as cluster:
        server = cluster.server(0, 1, 2)
        with SlowLink(address_of(server), SLOW) as link:
            workers = [cluster.worker(0, 2, [address_of(server)], *options), cluster.worker(1, 2, [link.address], *options)]
            finish([server], workers, options)
            needed = (steps + 1) * PARAMS_BYTES
            print(f"   {link.passed[1]} bytes came over the link, {needed} were needed", flush=True)
        for daemon, words in ((workers[1], "WORKER-SHARD-GONE|no answer"), (workers[0], "silent"), (server, "WARN .*rank 1")):
            expect(not re.search(words, daemon.text()), f"called dead:\n{daemon.text()}")
        # The first answer is asked for again and again before anybody knows how slow the link is.
        return link.passed[1] <= needed + 4 * PARAMS_BYTES


def test_slow_link():
    """Nobody is called dead, no connection is given up, and the link carries each chunk about once.  A busy processor makes the
    link slower and slower, and then copies are right: but not each time.  unit_worker_window has all speeds, in virtual time."""
    expect(any(carried_once() for _ in range(3)), "too many copies went over the link, each of three times")


def version_of(server):
    code, out, _ = gkps("status", "--json", "--server", address_of(server))
    expect(code in (0, 69), out)
    return json.loads(out)["servers"][0]["status"]["version"]


def stop(daemon):
    daemon.process.kill()
    daemon.wait()


def stopped(victim, watchers, pattern):
    """SIGSTOP until each of the watchers has named the victim."""
    victim.process.send_signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        for watcher in watchers:
            watcher.wait_text(pattern, HALF_OPEN_S)
        return time.monotonic() - start
    finally:
        victim.process.send_signal(signal.SIGCONT)


def test_stopped_processes():
    with Cluster() as cluster:
        servers = [cluster.server(s, 2, 2) for s in range(2)]
        addresses = [address_of(s) for s in servers]
        workers = [cluster.worker(r, 2, addresses, *OPTIONS) for r in range(2)]
        wait_until(lambda: version_of(servers[0]) >= 5, "five versions")
        named = stopped(servers[1], workers, r"WORKER-STALL step \d+: waiting \d+\.\d s for shard 1 at tcp://\S+: "
                                             r"connected, but silent for \d+\.\d s")
        print(f"   a stopped server is named after {named:.1f} s", flush=True)
        named = stopped(workers[1], servers, r"SERVER-ROUND-WAITS round \d+ waits for rank 1 \(last heard \d+\.\d s ago.*open for")
        print(f"   a stopped worker is named after {named:.1f} s", flush=True)
        expect(re.search(r"WORKER-STALL step \d+: waiting \d+\.\d s for rank 1, which shard \d", workers[0].text()),
               f"the other worker names nobody:\n{workers[0].text()}")
        finish(servers, workers)


def ip(*args):
    run = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    expect(run.returncode == 0, f"ip {args}: {run.stderr}")


class Network:
    """Two namespaces with a link between them; `near` has 192.0.2.1, `far` 192.0.2.2."""

    def __init__(self, mark):
        self.near, self.far = (f"gkps-{mark}-{end}-{os.getpid()}" for end in ("near", "far"))

    def __enter__(self):
        for name in (self.near, self.far):
            ip("netns", "add", name)
        ip("link", "add", "gk0", "netns", self.near, "type", "veth", "peer", "name", "gk0", "netns", self.far)
        for name, address in ((self.near, "192.0.2.1/24"), (self.far, "192.0.2.2/24")):
            ip("-n", name, "addr", "add", address, "dev", "gk0")
            ip("-n", name, "link", "set", "gk0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *unused):
        for name in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def down(self):
        """Without a word to either side."""
        ip("-n", self.far, "link", "set", "gk0", "down")

    def up(self, address):
        """The far end has this address now."""
        ip("-n", self.far, "addr", "flush", "dev", "gk0")
        ip("-n", self.far, "addr", "add", f"{address}/24", "dev", "gk0")
        ip("-n", self.far, "link", "set", "gk0", "up")

    @staticmethod
    def start(cluster, where, command, *args, hosts=None):
        """A daemon there; `hosts`: a file that it sees as /etc/hosts."""
        daemon = Inside(where, hosts, command, *args)
        cluster.daemons.append(daemon)
        return daemon


class Inside(Daemon):
    def __init__(self, where, hosts, name, *args):
        self.prefix = ["ip", "netns", "exec", where]
        if hosts:
            self.prefix += ["sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
        super().__init__(name, *args)

    def command(self, name, args):
        return [*self.prefix, *super().command(name, args)]


def write_hosts(path, address):
    with open(path, "w", encoding="ascii") as file:  # the same file: it is mounted
        file.write(f"127.0.0.1 localhost\n{address} shard0.test\n")


SHARD = "shard 0 at tcp://shard0.test:5601"


def server_moves():
    """The server's link goes down: no FIN, no RST.  It is started again, and its name leads to another address."""
    with tempfile.TemporaryDirectory() as top, Network("s") as net, Cluster() as cluster:
        hosts = os.path.join(top, "hosts")

        def serve(address):
            write_hosts(hosts, address)
            return net.start(cluster, net.far, "gkps-server", "--insecure", "--bind", f"tcp://{address}:5601", "--workers", 2,
                             "--state-dir", os.path.join(top, "state"))
        server = serve("192.0.2.2")
        server.wait_event("endpoint")
        workers = [net.start(cluster, net.near, "gkps-worker", "--servers", "tcp://shard0.test:5601", "--rank", r, "--workers", 2,
                             *OPTIONS, hosts=hosts) for r in range(2)]
        for worker in workers:
            worker.wait_text("WORKER-JOINED")
        net.down()
        start = time.monotonic()
        for worker in workers:
            worker.wait_text(rf"WORKER-STALL step \d+: waiting \d+\.\d s for {SHARD}: (connected, but silent|not connected) for "
                             r"\d+\.\d s", HALF_OPEN_S)
        named = time.monotonic() - start
        server.wait_text(r"WARN .*SERVER-ROUND-WAITS round \d+ waits for rank \d \(last heard \d+\.\d s ago.*open for \d+\.\d s",
                         HALF_OPEN_S)
        stop(server)
        for worker in workers:
            worker.wait_text(f"WORKER-SHARD-GONE connection to {SHARD} lost at step", HALF_OPEN_S)
        gone = time.monotonic() - start
        net.up("192.0.2.3")
        server = serve("192.0.2.3")
        for worker in workers:
            worker.wait_text(f"WORKER-SESSION {SHARD} is back", HALF_OPEN_S)
        print(f"   server: named after {named:.1f} s, its dead connection ended after {gone:.1f} s, back after "
              f"{time.monotonic() - start:.1f} s", flush=True)
        finish([server], workers)


def worker_moves():
    """The link of a worker goes down; its next life comes from another address while the old connection is still open."""
    with tempfile.TemporaryDirectory() as top, Network("w") as net, Cluster() as cluster:
        server = net.start(cluster, net.near, "gkps-server", "--insecure", "--bind", "tcp://192.0.2.1:5601", "--workers", 2)
        server.wait_event("endpoint")

        def work(rank, where):
            return net.start(cluster, where, "gkps-worker", "--servers", "tcp://192.0.2.1:5601", "--rank", rank, "--workers", 2,
                             *OPTIONS, "--state-dir", os.path.join(top, f"worker-{rank}"))
        workers = [work(0, net.near), work(1, net.far)]
        for worker in workers:
            worker.wait_text("WORKER-JOINED")
        net.down()
        start = time.monotonic()
        server.wait_text(r"WARN .*SERVER-ROUND-WAITS round \d+ waits for rank 1 \(last heard \d+\.\d s ago.*open for \d+\.\d s",
                         HALF_OPEN_S)
        workers[0].wait_text(r"WORKER-STALL step \d+: waiting \d+\.\d s for rank 1, which shard 0 at \S+ has missed for \d+\.\d s")
        named = time.monotonic() - start
        stop(workers[1])
        net.up("192.0.2.3")
        workers[1] = work(1, net.far)
        workers[1].wait_text("WORKER-JOINED|WORKER-SESSION|WORKER-RESUME")
        print(f"   worker: named after {named:.1f} s, its next life is there after {time.monotonic() - start:.1f} s", flush=True)
        finish([server], workers)


def test_half_open():
    if os.geteuid() != 0 or not shutil.which("ip"):
        skip("network namespaces take root and iproute2")
    undisturbed(OPTIONS)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for story in [pool.submit(server_moves), pool.submit(worker_moves)]:
            story.result()


def begun_with_state(cluster, top, servers, workers, *options):
    """Daemons with state directories, at addresses that stay: how to start one, servers and workers."""
    addresses = free_addresses(servers)

    def serve(shard):
        return cluster.server(shard, servers, workers, "--state-dir", os.path.join(top, f"server-{shard}"),
                              "--keep-versions", 10000, bind=addresses[shard])
    up = [serve(s) for s in range(servers)]
    return serve, up, [cluster.worker(r, workers, addresses, *options, "--state-dir", os.path.join(top, f"worker-{r}"))
                       for r in range(workers)]


def every_worker_says(workers, code, pattern):
    for worker in workers:
        expect(worker.wait() == code, f"exit code {worker.process.returncode}, not {code}:\n{worker.text()}")
        words = worker.wait_event("death")["words"]
        expect(re.search(pattern, words), f"'{words}' is not '{pattern}'")


LOST = (r"LOST_SHARD: shard 1 at tcp://\S+ .*at version \d+. Stop the servers, put a copy of its state directory back and take all "
        r"shards to its version \(gkps rewind --to V DIR...\); without a copy begin the job anew \(gkps run, with --fresh where ")
ROLLBACK = (r"ROLLBACK: shard 1 at tcp://\S+ went back to version (\d+), .*the job is at version \d+. .*"
            r"gkps rewind --to \1 DIR..., with the state directories of all of them")


def test_shard_without_its_disk():
    with tempfile.TemporaryDirectory() as top, Cluster() as cluster:
        serve, servers, workers = begun_with_state(cluster, top, 2, 2, "--steps", FOREVER)
        wait_until(lambda: version_of(servers[1]) >= 20, "twenty versions")
        stop(servers[1])
        shutil.rmtree(os.path.join(top, "server-1"))
        serve(1)
        every_worker_says(workers, 69, LOST)


def test_all_shards_without_their_disks():
    """Only the workers still know that there was a job."""
    for servers in (1, 2):
        with tempfile.TemporaryDirectory() as top, Cluster() as cluster:
            serve, up, workers = begun_with_state(cluster, top, servers, 2, "--steps", FOREVER)
            wait_until(lambda: version_of(up[0]) >= 20, "twenty versions")
            for daemon in up + workers:
                stop(daemon)
            for shard in range(servers):
                shutil.rmtree(os.path.join(top, f"server-{shard}"))
            addresses = [address_of(serve(shard)) for shard in range(servers)]
            workers = [cluster.worker(r, 2, addresses, "--steps", FOREVER, "--state-dir", os.path.join(top, f"worker-{r}"))
                       for r in range(2)]
            every_worker_says(workers, 69, r"LOST_SHARD.*gkps rewind --to V DIR.*--fresh")


def older_copy(cluster, top):
    """A job whose shard 1 comes back with the state of earlier, while it is down; all daemons."""
    serve, servers, workers = begun_with_state(cluster, top, 2, 2, "--steps", FOREVER)
    wait_until(lambda: version_of(servers[1]) >= 20, "twenty versions")
    stop(servers[1])
    folder = os.path.join(top, "server-1")
    shutil.copytree(folder, folder + ".old")
    servers[1] = serve(1)
    servers[1].wait_event("endpoint")
    before = version_of(servers[1])
    wait_until(lambda: version_of(servers[1]) >= before + 20, "twenty more versions")
    stop(servers[1])
    shutil.rmtree(folder)
    shutil.move(folder + ".old", folder)
    return serve, servers, workers


def test_version_that_went_backwards():
    """The words name a command that works: after it the shards are at one version."""
    with tempfile.TemporaryDirectory() as top, Cluster() as cluster:
        serve, servers, workers = older_copy(cluster, top)
        servers[1] = serve(1)
        every_worker_says(workers, 69, ROLLBACK)
        version = re.search(r"gkps rewind --to (\d+)", workers[0].wait_event("death")["words"]).group(1)
        for server in servers:
            stop(server)
        code, out, err = gkps("rewind", "--to", version, os.path.join(top, "server-0"), os.path.join(top, "server-1"))
        expect(code == 0 and f"is at version {version} in epoch 1" in out, f"{code}\n{out}{err}")


def test_version_that_went_backwards_while_all_were_down():
    """The same when everybody starts again: no worker may take the gap for pushes that were lost."""
    with tempfile.TemporaryDirectory() as top, Cluster() as cluster:
        serve, servers, workers = older_copy(cluster, top)
        for daemon in [servers[0], *workers]:
            stop(daemon)
        servers = [serve(0), serve(1)]
        addresses = [address_of(s) for s in servers]
        workers = [cluster.worker(r, 2, addresses, "--steps", FOREVER, "--state-dir", os.path.join(top, f"worker-{r}"))
                   for r in range(2)]
        every_worker_says(workers, 69, ROLLBACK)


main(globals())
