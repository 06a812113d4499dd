"""Plays one run: a program of ours and one on Linux, and what must be true afterwards.

It knows command lines and where each program stands; what is played comes from matrix.py, what a capture shows from
wire.py.
"""

import contextlib
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import time

import machine
import matrix
import script
import wire

OUR_MAC = "02:00:00:00:00:01"
OURS = {4: "10.0.0.1", 6: "fd00::1"}
LINUX = {4: "10.0.0.2", 6: "fd00::2"}
PREFIX = {4: 24, 6: 64}
# The host as the guest sees it, behind QEMU's NAT, and the guest there.
HOST, GUEST = "10.0.2.2", "10.0.2.15"
PERFTEST_PORT, VERIFY_PORT, REFERENCE_PORT = 18515, 18520, 18530
WIRE_MTU = 9000
DEVICE = "rxe0"
RUN_TIMEOUT_S = 120
LISTEN_TIMEOUT_S = 30
# An emulated guest on a busy machine may be silent for half a second: 268 ms, 7 times.
ACK_TIMEOUT = 16
PATIENCE = ["--timeout", str(ACK_TIMEOUT), "-r", "7"]
# From the moment that something breaks until our program must have said so and ended.
BREAK_TIMEOUT_S = 60
# How often a run is played at most, should QEMU die.
ATTEMPTS_MAX = 3
# Packets that have to have arrived before something is broken, and how long that may take.
BREAK_AFTER = 100
# Counters of rxe that stay as they are in any run that ends well.
ERRORS = ("retry_exceeded_err", "retry_rnr_exceeded_err", "send_err")

SETUP = f"""
ip=/usr/bin/ip
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down
$ip link set lo up
$ip link set eth1 up
$ip addr add {GUEST}/24 dev eth1
$ip link set eth0 mtu {WIRE_MTU} up
$ip addr add {LINUX[4]}/{PREFIX[4]} dev eth0
$ip addr add {LINUX[6]}/{PREFIX[6]} dev eth0 nodad
rdma link add {DEVICE} type rxe netdev eth0
"""

LOSS = """# One frame of a hundred gets lost, on either way.
[[fault]]
action = "drop"
probability = 0.01

[[fault]]
action = "drop"
direction = "in"
probability = 0.01
"""


class PlayError(Exception):
    """A run cannot be played; says why."""


class Outcome:
    """What came of a run."""

    def __init__(self, run):
        self.run, self.wrong, self.checks, self.commands, self.seconds = run, [], 0, {}, 0.0
        self.emulator_died = False
        # What is left to do, elsewhere: look at the capture.
        self.capture, self.received = None, None

    def check(self, holds, what):
        self.checks += 1
        if not holds:
            self.wrong.append(what)


