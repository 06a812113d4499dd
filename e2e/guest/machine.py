"""A running guest: QEMU without KVM, the RoCE wire as a UNIX socket, and a control channel.

It knows how to start a guest, run programs there and end it; it knows nothing of what is tested. The guest has two
network devices: eth0 is the wire (QEMU's stream socket: a frame after its length), eth1 an ordinary one behind QEMU's
own NAT, for TCP between the guest (10.0.2.15, the host is 10.0.2.2) and programs here.
"""

import json
import os
import select
import signal
import socket
import time

import image
import packages
from processes import GuestError, Process

EMULATOR = "qemu-system-x86_64"
EMULATOR_PACKAGES = ["qemu-system-x86"]
MEMORY = "1024M"
# "rep movsb" is slow in an emulated CPU; without these flags Linux copies words.
CPU = "max,-erms,-fsrm"
BOOT_TIMEOUT_S = 120
# What a request may take longer than the program it runs.
ANSWER_MARGIN_S = 30


class EmulatorError(GuestError):
    """QEMU itself has crashed, whatever the guest did."""


class Guest(Process):
    """One guest, from start to `stop`. Use as a context manager."""

    def __init__(self, folder, name, wire, wire_is_served=True, forwarded=(), mac="52:54:00:00:00:02"):
        """Starts it. What QEMU and the guest's console say goes to `folder`. `wire` is the path of the UNIX socket that
        eth0 is on: it listens there, or connects to it where `wire_is_served` is false; the control socket is beside
        it (such a path has at most 107 bytes). `forwarded` are TCP ports of the guest that get one on our loopback."""
        self.folder, self.name, self.booted_s = folder, name, None
        os.makedirs(folder, exist_ok=True)
        self.control_path = os.path.join(os.path.dirname(wire), f"{name}.control")
        self.ports = {port: free_port() for port in forwarded}
        self.requests, self.rest, self.replies = 0, b"", {}
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for there, here in self.ports.items())
        parts = image.built()
        served = "on" if wire_is_served else "off"
        command = [
            emulator(),
            *["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", "2", "-m", MEMORY],
            *["-nodefaults", "-nographic", "-no-reboot", "-serial", f"file:{folder}/{name}.console"],
            *["-kernel", f"{parts}/vmlinuz", "-initrd", f"{parts}/initramfs"],
            *["-append", "console=ttyS0 loglevel=5 panic=-1 mitigations=off random.trust_cpu=on"],
            *["-netdev", f"stream,id=wire,server={served},addr.type=unix,addr.path={wire}"],
            *["-device", f"virtio-net-pci,netdev=wire,mac={mac},romfile="],
            *["-netdev", f"user,id=outside{forwards}", "-device", "virtio-net-pci,netdev=outside,romfile="],
            *["-chardev", f"socket,id=control,path={self.control_path},server=on,wait=off"],
            *["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=agent"],
        ]
        self.started = time.monotonic()
        super().__init__(f"guest {name}: QEMU", command, f"{folder}/{name}.qemu", [f"{folder}/{name}.console"])
        self.control = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_until_booted(self):
        """Returns when programs can be run."""
        deadline = self.started + BOOT_TIMEOUT_S
        self.control = self.connect(self.control_path, deadline - time.monotonic())
        self.kernel = self.request({"op": "hello"}, deadline - time.monotonic())["kernel"]
        self.booted_s = time.monotonic() - self.started

    def run(self, *argv, timeout_s=30, check=True):
        """Runs a program to its end. With `check`, anything but exit status 0 is an error."""
        done = self.request({"op": "run", "argv": list(argv), "timeout_s": timeout_s}, timeout_s)
        if check and (done["status"] != 0 or done["timed_out"]):
            said = (done["err"] or done["out"]).strip().splitlines()[-3:]
            raise GuestError(f"guest {self.name}: `{' '.join(argv)}` ended with {done['status']}: {' / '.join(said)}")
        return done

    def shell(self, script, timeout_s=30):
        """Output of a shell script that must succeed."""
        return self.run("sh", "-ec", script, timeout_s=timeout_s)["out"]

    def start(self, *argv):
        """Starts a program and returns its number."""
        return self.request({"op": "start", "argv": list(argv)}, 0)["process"]

    def wait(self, process, timeout_s):
        return self.request({"op": "wait", "process": process, "timeout_s": timeout_s}, timeout_s)

    def alive(self, process):
        return self.request({"op": "alive", "process": process}, 0)["alive"]

    def kill(self, process, number=signal.SIGKILL):
        self.request({"op": "kill", "process": process, "signal": int(number)}, 0)

    def request(self, request, timeout_s):
        """Sends a request to the agent and returns its answer."""
        self.requests += 1
        number = self.requests
        deadline = time.monotonic() + timeout_s + ANSWER_MARGIN_S
        try:
            self.control.sendall(json.dumps(dict(request, id=number)).encode() + b"\n")
            while number not in self.replies:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self.control], [], [], left)[0]:
                    raise GuestError(f"guest {self.name} does not answer {request}: {self.last_words()}")
                data = self.control.recv(1 << 16)
                if not data:
                    status = super().wait(5)
                    kind = EmulatorError if status == -signal.SIGSEGV else GuestError
                    raise kind(f"guest {self.name} has ended, QEMU with status {status}: {self.last_words()}")
                *lines, self.rest = (self.rest + data).split(b"\n")
                for reply in map(json.loads, lines):
                    self.replies[reply["id"]] = reply
        except OSError as error:
            raise GuestError(f"guest {self.name} has ended ({error}): {self.last_words()}") from error
        reply = self.replies.pop(number)
        if "error" in reply:
            raise GuestError(f"guest {self.name}: {request} failed there: {reply['error']}")
        return reply

    def stop(self):
        """Ends it at once, as if its power were cut."""
        if self.control:
            self.control.close()
        super().stop()


def emulator():
    """The path of QEMU, fetched if it is not there yet."""
    return packages.launcher(packages.unpacked([image.SUITE], EMULATOR_PACKAGES), EMULATOR)


def free_port():
    """A TCP port of the loopback that nobody has at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
