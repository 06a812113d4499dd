"""Every byte of SEND, WRITE, READ and atomics checked between two ends: the guest's end, on pyverbs.

    verify.py [-d DEVICE] [-x GID_INDEX] [-p PORT]           waits for a client; the other end may be `rnic verify HOST`
    verify.py [-d DEVICE] [-x GID_INDEX] [-p PORT] ... HOST  is the client; the other end may be `rnic verify`

perftest does not look at what arrives. Here both ends know each byte of each transfer beforehand, and look at the whole
region after it. Exit status 0 where every byte is right, 1 otherwise.

The two ends talk over one TCP connection, a JSON object a line. The client decides, the server does as it is told.

Pattern. Byte j of a buffer with seed s is, with k = j mod 4072, the byte k % 8 (little endian) of word(s, k / 8), the
(k / 8)-th output of splitmix64 started at s: word(0, 0) = 0xE220A8397B1DCDAF. 4072 is no multiple of any packet's payload,
so a packet in a wrong place shows. The pattern of transfer T has the seed word(seed, 4 * T + side): side 0 for bytes
that the client makes, 1 for the server's, 2 for what is in a target before, 3 (a single word) for an atomic's operand.

Memory. Each end registers the largest size, rounded up to 8, and 64 bytes before and after. `va` names the first byte
after the front 64. Where bytes are to arrive, all of it is filled from side 2 before and looked at afterwards.

Messages, C from the client, S from the server:

    C  hello   version 1, seed, mtu, rounds, sizes, ops, qpn, psn, gid, va, rkey, length, max_rd_atomic, max_dest_rd_atomic,
               timeout (code), retry, rnr_retry
    S  hello   version, qpn, psn, gid, va, rkey, length, max_rd_atomic, max_dest_rd_atomic  (or: error, why)
    C  ready   and S  ready, when the queue pair is in RTS
    For each round, op, size (atomics: 8 only), first with the client as requester, then with the server, numbered from 0:
    C  step    transfer, op, size, requester ("client" or "server"), swap (cmp_swap only). C is prepared before.
    S  prepared  transfer
    C  go      transfer; only where the server is the requester
       done    transfer, status ("success", or the verbs name of what went wrong); from the requester
    S  checked transfer, bytes, wrong, first (offset from va of the first wrong byte, -1 for none), then C the same
    C  end     and S  end: transfers, bytes, wrong

Scripts. With --script FILE the client's hello has `script`, and there are no steps: after ready both ends post all of their
requests, `depth` of them in flight, one with `wait` when all before it have ended, and take what comes.
    C  played  requests (status of each), receives (len and immediate of each), memory (empty); when all of its own has ended
    S  played  the same, memory is the CRC-32 of each 1024 bytes of its region; C looks at its own now, and prints both as JSON
The region is 64 bytes, the arena where the peer reads and writes, a source of the same length, a place for each SEND of
the peer and one for each READ and atomic of its own (each rounded up to 64, and 64 more), 64 bytes. It is filled
with the pattern of the seed word(seed, side), and 64 zero bytes at the start of the arena, which only atomics change. See interop/script.py.

Operations: send and write_imm (immediate: T as 32 bits, network order on the wire) take a receive of the responder, of size
and of 0 bytes. fetch_add adds the operand to the first 8 bytes of the responder's pattern. cmp_swap swaps the operand in: in even
rounds the compared value is the one that is there, in odd rounds that plus 1, and nothing may change.
"""

