#!/usr/bin/env python3
"""Virtual machines with our ERNIC on their PCI bus: the driver in two guests moves data between two NICs, and devices
survive everything that may happen to a guest.

    run.py --rnic BINARY --program BINARY [--rounds N] [--repeat N] [CASE]...

BINARY are `rnic`, and the example `ernic_pair` built for x86_64-unknown-linux-musl. Without CASE all of them are played.
Prints one line for each case, and a last line for `.ci/run`. Needs the network once, for QEMU and a kernel.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

import machine
from machine import CardError, Guest, Server

import packages  # found by machine

NIC, MEMORY = "/tmp/nic1", "/huge/rnic"


class World:
    """Two servers with a wire between them, and guests on them."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.guests, self.servers = [], []

    def start_servers(self):
        wire = os.path.join(self.folder, "wire")
        self.servers = [self.server("a", f"qemu-stream:{wire}?listen")]
        deadline = time.monotonic() + 20
        while not os.path.exists(wire):
            self.servers[0].check_alive()
            if time.monotonic() > deadline:
                raise CardError("the wire does not appear")
            time.sleep(0.05)
        self.servers.append(self.server("b", f"qemu-stream:{wire}"))
        for server in self.servers:
            server.wait_until_ready()

    def server(self, name, link):
        return Server(self.folder, name, self.arguments.rnic, link)

    def boot(self, name, number):
        guest = Guest(self.folder, name, self.arguments.program, [self.servers[number].socket])
        self.guests.append(guest)
        return guest

    def end(self):
        for guest in self.guests:
            guest.stop()
        for server in self.servers:
            server.stop()


def program(role, own, peer, rounds):
    return f"/program {role} {NIC} {MEMORY} {own} {peer} {rounds}"


def exchange(a, b, rounds):
    """SEND, WRITE and READ from a to b, every byte compared on both sides."""
    passive = b.begin(program("passive", 2, 1, rounds))
    b.wait_for("up")
    said = a.shell(program("active", 1, 2, rounds), timeout_s=240)
    status, heard = b.finish(passive, timeout_s=240)
    if status != 0 or "every byte compared" not in heard or "every byte read back compared" not in said:
        raise CardError(f"active: {said}; passive: {status} {heard}")


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
        raise CardError("the passive side failed")
    return 30


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
    a, b = world.boot("a2", 0), world.boot("b2", 1)
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
        raise CardError(f"the guest says: {said}")
    return 1


def case_measure(world, a, b):
    """latencies and rates as a guest sees them (printed)"""
    # As many as the measurement sends; it says so itself when it is done.
    passive = b.begin(program("drain", 2, 1, 0))
    b.wait_for("up")
    print(a.shell(program("measure", 1, 2, 5000), timeout_s=240))
    if b.finish(passive)[0] != 0:
        raise CardError("the passive side failed")
    return 1


# The last two end what they need.
CASES = [case_exchange, case_other_way, case_driver_ten_times, case_measure, case_reboot, case_emulator_killed, case_server_killed]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rnic", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("case", nargs="*", help=", ".join(name(case) for case in CASES))
    arguments = parser.parse_args()
    chosen = [case for case in CASES if not arguments.case or name(case) in arguments.case]
    folder = tempfile.mkdtemp(prefix="rnic-card-")
    world, done, wrong = World(arguments, folder), 0, 0
    try:
        world.start_servers()
        a, b = world.boot("a", 0), world.boot("b", 1)
        a.wait_until_booted()
        b.wait_until_booted()
        for case in chosen:
            start = time.monotonic()
            try:
                done += case(world, world.guests[-2], world.guests[-1])
                print(f"{name(case)}: ok, {time.monotonic() - start:.1f} s", flush=True)
            except CardError as error:
                wrong += 1
                print(f"{name(case)}: {error}", flush=True)
    except (CardError, packages.PackageError) as error:
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
    print(f"JUDGE card: {len(chosen)} cases, {done} checks, {wrong} wrong")
    return 1 if wrong else 0


def name(case):
    return case.__name__.removeprefix("case_")


if __name__ == "__main__":
    sys.exit(main())
