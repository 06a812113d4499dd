"""A guest with our NIC on its PCI bus: QEMU 11 without KVM, a Debian kernel, busybox and one static program.

It knows how to start a guest, run a shell script there and end it; it knows nothing of what is tested. Scripts go to a
shell on the second serial port, one line each; the answer ends with a line that a number makes unique.
"""

import glob
import hashlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "guest"))

import image  # noqa: E402
import packages  # noqa: E402

EMULATOR = "qemu-system-x86_64"
# The first QEMU with vfio-user-pci is 10.1; bookworm has 7.2, trixie 10.0.
EMULATOR_SUITES = ["trixie", "trixie-backports"]
EMULATOR_PACKAGES = ["qemu-system-x86"]
MODULES = ["uio_pci_generic"]
MEMORY_MB = 384
HUGE_PAGES = 16
BOOT_TIMEOUT_S = 300
VENDOR_AND_DEVICE = ("0x10ee", "0x903f")


class CardError(Exception):
    """A guest or a server does not do what it must; says which one and what it last said."""


class SilenceError(CardError):
    """A guest does not say what it must, in the time it has."""


def built(program):
    """The folder with kernel and initramfs; `program` is what guests find as /program."""
    tree = packages.unpacked([image.SUITE], image.PACKAGES)
    digest = hashlib.sha256(os.path.basename(tree).encode())
    for path in [program, os.path.join(HERE, "init.sh"), os.path.abspath(__file__)]:
        digest.update(image.read(path))
    folder = os.path.join(packages.cache(), "cards", digest.hexdigest()[:12])
    with packages.locked("card"):
        if not os.path.isdir(folder):
            part = f"{folder}.part"
            shutil.rmtree(part, ignore_errors=True)
            os.makedirs(part)
            build(tree, program, part)
            os.rename(part, folder)
    return folder


def build(tree, program, folder):
    kernels = glob.glob(f"{tree}/boot/vmlinuz-*")
    if len(kernels) != 1:
        raise packages.PackageError(f"{tree}/boot has {len(kernels)} kernels, not one")
    shutil.copyfile(kernels[0], f"{folder}/vmlinuz")
    root = f"{folder}/root"
    for name in ("bin", "dev", "huge", "modules", "proc", "sys", "tmp"):
        os.makedirs(f"{root}/{name}")
    shutil.copyfile(f"{tree}/usr/bin/busybox", f"{root}/bin/busybox")
    shutil.copyfile(program, f"{root}/program")
    shutil.copyfile(os.path.join(HERE, "init.sh"), f"{root}/init")
    for name in ("bin/busybox", "program", "init"):
        os.chmod(f"{root}/{name}", 0o755)
    image.copy_modules(tree, root, os.path.basename(kernels[0]).removeprefix("vmlinuz-"), MODULES)
    with open(f"{folder}/initramfs", "wb") as file:
        image.write_cpio(root, file)
    shutil.rmtree(root)


