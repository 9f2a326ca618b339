"""Boxes joined by slow links: network namespaces, a bridge in one of its own, and `tc tbf` at both ends of each cable.

Nothing outside these namespaces is touched.  The system gives no delay to its links here (netem is another module): round
trips take as long as the scheduler makes them."""
import json
import subprocess

SUBNET = "10.77.0."


def ip(*args):
    subprocess.run(["ip", *args], check=True)


class Network:
    """`count` boxes with an interface eth0 each, on one switch.  `rate` as tc has it ("1gbit"); None: not limited."""

    def __init__(self, name, count):
        self.switch = f"{name}-switch"
        self.boxes = [f"{name}-box{i}" for i in range(count)]
        self.addresses = [f"{SUBNET}{i + 1}" for i in range(count)]
        self._made = []

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        for space in [self.switch, *self.boxes]:
            ip("netns", "add", space)
            self._made.append(space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for i, box in enumerate(self.boxes):
            ip("-n", self.switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", box)
            ip("-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", box, "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            ip("-n", box, "link", "set", "eth0", "up")

    def limit(self, rate, latency):
        """Both directions of every cable: what a box sends, and what the switch sends to it."""
        for i, box in enumerate(self.boxes):
            for space, device in ((box, "eth0"), (self.switch, f"port{i}")):
                subprocess.run(["tc", "-n", space, "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL)
                if rate:
                    # The burst must hold one packet before segmentation, 64 KiB.
                    subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst",
                                    "128kb", "latency", latency], check=True)

    def command(self, box, command):
        return ["ip", "netns", "exec", self.boxes[box], *command]

    def dropped(self):
        """Packets that the queues had no room for, all of them together."""
        total = 0
        for space in [self.switch, *self.boxes]:
            out = subprocess.run(["tc", "-n", space, "-s", "-j", "qdisc", "show"], capture_output=True, text=True, check=True).stdout
            total += sum(entry.get("drops", 0) for entry in json.loads(out) if entry.get("kind") == "tbf")
        return total

    def throughput(self, python, seconds=1.0):
        """Bytes a second of one TCP connection from box 0 to box 1."""
        reader = ("import socket,time\n"
                  "s = socket.create_server((%r, 0)); print(s.getsockname()[1], flush=True)\n"
                  "c = s.accept()[0]; n = 0; t = time.monotonic()\n"
                  "while (d := c.recv(1 << 20)): n += len(d)\n"
                  "print(n / (time.monotonic() - t))\n") % self.addresses[1]
        writer = ("import socket,sys,time\n"
                  "s = socket.create_connection((%r, int(sys.argv[1]))); end = time.monotonic() + %r\n"
                  "while time.monotonic() < end: s.sendall(bytes(1 << 16))\n") % (self.addresses[1], seconds)
        with subprocess.Popen(self.command(1, [python, "-c", reader]), stdout=subprocess.PIPE, text=True) as receiving:
            port = receiving.stdout.readline().strip()
            subprocess.run(self.command(0, [python, "-c", writer, port]), check=True, timeout=30)
            return float(receiving.stdout.readline())

    def __exit__(self, *error):
        for space in self._made:
            pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
            for pid in pids:
                subprocess.run(["kill", "-9", pid], stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "del", space])
        self._made = []