import argparse
import ipaddress
import json
import random
import socket
import sys
import time
import zlib

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 18520
VERSION = 1
GUARD = 64
PERIOD_WORDS = 509
SIZES = "1,2,64,255,256,257,1000,4096,65536,1048576"
OPS = {
    "send": e.IBV_WR_SEND,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "fetch_add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "cmp_swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
}
ATOMICS = ("fetch_add", "cmp_swap")
TAKES_RECEIVE = ("send", "write_imm")
MTU = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
STATUS = {
    e.IBV_WC_SUCCESS: "success",
    e.IBV_WC_RETRY_EXC_ERR: "retry-exceeded",
    e.IBV_WC_RNR_RETRY_EXC_ERR: "rnr-retry-exceeded",
    e.IBV_WC_REM_ACCESS_ERR: "remote-access-error",
    e.IBV_WC_REM_INV_REQ_ERR: "remote-invalid-request",
    e.IBV_WC_REM_OP_ERR: "remote-operation-error",
    e.IBV_WC_WR_FLUSH_ERR: "flushed",
}
COMPLETION_TIMEOUT_S = 60
MASK = (1 << 64) - 1
CLIENT, SERVER, GUARD_SIDE, OPERAND = range(4)
SIDES = ("client", "server")
# Scripts: bytes at the start of an arena that only atomics change, bytes for each CRC, receives that wait at most, wr_id of receives.
CELLS, BLOCK, RECEIVES_AHEAD, RECEIVE = 64, 1024, 8, 1


class VerifyError(Exception):
    """The test cannot go on; says what happened to which peer and queue pair."""


