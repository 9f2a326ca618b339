"""A tiny client of the server's port, with the standard library alone: ZMTP 3.0 (mechanism NULL, as a DEALER) over a plain
socket, and messages of proto/README.md.  It can do everything wrong that a peer can do wrong."""
import socket
import struct

MORE, LONG, COMMAND = 1, 2, 4
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
DEADLINE_S = 30

HELLO, WELCOME, REFUSE, INIT, INIT_OK, PUSH, NACK, PULL, STATUS, STATUS_OK = 1, 2, 3, 4, 5, 6, 8, 9, 18, 19
RANK_NONE = 65535

# Number and wire type of each header field that is used here: v varint, 8 fixed64, 4 fixed32.
HEADER = {"kind": (1, "v"), "session": (2, "8"), "req_id": (3, "8"), "epoch": (4, "v"), "rank": (5, "v"), "shard": (6, "v"),
          "incarnation": (7, "v"), "step": (8, "v"), "version": (9, "v"), "base_version": (11, "v"), "lo": (13, "v"),
          "hi": (14, "v"), "plane": (15, "v"), "samples": (16, "v"), "push_id": (18, "8"), "init_id": (19, "8"),
          "job_uid_hi": (20, "8"), "job_uid_lo": (21, "8"), "chunk": (22, "v"), "chunks": (23, "v"), "push_bytes": (24, "v"),
          "index_encoding": (25, "v"), "value_encoding": (27, "v"), "count": (28, "v"), "crc_0": (29, "4"),
          "crc_1": (30, "4"), "crc_2": (31, "4"), "flags": (32, "v"), "code": (37, "v"), "unknown": (60, "v")}
BODY_HELLO = {"protocol_min": (1, "v"), "protocol_max": (2, "v"), "job_uid_hi": (3, "8"), "job_uid_lo": (4, "8"),
              "workers": (7, "v"), "servers": (8, "v"), "role": (9, "v"), "life_nonce": (10, "8"), "takeover": (11, "v")}


def make_crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = make_crc_table()


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xffffffff


def varint(x):
    out = bytearray()
    while x > 127:
        out.append(x & 127 | 128)
        x >>= 7
    out.append(x)
    return bytes(out)


def pack(fields, values):
    """Protobuf bytes in the one form that the protocol allows."""
    out = b""
    for name, (number, form) in sorted(fields.items(), key=lambda item: item[1][0]):
        value = values.get(name, 0)
        if value:
            wire = {"v": 0, "8": 1, "4": 5}[form]
            out += varint(number << 3 | wire)
            out += varint(value) if form == "v" else struct.pack("<Q" if form == "8" else "<I", value)
    return out


def unpack(fields, data):
    names = {number: name for name, (number, _) in fields.items()}
    values, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            size = 8 if key & 7 == 1 else 4
            value, at = int.from_bytes(data[at:at + size], "little"), at + size
        values[names.get(key >> 3, key >> 3)] = value
    return values


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def seal(body):
    """A header frame around protobuf bytes."""
    return b"GKP1" + struct.pack("<I", crc32c(body)) + body


def message(kind, *parts, crcs=None, **fields):
    """The parts of one message.  `crcs`: of the parts, where they are known or wrong."""
    crcs = [crc32c(part) for part in parts] if crcs is None else crcs
    fields.update({f"crc_{i}": crc for i, crc in enumerate(crcs)}, kind=kind)
    return [seal(pack(HEADER, fields)), *parts]


def hello(nonce, rank=0, shard=0, job="gkps", workers=1, servers=1, incarnation=1, **more):
    body = pack(BODY_HELLO, {"protocol_min": 1, "protocol_max": 1, "workers": workers, "servers": servers, "role": 1,
                             "life_nonce": nonce, **more})
    return message(HELLO, body, job.encode(), req_id=nonce, rank=rank, shard=shard, incarnation=incarnation)


def frame(data, more=False, command=False):
    flags = (MORE if more else 0) | (COMMAND if command else 0)
    if len(data) < 256:
        return bytes([flags, len(data)]) + data
    return bytes([flags | LONG]) + struct.pack(">Q", len(data)) + data


