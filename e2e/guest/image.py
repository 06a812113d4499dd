#!/usr/bin/env python3
"""The guest: a Debian kernel with rdma_rxe, and an initramfs of a few tools, built from packages without root.

    image.py            builds it if it is not there yet, prints the folder with `vmlinuz` and `initramfs`

The initramfs is not compressed: an emulated CPU is slower at unpacking than at copying. It is named after all that goes
in, so an edit of anything below makes another one.
"""

import glob
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys

import packages

SUITE = "bookworm"
PACKAGES = [
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "linux-image-amd64",
    "perftest",
    "python3-minimal",
    "python3-pyverbs",
    "rdma-core",
    "rdmacm-utils",
]
# What is loaded at boot, with what it depends on. rdma_rxe asks for crc32 by name only.
MODULES = ["virtio_pci", "virtio_console", "virtio_net", "crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs"]
PROGRAMS = [
    "ib_atomic_bw", "ib_atomic_lat", "ib_read_bw", "ib_read_lat", "ib_send_bw", "ib_send_lat", "ib_write_bw",
    "ib_write_lat", "ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ip", "python3.11", "rdma",
    "rping", "ucmatose", "udaddy",
]  # fmt: skip
APPLETS = ["cat", "dmesg", "grep", "ip", "kill", "ls", "mount", "nc", "ping", "ping6", "ps", "sh", "sleep", "tail", "top"]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PYTHON = "usr/lib/python3.11"
# Parts of Python's library that nothing here imports.
PYTHON_LEFT_OUT = {
    "asyncio", "concurrent", "curses", "dbm", "distutils", "email", "ensurepip", "html", "http", "idlelib", "lib2to3",
    "multiprocessing", "pydoc_data", "sqlite3", "test", "tkinter", "turtledemo", "unittest", "urllib", "venv",
    "wsgiref", "xml", "xmlrpc", "zoneinfo", "__pycache__", "pydoc.py", "turtle.py", "tomllib", "doctest.py",
}  # fmt: skip
OWN_FILES = {"init.sh": "init", "agent.py": "agent.py", "verify.py": "verify.py"}
HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    try:
        print(built())
    except packages.PackageError as error:
        print(f"image.py: {error}", file=sys.stderr)
        return 1
    return 0


def built():
    """The folder with kernel and initramfs."""
    tree = packages.unpacked([SUITE], PACKAGES)
    digest = hashlib.sha256(os.path.basename(tree).encode())
    for name in sorted([*OWN_FILES, "image.py"]):
        digest.update(read(os.path.join(HERE, name)))
    folder = os.path.join(packages.cache(), "guests", digest.hexdigest()[:12])
    with packages.locked("guest"):
        if not os.path.isdir(folder):
            part = os.path.join(packages.cache(), "guests", "part")
            shutil.rmtree(part, ignore_errors=True)
            os.makedirs(part)
            build(tree, part)
            os.rename(part, folder)
    return folder


def build(tree, folder):
    kernels = glob.glob(f"{tree}/boot/vmlinuz-*")
    if len(kernels) != 1:
        raise packages.PackageError(f"{tree}/boot has {len(kernels)} kernels, not one")
    shutil.copyfile(kernels[0], f"{folder}/vmlinuz")
    root = f"{folder}/root"
    for name in ("bin", "dev", "etc", "modules", "proc", "root", "run", "sys", "tmp", "usr/lib/busybox", "usr/lib64"):
        os.makedirs(f"{root}/{name}")
    for name in ("lib", "lib64"):
        os.symlink(f"usr/{name}", f"{root}/{name}")
    copy_programs(tree, root)
    copy_python(tree, root)
    copy_modules(tree, root, os.path.basename(kernels[0]).removeprefix("vmlinuz-"))
    for name, path in OWN_FILES.items():
        shutil.copyfile(os.path.join(HERE, name), f"{root}/{path}")
        os.chmod(f"{root}/{path}", 0o755)
    with open(f"{root}/etc/passwd", "w", encoding="utf-8") as file:
        file.write("root::0:0::/:/bin/sh\n")
    with open(f"{root}/etc/hosts", "w", encoding="utf-8") as file:
        file.write("127.0.0.1 localhost guest\n")
    with open(f"{folder}/initramfs", "wb") as file:
        write_cpio(root, file)
    shutil.rmtree(root)


def copy_programs(tree, root):
    copy(tree, root, "usr/bin/busybox")
    os.symlink("/usr/bin/busybox", f"{root}/bin/busybox")
    os.symlink("/usr/bin/busybox", f"{root}/bin/sh")
    for name in APPLETS:
        os.symlink("/usr/bin/busybox", f"{root}/usr/lib/busybox/{name}")
    for name in PROGRAMS:
        copy_with_libraries(tree, root, f"usr/bin/{name}")
    os.symlink("python3.11", f"{root}/usr/bin/python3")
    for path in glob.glob(f"{tree}/{LIBRARIES}/libibverbs/librxe-*.so"):
        copy_with_libraries(tree, root, os.path.relpath(path, tree))
    copy(tree, root, "etc/libibverbs.d/rxe.driver")
    # What pthread_exit opens by name.
    copy(tree, root, f"{LIBRARIES}/libgcc_s.so.1")


