"""A guest with our NICs on its PCI bus: QEMU 11 without KVM, a Debian kernel, busybox and static programs.

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
import struct
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "guest"))

import image  # noqa: E402
import packages  # noqa: E402
from processes import GuestError, Process  # noqa: E402

EMULATOR = "qemu-system-x86_64"
# The first QEMU with vfio-user-pci is 10.1; bookworm has 7.2, trixie 10.0.
EMULATOR_SUITES = ["trixie", "trixie-backports"]
EMULATOR_PACKAGES = ["qemu-system-x86"]
MODULES = ["uio_pci_generic", "vfio_pci", "vfio_iommu_type1", "virtio_pci", "virtio_net"]
MEMORY_MB = 384
BOOT_TIMEOUT_S = 300
SERVER_TIMEOUT_S = 20


class SilenceError(GuestError):
    """A guest does not say what it must, in the time it has."""


def emulator():
    """The path of QEMU, fetched if it is not there yet."""
    return packages.launcher(packages.unpacked(EMULATOR_SUITES, EMULATOR_PACKAGES), EMULATOR)


def kernel_tree():
    """Packages with the guest's kernel, fetched if they are not there yet: those that the rxe guest is made of."""
    return packages.unpacked([image.SUITE], image.PACKAGES)


def built(programs):
    """The folder with kernel and initramfs; guests find `programs`, a name and a path each, at /."""
    tree = kernel_tree()
    digest = hashlib.sha256(os.path.basename(tree).encode())
    for path in [*programs.values(), os.path.join(HERE, "init.sh"), os.path.abspath(__file__)]:
        digest.update(image.read(path))
    folder = os.path.join(packages.cache(), "cards", digest.hexdigest()[:12])
    with packages.locked("card"):
        if not os.path.isdir(folder):
            part = f"{folder}.part"
            shutil.rmtree(part, ignore_errors=True)
            os.makedirs(part)
            build(tree, programs, part)
            os.rename(part, folder)
    return folder


def needs_loader(path):
    """Whether a program is dynamically linked: it names its loader in a program header (PT_INTERP)."""
    data = image.read(path)
    if data[:5] != b"\x7fELF\x02":
        raise GuestError(f"{path} is no 64-bit ELF program")
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    return any(struct.unpack_from("<I", data, start + number * size)[0] == 3 for number in range(count))


def build(tree, programs, folder):
    kernels = glob.glob(f"{tree}/boot/vmlinuz-*")
    if len(kernels) != 1:
        raise packages.PackageError(f"{tree}/boot has {len(kernels)} kernels, not one")
    shutil.copyfile(kernels[0], f"{folder}/vmlinuz")
    root = f"{folder}/root"
    for name in ("bin", "dev", "huge", "modules", "proc", "sys", "tmp"):
        os.makedirs(f"{root}/{name}")
    shutil.copyfile(f"{tree}/usr/bin/busybox", f"{root}/bin/busybox")
    for name, path in programs.items():
        if needs_loader(path):
            raise GuestError(f"{path} is dynamically linked, and guests have no libraries: e2e/card/build makes static ones")
        shutil.copyfile(path, f"{root}/{name}")
    shutil.copyfile(os.path.join(HERE, "init.sh"), f"{root}/init")
    for name in ("bin/busybox", *programs, "init"):
        os.chmod(f"{root}/{name}", 0o755)
    image.copy_modules(tree, root, os.path.basename(kernels[0]).removeprefix("vmlinuz-"), MODULES)
    with open(f"{folder}/initramfs", "wb") as file:
        image.write_cpio(root, file)
    shutil.rmtree(root)


class Server(Process):
    """`rnic serve --vfio-user`: one NIC on a socket and a link."""

    def __init__(self, folder, name, rnic, link, flags=()):
        self.socket = os.path.join(folder, f"{name}.nic")
        command = [rnic, "serve", "--face", "ernic", "--vfio-user", self.socket, "--link", link, *flags]
        super().__init__(f"server {name}", command, f"{folder}/{name}.server")

    def wait_until_ready(self):
        self.wait_for_file(self.socket, SERVER_TIMEOUT_S)

    def stop(self, number=signal.SIGTERM):
        """Ends it; returns what it has counted."""
        super().stop(number)
        return self.last_words(9)


class Guest(Process):
    """One guest, from start to `stop`."""

    def __init__(self, folder, name, programs, sockets, memory=None, iommu=False):
        """Starts it with a NIC behind each of `sockets`. `memory` replaces the memory's options. With `iommu` it has one,
        which translates for devices that vfio-pci has, and passes all else through."""
        self.name = name
        self.control_path = os.path.join(folder, f"{name}.control")
        parts = built(programs)
        ram = memory or [
            *["-object", f"memory-backend-memfd,id=ram,size={MEMORY_MB}M,share=on"],
            *["-machine", "q35,memory-backend=ram"],
        ]
        kernel_iommu = " intel_iommu=on iommu=pt" if iommu else ""
        # Before every device that it translates for.
        emulated_iommu = ["-device", "intel-iommu,caching-mode=on,intremap=on"] if iommu else []
        command = [
            emulator(),
            *["-accel", "tcg", "-cpu", "max,-erms,-fsrm", "-smp", "1", "-m", f"{MEMORY_MB}M", *ram],
            *emulated_iommu,
            *["-nodefaults", "-nographic", "-kernel", f"{parts}/vmlinuz", "-initrd", f"{parts}/initramfs"],
            *["-append", "console=ttyS0 loglevel=5 panic=-1 mitigations=off random.trust_cpu=on" + kernel_iommu],
            *["-serial", f"file:{folder}/{name}.console"],
            *["-serial", f"unix:{self.control_path},server=on,wait=off"],
            # An ordinary network beside the NICs, for TCP to programs here, at 10.0.2.2.
            *["-netdev", "user,id=outside", "-device", "virtio-net-pci,netdev=outside,romfile="],
        ]
        for number, path in enumerate(sockets, 1):
            device = {"driver": "vfio-user-pci", "bus": f"port{number}", "socket": {"type": "unix", "path": path}}
            command += ["-device", f"pcie-root-port,id=port{number},chassis={number},slot={number}"]
            command += ["-device", json.dumps(device)]
        super().__init__(f"guest {name}: QEMU", command, f"{folder}/{name}.qemu", [f"{folder}/{name}.console"])
        self.control, self.rest, self.commands = None, b"", 0

    def wait_until_booted(self):
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        self.control = self.connect(self.control_path, BOOT_TIMEOUT_S)
        # What a guest says before somebody is connected is lost, and so may be what it is told while it boots.
        while not self.answers(deadline):
            self.check_alive()
        # What is left of earlier attempts.
        self.shell("true")

    def answers(self, deadline):
        # Quoted, so that an echo of the terminal, which is on while the guest boots, is not taken for the answer.
        self.send("echo '@'hello")
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
            raise GuestError(f"guest {self.name}: `{script}` ended with {status}: {output[-600:]}")
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
                raise GuestError(f"guest {self.name} has ended: {self.last_words()}")
            self.rest += data

    def stop(self):
        """Ends it at once, as if its power were cut."""
        if self.control:
            self.control.close()
        super().stop()