def greeting(mechanism=b"NULL", version=3):
    return SIGNATURE + bytes([version, 0]) + mechanism.ljust(20, b"\0") + bytes(32)


def ready(socket_type=b"DEALER"):
    properties = b""
    for name, value in ((b"Socket-Type", socket_type), (b"Identity", b"")):
        properties += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    return frame(b"\x05READY" + properties, command=True)


def target(address):
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


class Raw:
    """A TCP connection to the port; what is said on it is up to the caller."""

    def __init__(self, address, receive_bytes=None):
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(target(address))
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        """False: the other side has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def send_some(self, data, seconds):
        """Send for so long at most; what the other side does not take by then stays unsent."""
        self.socket.settimeout(seconds)
        try:
            self.socket.sendall(data)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
        self.socket.settimeout(DEADLINE_S)

    def read(self, count):
        while len(self.buffer) < count:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionResetError("closed")
            self.buffer += piece
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def wait_closed(self, deadline_s=DEADLINE_S):
        """True when the other side ends the connection in time; what it says before is thrown away."""
        self.socket.settimeout(deadline_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True


class Dealer(Raw):
    """A connection after a handshake that is as it should be."""

    def __init__(self, address, receive_bytes=None):
        super().__init__(address, receive_bytes)
        self.send(greeting() + ready())
        self.read(64)
        self.read_frame()

    def read_frame(self):
        flags = self.read(1)[0]
        size = struct.unpack(">Q", self.read(8))[0] if flags & LONG else self.read(1)[0]
        return flags, self.read(size)

    def put(self, parts):
        return self.send(b"".join(frame(part, more=i + 1 < len(parts)) for i, part in enumerate(parts)))

    def get(self):
        """The next message: header fields, parts behind it."""
        parts = []
        while True:
            flags, data = self.read_frame()
            if flags & COMMAND:
                continue
            parts.append(data)
            if not flags & MORE:
                return unpack(HEADER, parts[0][8:]), parts[1:]

    def ask(self, parts, req_id):
        """Send, and wait for the answer to that request."""
        self.put(parts)
        while True:
            header, rest = self.get()
            if header.get("req_id") == req_id:
                return header, rest


def spec(params, workers=1, servers=1):
    """The canonical bytes of a job spec with one tensor and plain SGD."""
    head = struct.pack("<4sIIIIIII", b"GKSP", 2, workers, servers, 1, 1, 0, 2)
    head += struct.pack("<QQQQQ", 7, 100, params, 0, params)
    head += struct.pack("<fffffffIII", 0.1, 0, 0, 0, 0, 0, 0, 1, 0, 1)
    return head + b"\x04tiny" + struct.pack("<III", 0, 1, params) + b"\x01w"


def init(dealer, session, params, chunk_floats=1 << 18):
    """Version 0 of all zeros, as rank 0 of the only worker; the range of each chunk."""
    values = bytes(4 * chunk_floats)
    crc = crc32c(values)
    chunks = -(-params // chunk_floats)
    ranges = []
    for chunk in range(chunks):
        lo, hi = chunk * chunk_floats, min(params, (chunk + 1) * chunk_floats)
        parts = [values[:4 * (hi - lo)]]
        crcs = [crc if hi - lo == chunk_floats else crc32c(parts[0])]
        if chunk == 0:
            parts.insert(0, spec(params))
            crcs.insert(0, crc32c(parts[0]))
        req_id = 100 + chunk
        header, rest = dealer.ask(message(INIT, *parts, crcs=crcs, session=session, req_id=req_id, incarnation=1, lo=lo, hi=hi,
                                          init_id=5, job_uid_hi=6, job_uid_lo=7, chunk=chunk, chunks=chunks, index_encoding=4,
                                          value_encoding=1, count=hi - lo), req_id)
        if header["kind"] != INIT_OK:
            raise ConnectionError(f"INIT refused: {header} {rest}")
        ranges.append((lo, hi))
    return ranges