def copy_python(tree, root):
    for base, names, files in os.walk(f"{tree}/{PYTHON}"):
        names[:] = [name for name in names if name not in PYTHON_LEFT_OUT]
        for name in files:
            path = os.path.relpath(os.path.join(base, name), tree)
            if name.endswith(".so"):
                # An extension whose libraries are not there is one that nothing here uses.
                if not re.search(r"_(test|curses|tkinter|sqlite|dbm|gdbm|ssl|hashlib|bz2|lzma)", name):
                    copy_with_libraries(tree, root, path)
            elif name not in PYTHON_LEFT_OUT and "codec_" not in name and not re.search("^(cp|mac_|iso|koi|big5)", name):
                copy(tree, root, path)
    pyverbs = "usr/lib/python3/dist-packages/pyverbs"
    for name in os.listdir(f"{tree}/{pyverbs}"):
        if name.endswith(".so"):
            copy_with_libraries(tree, root, f"{pyverbs}/{name}")
        elif name.endswith(".py"):
            copy(tree, root, f"{pyverbs}/{name}")
    for path in glob.glob(f"{tree}/{pyverbs}/providers/mlx5/*") + glob.glob(f"{tree}/{pyverbs}/providers/*.py"):
        if path.endswith(".so"):
            copy_with_libraries(tree, root, os.path.relpath(path, tree))
        elif os.path.isfile(path):
            copy(tree, root, os.path.relpath(path, tree))
    # Compiled here, with the guest's own Python, so that the guest need not. The date in them must not move.
    environment = {"PYTHONHOME": f"{tree}/usr", "SOURCE_DATE_EPOCH": "0", "PATH": os.environ["PATH"]}
    python = packages.launcher(tree, "python3.11")
    command = [python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", root]
    done = subprocess.run(
        [*command, f"{root}/{PYTHON}", f"{root}/usr/lib/python3"], env=environment, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise packages.PackageError(f"Python cannot be compiled: {done.stdout.decode()[-300:]}{done.stderr.decode()[-300:]}")


def copy_modules(tree, root, release, modules=None):
    """Copies `modules`, by default MODULES, and what they need, and writes the order to load them in."""
    found = {}
    for path in glob.glob(f"{tree}/usr/lib/modules/{release}/kernel/**/*.ko", recursive=True):
        found[os.path.basename(path).removesuffix(".ko").replace("-", "_")] = path
    builtin = read(f"{tree}/usr/lib/modules/{release}/modules.builtin").decode()
    builtin = {os.path.basename(line).removesuffix(".ko").replace("-", "_") for line in builtin.split()}
    order = []

    def need(name):
        if name in order or name in builtin:
            return
        if name not in found:
            raise packages.PackageError(f"Linux {release} has no module {name}")
        data = read(found[name])
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in depends.group(1).decode().split(",") if depends else []:
            if other:
                need(other.replace("-", "_"))
        order.append(name)
        with open(f"{root}/modules/{name}.ko", "wb") as file:
            file.write(data)

    for name in modules or MODULES:
        need(name)
    with open(f"{root}/modules/order", "w", encoding="utf-8") as file:
        file.writelines(f"{name}.ko\n" for name in order)


def copy_with_libraries(tree, root, path):
    copy(tree, root, path)
    loader = f"{tree}/lib64/ld-linux-x86-64.so.2"
    command = [loader, "--library-path", f"{tree}/{LIBRARIES}", "--list", f"{tree}/{path}"]
    listed = subprocess.run(command, capture_output=True, check=False)
    if listed.returncode != 0:
        raise packages.PackageError(f"{path} has libraries that are not there: {listed.stderr.decode().strip()}")
    for library in re.findall(r"=> (\S+) \(", listed.stdout.decode()):
        copy(tree, root, os.path.relpath(library, tree))
    copy(tree, root, "usr/lib64/ld-linux-x86-64.so.2")


def copy(tree, root, path):
    target = os.path.join(root, path)
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(os.path.join(tree, path), target)
        shutil.copymode(os.path.join(tree, path), target)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write_cpio(root, file):
    """The "newc" format that Linux takes: a header of hexadecimal numbers, name, bytes, each padded to 4."""
    entries = [("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1)), ("dev/null", stat.S_IFCHR | 0o666, b"", (1, 3))]
    for base, folders, names in os.walk(root):
        for name in sorted(folders + names):
            path = os.path.join(base, name)
            mode = os.lstat(path).st_mode
            data = b""
            if stat.S_ISLNK(mode):
                data = os.readlink(path).encode()
            elif stat.S_ISREG(mode):
                data = read(path)
            entries.append((os.path.relpath(path, root), mode, data, (0, 0)))
    entries.sort()
    entries.append(("TRAILER!!!", 0, b"", (0, 0)))
    for number, (name, mode, data, device) in enumerate(entries, 1):
        encoded = name.encode() + b"\0"
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0]
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        file.write(header + bytes(-len(header) % 4))
        file.write(data + bytes(-len(data) % 4))


if __name__ == "__main__":
    sys.exit(main())