def main():
    arguments = parse()
    try:
        if arguments.host:
            connection = socket.create_connection((arguments.host, arguments.port), timeout=COMPLETION_TIMEOUT_S)
        else:
            with socket.create_server(("", arguments.port)) as listener:
                print("waiting for a client", flush=True)
                connection = listener.accept()[0]
            connection.settimeout(COMPLETION_TIMEOUT_S)
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lines = Lines(connection)
            total = Client(arguments, lines).test() if arguments.host else Server(arguments, lines).test()
    except (VerifyError, OSError) as error:
        print(f"verify.py: {error}", file=sys.stderr)
        return 1
    if "script" in total:
        print(json.dumps(total))
        return 0
    print(f"verify: {lines.peer}: {total['transfers']} transfers, {total['bytes']} bytes compared, {total['wrong']} wrong")
    return 1 if total["wrong"] else 0


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("host", nargs="?")
    parser.add_argument("-d", dest="device", default="rxe0")
    parser.add_argument("-x", dest="gid_index", type=int, default=1)
    parser.add_argument("-p", dest="port", type=int, default=PORT)
    parser.add_argument("-m", dest="mtu", type=int, default=1024, choices=sorted(MTU))
    parser.add_argument("-s", dest="sizes", default=SIZES)
    parser.add_argument("-n", dest="rounds", type=int, default=4)
    parser.add_argument("-o", dest="ops", default=",".join(OPS))
    parser.add_argument("-r", dest="retry", type=int, default=6)
    parser.add_argument("--timeout", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--script", metavar="FILE")
    return parser.parse_args()


# --- bytes ---------------------------------------------------------------------------------------------


def word(seed, index):
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def pattern(seed, length):
    words = min((length + 7) // 8, PERIOD_WORDS)
    period = b"".join(word(seed, index).to_bytes(8, "little") for index in range(words))
    return (period * (length // len(period) + 1))[:length] if length else b""


def differences(found, expected):
    """How many bytes differ, and where the first one is."""
    if found == expected:
        return 0, -1
    places = [index for index, (a, b) in enumerate(zip(found, expected)) if a != b]
    return len(places), places[0]


# --- the wire between the two programs -----------------------------------------------------------------


class Lines:
    """JSON lines over TCP."""

    def __init__(self, connection):
        self.connection = connection
        self.file = connection.makefile("rb")
        self.peer = connection.getpeername()[0]

    def send(self, kind, **values):
        self.connection.sendall(json.dumps({"type": kind, **values}).encode() + b"\n")

    def receive(self, kind):
        line = self.file.readline()
        if not line:
            raise VerifyError(f"{self.peer} has closed the connection where '{kind}' was due")
        message = json.loads(line)
        if message["type"] == "error":
            raise VerifyError(f"{self.peer} refuses: {message['why']}")
        if message["type"] != kind:
            raise VerifyError(f"{self.peer} says '{message['type']}' where '{kind}' was due")
        return message


# --- the two ends --------------------------------------------------------------------------------------


def slot(size):
    """A place for a message of a script, and bytes behind it that stay as they are."""
    return -(-size // GUARD) * GUARD + GUARD


def comes_back(op):
    return op == "read" or op in ATOMICS


def script_length(script, side):
    own, incoming = script[SIDES[side]], script[SIDES[1 - side]]
    places = [request["size"] for request in own if comes_back(request["op"])]
    places += [request["size"] for request in incoming if request["op"] == "send"]
    return 2 * GUARD + 2 * script["arena"] + sum(map(slot, places))


class End:
    """What both ends have: a queue pair, a region, and how a transfer goes."""

    side = None

    def __init__(self, arguments, lines):
        self.arguments, self.lines = arguments, lines
        self.context = Context(name=arguments.device)
        self.pd = PD(self.context)
        self.sum = {"transfers": 0, "bytes": 0, "wrong": 0}

    def open(self, seed, sizes, script):
        self.seed, self.script = seed, script
        self.length = script_length(script, self.side) if script else (max([*sizes, 8]) + 7) // 8 * 8 + 2 * GUARD
        self.region = MR(self.pd, self.length, ACCESS)
        # Where the requester takes its bytes from, and puts none that are compared.
        self.source = MR(self.pd, self.length, ACCESS)
        self.cq = CQ(self.context, 64)
        capabilities = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capabilities))
        self.psn = random.randrange(1 << 24)

    def about(self):
        limits = self.context.query_device()
        return {
            "version": VERSION,
            "qpn": self.qp.qp_num,
            "psn": self.psn,
            "gid": self.context.query_gid(1, self.arguments.gid_index).gid,
            "va": self.region.buf + GUARD,
            "rkey": self.region.rkey,
            "length": self.length,
            "max_rd_atomic": min(limits.max_qp_rd_atom, 16),
            "max_dest_rd_atomic": min(limits.max_qp_rd_atom, 16),
        }

    def connect(self, hello, peer):
        """To RTS, as the client's hello says; `peer` is the other end's hello."""
        self.peer = peer
        own = self.about()
        # pyverbs reads only the form with all eight groups.
        gid = ipaddress.IPv6Address(peer["gid"]).exploded
        route = GlobalRoute(dgid=GID(gid), sgid_index=self.arguments.gid_index)
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = ACCESS
        attributes.path_mtu = MTU[hello["mtu"]]
        attributes.dest_qp_num = peer["qpn"]
        attributes.rq_psn, attributes.sq_psn = peer["psn"], self.psn
        attributes.max_dest_rd_atomic = min(own["max_dest_rd_atomic"], peer["max_rd_atomic"])
        attributes.max_rd_atomic = min(own["max_rd_atomic"], peer["max_dest_rd_atomic"])
        attributes.min_rnr_timer = 12
        attributes.timeout, attributes.retry_cnt = hello["timeout"], hello["retry"]
        attributes.rnr_retry = hello["rnr_retry"]
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attributes)

    def transfer_seed(self, transfer, side):
        return word(self.seed, 4 * transfer + side)

    def fill(self, transfer, inner=b""):
        """The whole region from side 2, but for `inner` at its start. Returns what it then holds."""
        content = bytearray(pattern(self.transfer_seed(transfer, GUARD_SIDE), self.length))
        content[GUARD : GUARD + len(inner)] = inner
        self.region.write(bytes(content), self.length)
        return content

    def prepare(self, step):
        """Before the transfer. What the region must hold after it is kept for `check`."""
        transfer, op, size = step["transfer"], step["op"], step["size"]
        requester = CLIENT if step["requester"] == "client" else SERVER
        self.requesting = requester == self.side
        self.expected = None
        there = pattern(self.transfer_seed(transfer, 1 - requester), size)
        value, operand = int.from_bytes(there[:8], "little"), self.transfer_seed(transfer, OPERAND)
        sent = pattern(self.transfer_seed(transfer, requester), size)
        compare = value if step.get("swap") else (value + 1) & MASK
        if self.requesting:
            if op == "read" or op in ATOMICS:
                self.expected = self.fill(transfer)
                self.expected[GUARD : GUARD + size] = there
            elif size:
                self.source.write(sent, size)
            self.work = self.request(op, size, transfer, compare if op == "cmp_swap" else operand, operand)
            return
        if op in TAKES_RECEIVE:
            room = SGE(self.region.buf + GUARD, size if op == "send" else 0, self.region.lkey)
            self.qp.post_recv(RecvWR(wr_id=transfer, num_sge=1, sg=[room]))
        self.expected = self.fill(transfer, there if op == "read" or op in ATOMICS else b"")
        if op in ("send", "write", "write_imm"):
            self.expected[GUARD : GUARD + size] = sent
        elif op == "fetch_add":
            self.expected[GUARD : GUARD + 8] = ((value + operand) & MASK).to_bytes(8, "little")
        elif op == "cmp_swap" and step["swap"]:
            self.expected[GUARD : GUARD + 8] = operand.to_bytes(8, "little")

    def request(self, op, size, transfer, compare_add, swap):
        receives = op == "read" or op in ATOMICS
        region, address = (self.region, self.region.buf + GUARD) if receives else (self.source, self.source.buf)
        place = SGE(address, size, region.lkey)
        work = SendWR(wr_id=transfer, opcode=OPS[op], num_sge=1, sg=[place])
        if op == "write_imm":
            work.imm_data = socket.htonl(transfer & 0xFFFFFFFF)
        if op in ATOMICS:
            work.set_wr_atomic(self.peer["rkey"], self.peer["va"], compare_add, swap)
        elif op != "send":
            work.set_wr_rdma(self.peer["rkey"], self.peer["va"])
        return work

    def completion(self, what):
        deadline = time.monotonic() + COMPLETION_TIMEOUT_S
        while True:
            count, found = self.cq.poll(1)
            if count:
                return found[0]
            if time.monotonic() > deadline:
                raise VerifyError(
                    f"{self.lines.peer}, queue pair {self.peer['qpn']:#x}: no completion of {what} in {COMPLETION_TIMEOUT_S} s"
                )
            time.sleep(0.0005)

    def perform(self, step):
        """The requester's part: post, wait, say how it ended."""
        self.qp.post_send(self.work)
        status = self.completion(step["op"]).status
        name = STATUS.get(status, f"status-{status}")
        self.lines.send("done", transfer=step["transfer"], status=name)
        return name

    def require_success(self, step, status):
        if status != "success":
            raise VerifyError(
                f"{self.lines.peer}, queue pair {self.peer['qpn']:#x}: transfer {step['transfer']}, {step['op']} of"
                f" {step['size']} bytes, requester {step['requester']}, ended with {status}"
            )

    def check(self, step):
        """After the transfer: this end's part of 'checked'."""
        wrong, first, count = 0, -1, 0
        if not self.requesting and step["op"] in TAKES_RECEIVE:
            arrived = self.completion(f"the receive for {step['op']}")
            self.require_success(step, STATUS.get(arrived.status, f"status-{arrived.status}"))
            # rxe gives the length of the message also where no byte went through the receive.
            if arrived.byte_len != step["size"]:
                wrong, first = wrong + 1, 0
                print(f"transfer {step['transfer']}: {arrived.byte_len} bytes completed, not {step['size']}")
            if step["op"] == "write_imm" and socket.ntohl(arrived.imm_data) != step["transfer"]:
                wrong, first = wrong + 1, 0
                print(f"transfer {step['transfer']}: immediate {socket.ntohl(arrived.imm_data):#x}")
        if self.expected is not None:
            differing, place = differences(self.region.read(self.length, 0), bytes(self.expected))
            count = self.length
            if differing:
                wrong, first = wrong + differing, place - GUARD
                print(f"transfer {step['transfer']} {step}: {differing} bytes differ, the first at {first}")
        self.sum["transfers"] += 1
        self.sum["bytes"] += count
        self.sum["wrong"] += wrong
        return {"transfer": step["transfer"], "bytes": count, "wrong": wrong, "first": first}


    # --- scripts ---

    def prepare_script(self):
        content = bytearray(pattern(word(self.seed, self.side), self.length))
        content[GUARD : GUARD + CELLS] = bytes(CELLS)
        self.region.write(bytes(content), self.length)

    def play_script(self):
        """Posts the own part, and waits until it and all that the peer sends has ended."""
        own, incoming = self.script[SIDES[self.side]], self.script[SIDES[1 - self.side]]
        source = self.region.buf + GUARD + self.script["arena"]
        inbox = source + self.script["arena"]
        returned = inbox + sum(slot(request["size"]) for request in incoming if request["op"] == "send")
        incoming = [request for request in incoming if request["op"] in TAKES_RECEIVE]
        statuses, received, posted, given = [], [], 0, 0
        while len(statuses) < len(own) or len(received) < len(incoming):
            while given < len(incoming) and given - len(received) < RECEIVES_AHEAD:
                size = incoming[given]["size"] if incoming[given]["op"] == "send" else 0
                self.qp.post_recv(RecvWR(wr_id=RECEIVE, num_sge=1, sg=[SGE(inbox, size, self.region.lkey)]))
                inbox += slot(size) if incoming[given]["op"] == "send" else 0
                given += 1
            while posted < len(own) and posted - len(statuses) < self.script["depth"]:
                request = own[posted]
                if request.get("wait") and len(statuses) < posted:
                    break
                address = source + request.get("from", 0)
                if comes_back(request["op"]):
                    address, returned = returned, returned + slot(request["size"])
                self.qp.post_send(self.script_request(request, address))
                posted += 1
            done = self.completion("a script")
            status = STATUS.get(done.status, f"status-{done.status}")
            if status != "success":
                raise VerifyError(
                    f"{self.lines.peer}, queue pair {self.peer['qpn']:#x}: after {len(statuses)} requests and {len(received)}"
                    f" receives of a script: {status}"
                )
            if done.wr_id == RECEIVE:
                immediate = socket.ntohl(done.imm_data) if done.wc_flags & e.IBV_WC_WITH_IMM else None
                received.append({"len": done.byte_len, "immediate": immediate})
            else:
                statuses.append(status)
        return {"requests": statuses, "receives": received, "memory": []}

    def script_request(self, request, address):
        op, remote = request["op"], self.peer["va"] + request.get("at", 0)
        work = SendWR(opcode=OPS[op], num_sge=1, sg=[SGE(address, request["size"], self.region.lkey)])
        if op == "write_imm":
            work.imm_data = socket.htonl(request["operand"] & 0xFFFFFFFF)
        if op == "cmp_swap":
            work.set_wr_atomic(self.peer["rkey"], remote, request["compare"], request["operand"])
        elif op == "fetch_add":
            work.set_wr_atomic(self.peer["rkey"], remote, request["operand"], 0)
        elif op != "send":
            work.set_wr_rdma(self.peer["rkey"], remote)
        return work

    def memory(self):
        content = self.region.read(self.length, 0)
        return [zlib.crc32(content[at : at + BLOCK]) for at in range(0, self.length, BLOCK)]


class Client(End):
    """Decides what is tested."""

    side = CLIENT

    def test(self):
        arguments, lines = self.arguments, self.lines
        sizes = [int(size) for size in arguments.sizes.split(",")]
        ops = arguments.ops.split(",")
        if set(ops) - set(OPS):
            raise VerifyError(f"-o takes {', '.join(OPS)}")
        script = None
        if arguments.script:
            with open(arguments.script, encoding="utf-8") as file:
                script, ops, sizes = json.load(file), [], []
        self.open(arguments.seed, sizes, script)
        hello = {"seed": arguments.seed, "mtu": arguments.mtu, "rounds": arguments.rounds, "sizes": sizes, "ops": ops}
        hello.update(self.about(), timeout=arguments.timeout, retry=arguments.retry, rnr_retry=7)
        if script:
            hello["script"] = script
        lines.send("hello", **hello)
        self.connect(hello, lines.receive("hello"))
        if script:
            self.prepare_script()
        lines.send("ready")
        lines.receive("ready")
        if script:
            return {"script": self.results()}
        transfer = 0
        for number in range(arguments.rounds):
            for op in ops:
                for size in [8] if op in ATOMICS else sizes:
                    for requester in ("client", "server"):
                        step = {"transfer": transfer, "op": op, "size": size, "requester": requester}
                        if op == "cmp_swap":
                            step["swap"] = number % 2 == 0
                        self.one(step)
                        transfer += 1
        lines.send("end")
        others = lines.receive("end")
        return {name: self.sum[name] + (others[name] if name != "transfers" else 0) for name in self.sum}

    def results(self):
        """What came of a script at both ends."""
        own = self.play_script()
        self.lines.send("played", **own)
        theirs = self.lines.receive("played")
        del theirs["type"]
        own["memory"] = self.memory()
        self.lines.send("end")
        return {"client": own, "server": theirs}

    def one(self, step):
        self.prepare(step)
        self.lines.send("step", **step)
        self.lines.receive("prepared")
        if self.requesting:
            status = self.perform(step)
        else:
            self.lines.send("go", transfer=step["transfer"])
            status = self.lines.receive("done")["status"]
        self.require_success(step, status)
        others = self.lines.receive("checked")
        if others["wrong"]:
            print(f"the server says of {step}: {others}")
        self.lines.send("checked", **self.check(step))


class Server(End):
    """Does as it is told."""

    side = SERVER

    def test(self):
        lines = self.lines
        hello = lines.receive("hello")
        why = None
        if hello["version"] != VERSION or set(hello["ops"]) - set(OPS) or hello["mtu"] not in MTU:
            why = f"this is version {VERSION} with {', '.join(OPS)} at MTU {sorted(MTU)}"
            lines.send("error", why=why)
            raise VerifyError(f"{lines.peer} asks for what is not here: {why}")
        script = hello.get("script")
        self.open(hello["seed"], hello["sizes"], script)
        lines.send("hello", **self.about())
        self.connect(hello, hello)
        if script:
            self.prepare_script()
        lines.receive("ready")
        lines.send("ready")
        if script:
            own = self.play_script()
            lines.receive("played")
            lines.send("played", **dict(own, memory=self.memory()))
            lines.receive("end")
            return dict(self.sum, transfers=len(script["client"]) + len(script["server"]))
        wrong = 0
        while True:
            message = json.loads(self.lines.file.readline() or '{"type": "closed"}')
            if message["type"] == "end":
                lines.send("end", **self.sum)
                # The client's findings count as well.
                return dict(self.sum, wrong=self.sum["wrong"] + wrong)
            if message["type"] != "step":
                raise VerifyError(f"{lines.peer}, queue pair {self.peer['qpn']:#x}: '{message['type']}' where a step was due")
            wrong += self.one(message)

    def one(self, step):
        self.prepare(step)
        self.lines.send("prepared", transfer=step["transfer"])
        if self.requesting:
            self.lines.receive("go")
            status = self.perform(step)
        else:
            status = self.lines.receive("done")["status"]
        self.require_success(step, status)
        self.lines.send("checked", **self.check(step))
        return self.lines.receive("checked")["wrong"]


if __name__ == "__main__":
    sys.exit(main())
