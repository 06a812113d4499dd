#!/usr/bin/env python3
"""Judge: virtual machines with our ERNIC on their PCI bus. Our driver in a guest moves data to another guest, to the native
face in a process, and to Linux' rdma_rxe in a third guest; the guest's kernel delivers its interrupts; and devices survive
everything that may happen to a guest.

    run.py --programs FOLDER [--rounds N] [--repeat N] [CASE]...
    run.py --programs FOLDER --gate          what .ci/run plays, some two minutes
    run.py --prepare                         only fetches and builds what is needed

FOLDER has `rnic` and `ernic_pair`, static, as e2e/card/build makes them; they run here too. Without CASE all are played. Prints a line for
each case, and a last line for .ci/run. QEMU, a kernel and rxe's guest are fetched once (target/e2e, or RNIC_CACHE).
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback

import cards
from cards import Guest, Server

# Found by `cards`.
import image
import packages
from processes import GuestError, Process

sys.path.append(os.path.join(os.path.dirname(cards.HERE), "interop"))

import machine  # noqa: E402
import matrix  # noqa: E402
import play  # noqa: E402

NIC, MEMORY = "/tmp/nic1", "/huge/rnic"
OWN_IP, PEER_IP = play.OURS[4], play.LINUX[4]
OWN_MAC, NATIVE_MAC, RXE_MAC = play.OUR_MAC, "02:00:00:00:00:02", "52:54:00:00:00:02"
VERIFY_SIZES = ",".join(map(str, matrix.VERIFY_SIZES["ernic"]))


class World:
    """Two NICs with a wire between them and a guest each; the first guest has NICs towards other peers besides."""

    def __init__(self, arguments, folder, peers):
        self.arguments, self.folder = arguments, folder
        self.rnic = os.path.join(arguments.programs, "rnic")
        self.programs = {"rnic": self.rnic, "program": os.path.join(arguments.programs, "ernic_pair")}
        self.guests, self.servers = [], []
        # A peer's name, and the first guest's NIC towards it.
        self.nics = {}
        self.peers, self.native, self.rxe = peers, None, None

    def start(self):
        """Everything in its order: of two ends of a wire the one that listens is first, and a NIC comes before its machine."""
        if "rxe" in self.peers:
            self.rxe = play.Player(os.path.join(self.folder, "rxe"), self.folder, self.rnic)
            self.rxe.start()
            self.rxe.guest.wait_for_file(self.rxe.socket)
        wire = os.path.join(self.folder, "wire")
        self.servers = [self.server("a", f"qemu-stream:{wire}?listen")]
        self.servers[0].wait_for_file(wire)
        self.servers.append(self.server("b", f"qemu-stream:{wire}"))
        if "native" in self.peers:
            self.start_native()
        if self.rxe:
            self.add_peer("rxe", self.rxe.socket)
        for server in self.servers:
            server.wait_until_ready()
        sockets = [server.socket for server in self.servers]
        a, b = self.boot("a", [sockets[0], *sockets[2:]], iommu=True), self.boot("b", [sockets[1]])
        for guest in (a, b):
            guest.wait_until_booted()
        if self.rxe:
            self.rxe.finish_boot()

    def start_native(self):
        """`rnic verify` on the native face, which serves one client after the other."""
        wire, self.native_port = os.path.join(self.folder, "native"), machine.free_port()
        command = [self.rnic, "verify", "--link", f"qemu-stream:{wire}?listen", "--address", f"{PEER_IP}/24"]
        command += ["--mac", NATIVE_MAC, "--port", str(self.native_port), "--keep"]
        self.native = Process("rnic verify", command, f"{self.folder}/native.log")
        self.native.wait_for_file(wire)
        self.add_peer("native", wire)

    def add_peer(self, name, wire):
        # It answers ARP for the card: a peer finds it as it would any other host.
        flags = ["--address", f"{OWN_IP}/24", "--mac", OWN_MAC]
        self.servers.append(self.server(name, f"qemu-stream:{wire}", flags))
        self.nics[name] = f"/tmp/nic{len(self.nics) + 2}"

    def server(self, name, link, flags=()):
        return Server(self.folder, name, self.rnic, link, flags)

    def boot(self, name, sockets, iommu=False):
        guest = Guest(self.folder, name, self.programs, sockets, iommu=iommu)
        self.guests.append(guest)
        return guest

    def end(self):
        if self.rxe:
            self.rxe.stop()
        for process in [*self.guests, self.native, *self.servers]:
            if process:
                process.stop()


def program(role, own, peer, rounds):
    return f"/program {role} {NIC} {MEMORY} {own} {peer} {rounds}"


def exchange(a, b, rounds):
    """SEND, WRITE and READ from a to b, every byte compared on both sides."""
    passive = b.begin(program("passive", 2, 1, rounds))
    b.wait_for("up")
    said = a.shell(program("active", 1, 2, rounds), timeout_s=240)
    status, heard = b.finish(passive, timeout_s=240)
    if status != 0 or "every byte compared" not in heard or "every byte read back compared" not in said:
        raise GuestError(f"active: {said}; passive: {status} {heard}")


def case_exchange(world, a, b):
    """two guests, SEND, WRITE and READ"""
    exchange(a, b, world.arguments.rounds)
    return world.arguments.rounds * 3


def case_other_way(world, a, b):
    """the other direction"""
    exchange_back = [program("passive", 1, 2, 10), program("active", 2, 1, 10)]
    passive = a.begin(exchange_back[0])
    a.wait_for("up")
    b.shell(exchange_back[1], timeout_s=240)
    if a.finish(passive, timeout_s=240)[0] != 0:
        raise GuestError("the passive side failed")
    return 30


def verify(world, a, peer, peer_mac, port):
    """`rnic verify` over the card in guest a, as the client; says what it compared."""
    nic = world.nics[peer]
    command = f"/rnic verify --card {nic}/resource2 --card-memory /huge/verify --address {OWN_IP}/24 --mac {OWN_MAC}"
    command += f" --neighbour {PEER_IP}={peer_mac} -s {VERIFY_SIZES} -n 2 --timeout 16 -r 7 -p {port} {play.HOST}"
    said = a.shell(f"truncate -s 16M /huge/verify; {command}", timeout_s=240)
    found = re.search(r"verify: .* (\d+) transfers, (\d+) bytes compared, 0 wrong", said)
    if not found:
        raise GuestError(f"`{command}` says: {said}")
    return int(found.group(1))


def case_native_peer(world, a, _):
    """SEND, WRITE and READ in both directions between the card and the native face in a process"""
    return verify(world, a, "native", NATIVE_MAC, world.native_port)


def case_rxe_peer(world, a, _):
    """SEND, WRITE and READ in both directions between the card and Linux' rdma_rxe in another guest"""
    rxe = world.rxe
    server = rxe.guest.start("python3", "/verify.py", "-d", play.DEVICE, "-x", str(rxe.gid_index[4]))
    rxe.await_port(server, play.VERIFY_PORT)
    before = rxe.counters()
    transfers = verify(world, a, "rxe", RXE_MAC, rxe.guest.ports[play.VERIFY_PORT])
    done = rxe.guest.wait(server, 30)
    if done["status"] != 0 or " 0 wrong" not in done["out"]:
        raise GuestError(f"verify.py ended with {done['status']}: {done['err'][-300:]}{done['out'][-300:]}")
    after = rxe.counters()
    wrong = [name for name in play.ERRORS if after[name] != before[name]]
    if wrong or after["rcvd_pkts"] == before["rcvd_pkts"]:
        raise GuestError(f"rxe's counters do not fit: before {before}, after {after}")
    return transfers


