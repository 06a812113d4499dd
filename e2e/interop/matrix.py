"""What is played between Linux and us: one row a run, made from a few tables. It starts nothing.

A *cell* is an operation, our face, who is the client, and the IP version. A cell has one or more runs: message sizes at one
path MTU, path MTUs at one size, and a run in which one frame of a hundred gets lost on either way.
"""

import dataclasses
import zlib

SIZES = (2, 64, 1000, 4096, 65536, 1 << 20)
MTUS = (256, 512, 1024, 2048, 4096)
USUAL_MTU = 1024
USUAL_SIZE = 65536
LOSS_SIZE = 16384
# A run has about so many packets, and between 5 (perftest's least) and 200 messages.
PACKETS = 2000
MESSAGES_MIN, MESSAGES_MAX = 5, 200
RPING_ROUNDS = 1000
FEW_SIZES = (2, 4096, 65536)
# What the byte-exact test goes through in a run, for any face and for ERNIC. With the longest one where packets are long.
VERIFY_SIZES = {"native": (1, 2, 64, 255, 256, 257, 1000, 4096, 65536), "ernic": (64, 192, 256, 1024, 4096, 65536)}
VERIFY_LONGEST = 1 << 20
VERIFY_LONGEST_MTU_MIN = 1024
LATENCY_SIZES = (2, 4096, 1 << 20)
# ERNIC moves multiples of this many bytes only (PG332: lengths and addresses).
ERNIC_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Operation:
    """One row of the table below."""

    # What plays it: "perf", "rping", "verify", "script" or "break".
    kind: str
    # perftest's program on Linux, and the word of `rnic perf`.
    linux: str = ""
    ours: str = ""
    service: str = "RC"
    # Message sizes in bytes. 0: the program has a list of its own.
    sizes: tuple = SIZES
    mtus: tuple = (USUAL_MTU,)
    faces: tuple = ("native", "ernic")
    # What of it is played with frames getting lost.
    with_loss: bool = False
    clients: tuple = ("linux", "rnic")
    families: tuple = (4, 6)