class Ours:
    """A program of ours in a run."""

    def __init__(self, folder, command):
        self.command, self.folder = command, folder
        self.output = {name: os.path.join(folder, f"rnic.{name}") for name in ("out", "err")}
        with open(self.output["out"], "wb") as out, open(self.output["err"], "wb") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder)

    def wait(self, timeout_s):
        """Its exit status; None where it had to be killed."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def text(self, name):
        with open(self.output[name], encoding="utf-8", errors="replace") as file:
            return file.read()

    def said(self):
        return " / ".join((self.text("err") + self.text("out")).strip().splitlines()[-3:])

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Player:
    """A guest, and runs on it one after the other."""

    def __init__(self, folder, sockets, rnic):
        """`folder` keeps what runs leave; `sockets` is a folder with a short path."""
        self.folder, self.rnic = folder, rnic
        self.socket = os.path.join(sockets, "wire.sock")
        self.guest, self.kernel = None, "-"
        os.makedirs(folder, exist_ok=True)

    def boot(self):
        """A guest that is ready for runs. Where there is one already, it stays."""
        if self.guest:
            return
        self.start()
        self.finish_boot()

    def start(self):
        """A guest that boots; its end of the wire is there soon."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        self.guest = machine.Guest(self.folder, "guest", self.socket, forwarded=(PERFTEST_PORT, VERIFY_PORT))

    def finish_boot(self):
        self.guest.wait_until_booted()
        self.kernel = self.guest.kernel
        self.guest.shell(SETUP)
        self.gid_index = {family: self.find_gid(LINUX[family]) for family in LINUX}

    def find_gid(self, address):
        """Index of an address's RoCE v2 GID. Which one it is depends on the order in which addresses came."""
        ip = ipaddress.ip_address(address)
        wanted = ipaddress.ip_address(f"::ffff:{ip}") if ip.version == 4 else ip
        port = f"/sys/class/infiniband/{DEVICE}/ports/1"
        script = f"cd {port}; for i in 0 1 2 3 4 5 6 7; do echo $i $(cat gids/$i) $(cat gid_attrs/types/$i 2>/dev/null || true); done"
        for line in self.guest.shell(script).splitlines():
            index, gid, *kind = line.split()
            if ipaddress.ip_address(gid) == wanted and kind == ["RoCE", "v2"]:
                return int(index)
        raise PlayError(f"{DEVICE} has no RoCE v2 GID for {address}")

    def stop(self):
        if self.guest:
            self.guest.stop()
            self.guest = None

    # --- command lines ---------------------------------------------------------------------------------

    def station(self, run, folder):
        """Flags of our program that say what it is plugged into."""
        own = f"{OURS[run.family]}/{PREFIX[run.family]}"
        flags = ["--link", f"qemu-stream:{self.socket}", "--address", own, "--mac", OUR_MAC, "--mtu", str(WIRE_MTU)]
        flags += ["--face", run.face, "--capture", os.path.join(folder, "capture.pcapng")]
        if run.loss or self.faults:
            faults = os.path.join(folder, "faults.toml")
            with open(faults, "w", encoding="utf-8") as file:
                file.write(self.faults or LOSS)
            flags += ["--faults", faults]
        return flags

    def perf(self, run, folder, port, duration_s=None):
        """Both ends of a perftest run: (Linux's command, ours)."""
        about = run.about
        common = ["-s", str(run.size), "-m", str(run.mtu), "-c", about.service]
        common += ["-u", str(ACK_TIMEOUT)] if about.service == "RC" else []
        common += ["-D", str(duration_s)] if duration_s else ["-n", str(run.messages)]
        if about.service == "UD" or about.linux.startswith("ib_atomic"):
            # Atomics have one size, and perftest takes no other word on it.
            common = common if about.service == "UD" else common[2:]
        linux = [about.linux, "-d", DEVICE, "-x", str(self.gid_index[run.family]), "-F", *common]
        ours = [self.rnic, "perf", about.ours, *self.station(run, folder), *common]
        return self.towards(run, port, linux, ours, PERFTEST_PORT)

    def script(self, run, folder, port):
        """As for `verify`, with a script of the run's own; and the same script between two ends on Linux."""
        text = json.dumps(script.of(run))
        path, there = os.path.join(folder, "script.json"), "/tmp/script.json"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.guest.shell(f"cat >{there} <<'END'\n{text}\nEND")
        linux = ["python3", "/verify.py", "-d", DEVICE, "-x", str(self.gid_index[run.family])]
        ours = [self.rnic, "verify", *self.station(run, folder)]
        test = ["-m", str(run.mtu), *PATIENCE]
        wanted = self.play_on_linux(linux, [*test, "--script", there])
        if run.client == "linux":
            linux += [*test, "--script", there]
        else:
            ours += [*test, "--script", path, "--json"]
        return wanted, self.towards(run, port, linux, ours, VERIFY_PORT)

    def play_on_linux(self, program, flags):
        """What two ends in the guest make of a script."""
        server = self.guest.start(*program, "-p", str(REFERENCE_PORT))
        try:
            self.await_port(server, REFERENCE_PORT)
            done = self.guest.run(*program, *flags, "-p", str(REFERENCE_PORT), "127.0.0.1")
            return json.loads(done["out"].splitlines()[-1])["script"]
        finally:
            with contextlib.suppress(machine.GuestError):
                self.guest.kill(server)

    def towards(self, run, port, linux, ours, port_of_guest):
        """Adds TCP ports, and to the client's command the host."""
        if run.client == "linux":
            return [*linux, "-p", str(port), HOST], [*ours, "-p", str(port)]
        here = str(self.guest.ports[port_of_guest])
        return [*linux, "-p", str(port_of_guest)], [*ours, "-p", here, "127.0.0.1"]

    def verify(self, run, folder, port, rounds=1):
        script = ["python3", "/verify.py", "-d", DEVICE, "-x", str(self.gid_index[run.family])]
        ours = [self.rnic, "verify", *self.station(run, folder)]
        test = ["-m", str(run.mtu), "-s", ",".join(map(str, run.verify_sizes)), "-n", str(rounds), *PATIENCE]
        test += ["-o", ",".join(run.verify_operations)]
        if run.client == "linux":
            script += test
        else:
            ours += test
        return self.towards(run, port, script, ours, VERIFY_PORT)

    def rping(self, run, folder):
        address = LINUX[run.family] if run.client == "rnic" else OURS[run.family]
        common = ["-a", address, "-C", str(matrix.RPING_ROUNDS), "-S", str(run.size), "-V"]
        linux = ["rping", "-s" if run.client == "rnic" else "-c", *common]
        ours = [self.rnic, "rping", *self.station(run, folder), "-c" if run.client == "rnic" else "-s", *common]
        return linux, ours

    # --- runs ------------------------------------------------------------------------------------------

    def play(self, run, faults=None):
        """Plays a run and checks all but its capture. `faults` are rules for our end.

        QEMU 7.2 dies of signal 11 where its socket's other end goes while frames wait for the guest. That is no word on
        us: it is told, and the run is played again.
        """
        for _ in range(ATTEMPTS_MAX):
            outcome = self.attempt(run, faults)
            if not outcome.emulator_died:
                break
            print(f"      QEMU has died in {run.name}: {outcome.wrong[-1]}", flush=True)
        return outcome

    def attempt(self, run, faults):
        outcome = Outcome(run)
        self.faults = faults
        folder = os.path.join(self.folder, run.name)
        os.makedirs(folder, exist_ok=True)
        start = time.monotonic()
        try:
            self.boot()
            if run.about.kind == "break":
                getattr(self, run.operation)(run, folder, outcome)
            else:
                self.play_to_the_end(run, folder, outcome)
        except (PlayError, machine.GuestError) as error:
            outcome.check(False, str(error))
            outcome.emulator_died = isinstance(error, machine.EmulatorError)
            self.keep_console(folder)
            self.stop()
        outcome.seconds = time.monotonic() - start
        return outcome

    def keep_console(self, folder):
        """What the guest has said until now, for whoever looks into a run: the next guest says it anew."""
        for name in ("guest.console", "guest.qemu"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(os.path.join(self.folder, name), os.path.join(folder, name))

    def play_to_the_end(self, run, folder, outcome):
        port = machine.free_port()
        if run.about.kind == "perf":
            linux, ours = self.perf(run, folder, port)
        elif run.about.kind == "verify":
            linux, ours = self.verify(run, folder, port)
        elif run.about.kind == "script":
            wanted, (linux, ours) = self.script(run, folder, port)
        else:
            linux, ours = self.rping(run, folder)
        outcome.commands = {"linux": linux, "ours": ours}
        before = self.counters()
        with self.both(run, folder, linux, ours, port) as (process, program):
            status = program.wait(RUN_TIMEOUT_S)
            # The other end says its last words, or will never end.
            done = self.guest.wait(process, 20)
        after = self.counters()
        said = " / ".join((done["err"] + done["out"]).strip().splitlines()[-3:])
        outcome.check(status == 0, f"rnic ended with {status}: {program.said()}")
        # rping's server waits for its client to go, and takes that for an error or not, by chance.
        outcome.check(done["status"] == 0, f"{linux[0]} ended with {done['status']}: {said}")
        for name in ERRORS:
            grown = after[name] - before[name]
            outcome.check(grown == 0, f"rxe's {name} has grown by {grown}")
        if run.about.kind == "verify":
            for who, text in (("rnic", program.text("out")), ("Linux", done["out"])):
                found = re.search(r"(\d+) transfers, (\d+) bytes compared, (\d+) wrong", text)
                good = found and int(found.group(1)) and int(found.group(2)) and not int(found.group(3))
                outcome.check(good, f"{who} does not say that all bytes are right: {text.strip()[-200:]!r}")
                outcome.checks += int(found.group(1)) if found else 0
        if run.about.kind == "script":
            text = done["out"] if run.client == "linux" else program.text("out")
            self.compare(outcome, wanted, text)
        outcome.capture = os.path.join(folder, "capture.pcapng")
        outcome.received = after["rcvd_pkts"] - before["rcvd_pkts"]

    @staticmethod
    def compare(outcome, wanted, text):
        """The client's last line has what came of the script."""
        try:
            found = json.loads(text.splitlines()[-1])["script"]
        except (IndexError, ValueError, KeyError):
            outcome.check(False, f"the client does not say what came of the script: {text.strip()[-200:]!r}")
            return
        for what in script.differences(wanted, found):
            outcome.check(False, f"not as between two ends on Linux: {what}")
        outcome.checks += sum(len(part) for end in wanted.values() for part in end.values())

    @contextlib.contextmanager
    def both(self, run, folder, linux, ours, port):
        """Starts server and then client, each when the other can hear it. Ends what is left of them."""
        process, program = None, None
        try:
            if run.client == "linux":
                program = Ours(folder, ours)
                self.await_ours(run, program, port)
                process = self.guest.start(*linux)
            else:
                process = self.guest.start(*linux)
                self.await_linux(run, process)
                program = Ours(folder, ours)
            yield process, program
        finally:
            if program:
                program.stop()
            if process and self.guest:
                with contextlib.suppress(machine.GuestError):
                    self.guest.kill(process)

    def await_ours(self, run, program, port):
        """Our server hears: by TCP, or, for connection management, once it says so."""
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        while not (listens(port) if run.about.kind != "rping" else "listening" in program.text("err") + program.text("out")):
            if program.process.poll() is not None:
                raise PlayError(f"`{' '.join(program.command)}` ended with {program.process.returncode}: {program.said()}")
            if time.monotonic() > deadline:
                raise PlayError(f"`{' '.join(program.command)}` does not listen: {program.said()}")
            time.sleep(0.05)

    def await_linux(self, run, process):
        """The server on Linux hears."""
        if run.about.kind == "rping":
            self.await_look(process, "rdma resource show cm_id | grep -q LISTEN")
        else:
            verifies = run.about.kind in ("verify", "script") or run.operation == "break_ours"
            self.await_port(process, VERIFY_PORT if verifies else PERFTEST_PORT)

    def await_port(self, process, port):
        """A server on Linux listens on a TCP port."""
        self.await_look(process, f"cat /proc/net/tcp /proc/net/tcp6 | grep -qi ':{port:04x} [0-9a-f]*:0000 0a'")

    def await_look(self, process, look):
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        while self.guest.run("sh", "-c", look, check=False)["status"] != 0:
            if not self.guest.alive(process):
                done = self.guest.wait(process, 1)
                raise PlayError(f"the server on Linux ended with {done['status']}: {(done['err'] + done['out'])[-300:]}")
            if time.monotonic() > deadline:
                raise PlayError("the server on Linux does not listen")
            time.sleep(0.1)

    def counters(self):
        return wire.counters(self.guest.shell("rdma statistic"))

    # --- what breaks in the middle ---------------------------------------------------------------------

    def break_program(self, run, folder, outcome):
        self.break_transfer(run, folder, outcome, lambda process: self.guest.kill(process))

    def break_link(self, run, folder, outcome):
        self.break_transfer(run, folder, outcome, lambda _: self.guest.shell("/usr/bin/ip link set eth0 down"))
        self.guest.shell("/usr/bin/ip link set eth0 up")

    def break_guest(self, run, folder, outcome):
        self.break_transfer(run, folder, outcome, lambda _: self.stop())

    def break_transfer(self, run, folder, outcome, break_it):
        """Our program writes; after some packets something breaks. It must end in time, and say which peer and queue pair."""
        linux, ours = self.perf(run, folder, 0, duration_s=BREAK_TIMEOUT_S * 2)
        outcome.commands = {"linux": linux, "ours": ours}
        with self.both(run, folder, linux, ours, 0) as (process, program):
            self.await_packets(program)
            break_it(process)
            status = program.wait(BREAK_TIMEOUT_S)
        said = program.said()
        outcome.check(status is not None, f"rnic has not ended {BREAK_TIMEOUT_S} s after the break: {said}")
        outcome.check(status != 0, "rnic ended as if nothing had happened")
        outcome.check(status is None or status in range(1, 3), f"rnic ended with {status}, which is no plain error: {said}")
        outcome.check("panicked" not in said, f"rnic panicked: {said}")
        named = LINUX[run.family] in said or "127.0.0.1" in said
        outcome.check(named, f"rnic does not say which peer is gone: {said!r}")
        outcome.check(re.search(r"(QP|queue pair)\W*(0x)?[0-9a-f]+", said), f"rnic does not name the queue pair: {said!r}")

    def break_ours(self, run, folder, outcome):
        """Our program is killed. Linux must notice, and then another one of ours must find everything in order."""
        port = machine.free_port()
        linux, ours = self.verify(run, folder, port, rounds=1000)
        outcome.commands = {"linux": linux, "ours": ours}
        with self.both(run, folder, linux, ours, port) as (process, program):
            self.await_packets(program)
            program.process.send_signal(signal.SIGKILL)
            program.wait(BREAK_TIMEOUT_S)
            done = self.guest.wait(process, BREAK_TIMEOUT_S)
        outcome.check(done["status"] == 1, f"verify.py ended with {done['status']}: {done['err'][-200:]}")
        port = machine.free_port()
        linux, ours = self.verify(run, folder, port)
        with self.both(run, folder, linux, ours, port) as (process, program):
            status = program.wait(RUN_TIMEOUT_S)
            done = self.guest.wait(process, 20)
        outcome.check(status == 0 and done["status"] == 0, f"the next run ended with {status} and {done['status']}: {program.said()}")

    def await_packets(self, program):
        """Returns when the transfer is on its way."""
        start = self.counters()["rcvd_pkts"]
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        while self.counters()["rcvd_pkts"] < start + BREAK_AFTER:
            if program.process.poll() is not None:
                raise PlayError(f"rnic ended with {program.process.returncode} before anything broke: {program.said()}")
            if time.monotonic() > deadline:
                raise PlayError(f"no transfer has begun: {program.said()}")
            time.sleep(0.1)


def listens(port):
    """Whether a program here listens on a TCP port. Connecting would be taken for the client."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            for line in file:
                words = line.split()
                if words[3] == "0A" and words[1].endswith(f":{port:04X}"):
                    return True
    return False


def judge_capture(outcome, rnic):
    """The rest of a run's checks."""
    if outcome.capture is None:
        return
    if not os.path.isfile(outcome.capture):
        outcome.check(False, f"there is no capture {outcome.capture}")
        return
    # Without acknowledgements only the client sends, and its last packets arrive when the server has gone.
    reliable = outcome.run.about.service == "RC"
    try:
        own_mac = bytes.fromhex(OUR_MAC.replace(":", ""))
        wrong, checks, ours, _ = wire.judge(outcome.capture, own_mac, rnic, both_send=reliable)
    except wire.CaptureError as error:
        outcome.check(False, str(error))
        return
    outcome.checks += checks
    outcome.wrong += wrong
    if not outcome.run.loss and (reliable or outcome.run.client == "linux"):
        outcome.check(outcome.received == ours, f"rxe has received {outcome.received} packets, and we have sent {ours}")