@contextlib.contextmanager
def driver(guest, name):
    """While a driver of the guest's kernel has the first NIC, and leaves it to a program."""
    address = f"$(basename $(readlink -f {NIC}))"
    guest.shell(f"echo {name} >{NIC}/driver_override && echo {address} >/sys/bus/pci/drivers_probe && [ -e {NIC}/driver ]")
    try:
        yield
    finally:
        guest.shell(f"echo {address} >{NIC}/driver/unbind; echo >{NIC}/driver_override")


def by_interrupt(a, b, rounds):
    """SENDs from a to b; nobody polls before an interrupt has come. Returns how many interrupts both sides have had."""
    listening = b.begin(program("listen", 2, 1, 0))
    b.wait_for("up")
    said = a.shell(program("interrupts", 1, 2, rounds), timeout_s=240)
    status, heard = b.finish(listening, timeout_s=240)
    counted = [re.search(r"by (\d+) interrupts.*, none lost", text) for text in (said, heard)]
    if status != 0 or None in counted:
        raise GuestError(f"interrupts: {said}; listen: {status} {heard}")
    print("\n".join(line for line in said.splitlines() if "interrupt" in line and "done" not in line), flush=True)
    return sum(int(found.group(1)) for found in counted)


def case_intx(world, a, b):
    """INTx through the guest's kernel: a driver sleeps until its completions and messages"""
    with driver(a, "uio_pci_generic"), driver(b, "uio_pci_generic"):
        return by_interrupt(a, b, world.arguments.rounds)


def case_msix(world, a, b):
    """MSI-X and DMA through an emulated IOMMU: the guest's kernel gives the NIC to our driver by vfio-pci"""
    with driver(a, "vfio-pci"), driver(b, "uio_pci_generic"):
        count = by_interrupt(a, b, world.arguments.rounds)
        exchange(a, b, world.arguments.rounds)
    # Back in the driver's hands without an IOMMU in between.
    exchange(a, b, 3)
    return count + world.arguments.rounds * 3