OPERATIONS = {
    "rping": Operation("rping", sizes=(100,), with_loss=True),
    "verify": Operation("verify", sizes=(0,), mtus=MTUS, with_loss=True),
    "script": Operation("script", sizes=(0,), mtus=(256, 1024, 4096), with_loss=True),
    "send_bw": Operation("perf", "ib_send_bw", "send-bw", mtus=MTUS, with_loss=True),
    "write_bw": Operation("perf", "ib_write_bw", "write-bw", mtus=MTUS, with_loss=True),
    "read_bw": Operation("perf", "ib_read_bw", "read-bw", mtus=MTUS, with_loss=True),
    "atomic_bw": Operation("perf", "ib_atomic_bw", "atomic-bw", sizes=(8,), faces=("native",), with_loss=True),
    "send_lat": Operation("perf", "ib_send_lat", "send-lat", sizes=LATENCY_SIZES, with_loss=True),
    "write_lat": Operation("perf", "ib_write_lat", "write-lat", sizes=LATENCY_SIZES),
    "read_lat": Operation("perf", "ib_read_lat", "read-lat", sizes=LATENCY_SIZES),
    "atomic_lat": Operation("perf", "ib_atomic_lat", "atomic-lat", sizes=(8,), faces=("native",)),
    "uc_send_bw": Operation("perf", "ib_send_bw", "send-bw", service="UC", sizes=FEW_SIZES, faces=("native",)),
    "uc_write_bw": Operation("perf", "ib_write_bw", "write-bw", service="UC", sizes=FEW_SIZES, faces=("native",)),
    "ud_send_bw": Operation("perf", "ib_send_bw", "send-bw", service="UD", sizes=(2, 64, 1000), faces=("native",)),
    # In the middle of a transfer of ours: the program on Linux, the link, the guest. And our program, in one of Linux's.
    "break_program": Operation("break", "ib_write_bw", "write-bw", sizes=(USUAL_SIZE,), clients=("rnic",)),
    "break_link": Operation("break", "ib_write_bw", "write-bw", sizes=(USUAL_SIZE,), clients=("rnic",)),
    "break_ours": Operation("break", "ib_write_bw", "write-bw", sizes=(USUAL_SIZE,), clients=("linux",)),
    "break_guest": Operation("break", "ib_write_bw", "write-bw", sizes=(USUAL_SIZE,), clients=("rnic",)),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: two programs, one on Linux and one of ours."""

    operation: str
    face: str
    client: str
    family: int
    size: int
    mtu: int
    loss: bool = False

    @property
    def about(self):
        return OPERATIONS[self.operation]

    @property
    def name(self):
        parts = [self.operation, self.face, f"{self.client}-client", f"ipv{self.family}", f"{self.size}B", f"mtu{self.mtu}"]
        return "-".join([*parts, *(["loss"] if self.loss else [])])

    @property
    def messages(self):
        """How many messages perftest sends in each direction."""
        packets = max(1, -(-self.size // self.mtu))
        return max(MESSAGES_MIN, min(MESSAGES_MAX, PACKETS // packets))

    @property
    def verify_sizes(self):
        """Message sizes of the byte-exact test."""
        longest = (VERIFY_LONGEST,) if self.mtu >= VERIFY_LONGEST_MTU_MIN and not self.loss else ()
        return VERIFY_SIZES[self.face] + longest

    @property
    def verify_operations(self):
        """Operations of the byte-exact test and of scripts."""
        return ("send", "write", "read") if self.face == "ernic" else ("send", "write", "write_imm", "read", "fetch_add", "cmp_swap")

    @property
    def script_seed(self):
        """Each run plays a script of its own."""
        return zlib.crc32(self.name.encode())

    @property
    def ends_guest(self):
        return self.operation == "break_guest"


def cells():
    """(operation, face, client, family) of each cell, those that end the guest last."""
    found = [
        (name, face, client, family)
        for name, operation in OPERATIONS.items()
        for face in operation.faces
        for client in operation.clients
        for family in operation.families
    ]
    return sorted(found, key=lambda cell: cell[0] == "break_guest")


def sizes(operation, face):
    """Message sizes that an operation has on a face."""
    some = OPERATIONS[operation].sizes
    if face == "native" or some == (0,):
        return list(some)
    # A shorter one becomes the shortest, and the others lose what is over.
    return sorted({max(ERNIC_ALIGNMENT, size // ERNIC_ALIGNMENT * ERNIC_ALIGNMENT) for size in some})


def full():
    """The whole matrix."""
    runs = []
    for cell in cells():
        operation, face, *_ = cell
        about = OPERATIONS[operation]
        some = sizes(operation, face)
        runs += [Run(*cell, size, USUAL_MTU) for size in some]
        usual = USUAL_SIZE if USUAL_SIZE in some else some[-1]
        runs += [Run(*cell, usual, mtu) for mtu in about.mtus if mtu != USUAL_MTU]
        if about.with_loss:
            runs.append(Run(*cell, LOSS_SIZE if len(some) > 1 else some[0], USUAL_MTU, loss=True))
    return runs


# What the smoke set leaves out, by operation and face.
NOT_SMOKE = {(name, "ernic") for name in ("send_lat", "write_lat", "read_lat")}
NOT_SMOKE |= {(name, "ernic") for name in OPERATIONS if name.startswith("break_")}
ONE_CLIENT = {("uc_send_bw", "native"): "linux", ("uc_write_bw", "native"): "rnic"}
ONE_CLIENT |= {("script", "native"): "linux", ("script", "ernic"): "rnic"}
ONE_CLIENT |= {("read_lat", "native"): "linux", ("atomic_lat", "native"): "rnic"}


def smoke():
    """At most 40 runs that see every operation, both faces, directions and IP versions, and all sizes and path MTUs."""
    runs = []
    for row, (operation, about) in enumerate(OPERATIONS.items()):
        for column, face in enumerate(about.faces):
            for client in about.clients:
                if (operation, face) in NOT_SMOKE or ONE_CLIENT.get((operation, face), client) != client:
                    continue
                # Neither direction nor face always meets the same IP version.
                family = (4, 6)[(row + column + (client == "rnic")) % 2]
                number = len(runs)
                some = sizes(operation, face)
                # What is not acknowledged, and what breaks, leaves frames behind: the more, the smaller they are (play.py).
                usual = about.service != "RC" or about.kind == "break"
                mtu = USUAL_MTU if usual else MTUS[number % len(MTUS)]
                runs.append(Run(operation, face, client, family, some[number % len(some)], mtu))
    runs.append(Run("verify", "native", "rnic", 4, 0, USUAL_MTU, loss=True))
    runs.append(Run("send_bw", "native", "linux", 6, LOSS_SIZE, USUAL_MTU, loss=True))
    return sorted(runs, key=lambda run: run.ends_guest)


def check():
    """What must hold of the tables. Returns what does not."""
    wrong = []
    few, all_of_them = smoke(), full()
    if len(few) > 40:
        wrong.append(f"the smoke set has {len(few)} runs, more than 40")
    for what, wanted, found in [
        ("sizes", set(SIZES), {run.size for run in few}),
        ("path MTUs", set(MTUS), {run.mtu for run in few}),
        ("families", {4, 6}, {run.family for run in few}),
        ("operations", set(OPERATIONS), {run.operation for run in few}),
    ]:
        if wanted - found:
            wrong.append(f"the smoke set lacks {what} {sorted(wanted - found)}")
    names = [run.name for run in all_of_them]
    if len(set(names)) != len(names):
        wrong.append("two runs of the matrix have the same name")
    return wrong


if __name__ == "__main__":
    for each in check():
        print(each)
    print(f"{len(smoke())} runs in the smoke set, {len(full())} in the matrix, {len(cells())} cells")