class Server:
    """`rnic serve --vfio-user`: one NIC on a socket and a link."""

    def __init__(self, folder, name, rnic, link, flags=()):
        self.folder, self.name = folder, name
        self.socket = os.path.join(folder, f"{name}.nic")
        command = [rnic, "serve", "--face", "ernic", "--vfio-user", self.socket, "--link", link, *flags]
        self.log = open(f"{folder}/{name}.server", "ab")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def wait_until_ready(self):
        deadline = time.monotonic() + 20
        while not os.path.exists(self.socket):
            self.check_alive()
            if time.monotonic() > deadline:
                raise CardError(f"server {self.name} does not listen: {self.last_words()}")
            time.sleep(0.05)

    def check_alive(self):
        if self.process.poll() is not None:
            raise CardError(f"server {self.name} ended with {self.process.returncode}: {self.last_words()}")

    def last_words(self):
        with open(f"{self.folder}/{self.name}.server", encoding="utf-8", errors="replace") as file:
            return " / ".join(file.read().splitlines()[-6:])

    def stop(self, number=signal.SIGTERM):
        """Ends it; returns what it has counted."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(timeout=20)
        self.log.close()
        return self.last_words()


class Guest:
    """One guest, from start to `stop`."""

    def __init__(self, folder, name, program, sockets, memory=None):
        """Starts it with a NIC behind each of `sockets`. `memory` replaces the memory's options."""
        self.folder, self.name = folder, name
        self.control_path = os.path.join(folder, f"{name}.control")
        parts = built(program)
        ram = memory or [
            *["-object", f"memory-backend-memfd,id=ram,size={MEMORY_MB}M,share=on"],
            *["-machine", "q35,memory-backend=ram"],
        ]
        command = [
            packages.launcher(packages.unpacked(EMULATOR_SUITES, EMULATOR_PACKAGES), EMULATOR),
            *["-accel", "tcg", "-cpu", "max,-erms,-fsrm", "-smp", "1", "-m", f"{MEMORY_MB}M", *ram],
            *["-nodefaults", "-nographic", "-kernel", f"{parts}/vmlinuz", "-initrd", f"{parts}/initramfs"],
            *["-append", "console=ttyS0 loglevel=5 panic=-1 mitigations=off random.trust_cpu=on"],
            *["-serial", f"file:{folder}/{name}.console"],
            *["-serial", f"unix:{self.control_path},server=on,wait=off"],
        ]
        for number, path in enumerate(sockets, 1):
            device = {"driver": "vfio-user-pci", "bus": f"port{number}", "socket": {"type": "unix", "path": path}}
            command += ["-device", f"pcie-root-port,id=port{number},chassis={number},slot={number}"]
            command += ["-device", json.dumps(device)]
        with open(f"{folder}/{name}.qemu", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.control, self.rest, self.commands = None, b"", 0

    def wait_until_booted(self):
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while self.control is None:
            control = socket.socket(socket.AF_UNIX)
            try:
                control.connect(self.control_path)
                self.control = control
            except OSError:
                control.close()
                self.check_alive()
                if time.monotonic() > deadline:
                    raise CardError(f"guest {self.name}: QEMU does not open its control socket") from None
                time.sleep(0.05)
        # What a guest says before somebody is connected is lost, and so may be what it is told while it boots.
        while not self.answers(deadline):
            self.check_alive()

    def answers(self, deadline):
        self.send("echo @hello")
        try:
            self.read_until(b"@hello", min(time.monotonic() + 3, deadline))
        except SilenceError:
            if time.monotonic() > deadline:
                raise
            return False
        return True

    def reboot(self):
        """As software does it: the device stays on its socket."""
        self.send("busybox reboot -f")
        self.read_until(b"@ready", time.monotonic() + BOOT_TIMEOUT_S)

    def shell(self, script, timeout_s=60):
        """Output of a shell script in one line, which must succeed."""
        status, output = self.finish(self.begin(script), timeout_s)
        if status != 0:
            raise CardError(f"guest {self.name}: `{script}` ended with {status}: {output[-600:]}")
        return output

    def begin(self, script):
        """Starts a script; its output is taken with `finish`."""
        self.commands += 1
        self.send(f"{{ {script}; }} 2>&1; echo @done-{self.commands} $?")
        return self.commands

    def finish(self, number, timeout_s=60):
        """Exit status and output of a script."""
        before, status = self.read_until(b"@done-%d " % number, time.monotonic() + timeout_s)
        lines = before.decode(errors="replace").splitlines()
        return int(status), "\n".join(line for line in lines if line.strip() != "@hello").strip()

    def wait_for(self, text, timeout_s=60):
        """Waits for a line of the running script."""
        return self.read_until(text.encode(), time.monotonic() + timeout_s)

    def send(self, line):
        self.control.sendall(line.encode() + b"\n")

    def read_until(self, marker, deadline):
        """What comes before the marker, and the rest of its line."""
        while True:
            found = re.search(rb"(?:^|\n)" + re.escape(marker) + rb"([^\r\n]*)\r?\n", self.rest)
            if found:
                before, self.rest = self.rest[: found.start()], self.rest[found.end() :]
                return before, found.group(1).strip()
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.control], [], [], left)[0]:
                raise SilenceError(f"guest {self.name}: no {marker.decode()}: {self.rest[-300:]!r} {self.last_words()}")
            data = self.control.recv(1 << 16)
            if not data:
                raise CardError(f"guest {self.name} has ended: {self.last_words()}")
            self.rest += data

    def check_alive(self):
        if self.process.poll() is not None:
            raise CardError(f"guest {self.name}: QEMU ended with {self.process.returncode}: {self.last_words()}")

    def last_words(self):
        said = []
        for name in ("qemu", "console"):
            try:
                with open(f"{self.folder}/{self.name}.{name}", encoding="utf-8", errors="replace") as file:
                    said += file.read().splitlines()[-5:]
            except OSError:
                pass
        return " / ".join(re.sub(r"\x1b\S*", "", line).strip() for line in said) or "it has said nothing"

    def stop(self):
        """Ends it at once, as if its power were cut."""
        if self.control:
            self.control.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