def case_driver_ten_times(world, a, b):
    """the driver comes and goes"""
    for _ in range(world.arguments.repeat):
        a.shell(program("idle", 1, 2, 0))
    exchange(a, b, 3)
    return world.arguments.repeat


def case_reboot(world, a, b):
    """the guest reboots, the device stays"""
    for _ in range(world.arguments.repeat):
        a.reboot()
        a.shell(program("idle", 1, 2, 0))
    exchange(a, b, 3)
    return world.arguments.repeat


def case_emulator_killed(world, a, b):
    """QEMU is killed in the middle of traffic, and started again against the same server"""
    b.begin(program("passive", 2, 1, 100000))
    b.wait_for("up")
    a.begin(program("active", 1, 2, 100000))
    a.wait_for("up")
    a.stop()
    b.stop()
    a, b = world.boot("a2", [world.servers[0].socket]), world.boot("b2", [world.servers[1].socket])
    a.wait_until_booted()
    b.wait_until_booted()
    exchange(a, b, 3)
    return 2


def case_server_killed(world, a, b):
    """the server is killed: the guest reads all ones and lives"""
    a.shell(program("idle", 1, 2, 0))
    world.servers[0].stop(signal.SIGKILL)
    said = a.shell(f"{program('idle', 1, 2, 0)}; hexdump -C {NIC}/config | head -n 1; echo alive")
    if "no device answers" not in said or not said.endswith("alive"):
        raise GuestError(f"the guest says: {said}")
    return 1


def case_measure(world, a, b):
    """latencies and rates as a guest sees them (printed)"""
    # As many as the measurement sends; it says so itself when it is done.
    passive = b.begin(program("drain", 2, 1, 0))
    b.wait_for("up")
    print(a.shell(program("measure", 1, 2, 5000), timeout_s=240))
    if b.finish(passive)[0] != 0:
        raise GuestError("the passive side failed")
    return 1


# The last two end what they need.
CASES = [
    case_exchange,
    case_other_way,
    case_native_peer,
    case_rxe_peer,
    case_intx,
    case_msix,
    case_driver_ten_times,
    case_measure,
    case_reboot,
    case_emulator_killed,
    case_server_killed,
]
# What a case needs besides the two guests.
PEERS = {case_native_peer: "native", case_rxe_peer: "rxe"}
GATE = [
    case_exchange,
    case_native_peer,
    case_rxe_peer,
    case_intx,
    case_msix,
    case_driver_ten_times,
    case_reboot,
    case_server_killed,
]
GATE_ROUNDS, GATE_REPEAT = 50, 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("case", nargs="*", help=", ".join(name(case) for case in CASES))
    arguments = parser.parse_args()
    unknown = set(arguments.case) - {name(case) for case in CASES}
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    if arguments.prepare:
        return prepare()
    if not arguments.programs:
        parser.error("--programs FOLDER is needed; e2e/card/build FOLDER makes it")
    chosen = [case for case in CASES if not arguments.case or name(case) in arguments.case]
    if arguments.gate:
        chosen, arguments.rounds, arguments.repeat = GATE, GATE_ROUNDS, GATE_REPEAT
    return judge(arguments, chosen)


def prepare():
    try:
        print(f"QEMU: {cards.emulator()}, {machine.emulator()}\nguests: {cards.kernel_tree()}, {image.built()}")
    except packages.PackageError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    return 0


def judge(arguments, chosen):
    # The path of a UNIX socket has at most 107 bytes, so that a long one of the tree will not do.
    folder = tempfile.mkdtemp(prefix="rnic-card-")
    world = World(arguments, folder, {PEERS[case] for case in chosen if case in PEERS})
    start, kernel, done, wrong = time.monotonic(), "-", 0, 0
    try:
        world.start()
        kernel = world.guests[0].shell("uname -r")
        print(f"guests with Linux {kernel} have booted in {time.monotonic() - start:.0f} s", flush=True)
        for case in chosen:
            begun = time.monotonic()
            try:
                done += case(world, world.guests[-2], world.guests[-1])
                print(f"{name(case)}: ok, {time.monotonic() - begun:.1f} s", flush=True)
            except (GuestError, play.PlayError) as error:
                wrong += 1
                print(f"{name(case)}: {error}", flush=True)
    except (GuestError, play.PlayError, packages.PackageError) as error:
        wrong += 1
        print(error)
    except OSError:
        wrong += 1
        traceback.print_exc()
    finally:
        world.end()
        if wrong == 0:
            shutil.rmtree(folder)
        else:
            print(f"logs are in {folder}")
    print(f"JUDGE card {kernel}: {len(chosen)} cases, {done} checks, {wrong} wrong")
    return 1 if wrong else 0


def name(case):
    return case.__name__.removeprefix("case_")


if __name__ == "__main__":
    sys.exit(main())
