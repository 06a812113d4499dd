#!/usr/bin/env python3
"""Debian packages without root: fetched with apt, unpacked into a folder of their own, cached.

    packages.py [--suite SUITE]... PACKAGE...    prints the folder that they and what they need are unpacked in
    packages.py --program NAME [--suite ...] PACKAGE...
                                                 prints a script there that starts NAME with the folder's own libraries

It knows nothing of what the packages are for. The archive is the one that this machine's apt is set up with
(`RNIC_DEBIAN_ARCHIVE=URI` names another), and so are proxies and keys. The first suite is the release; the last one
wins where several offer a package, so `--suite trixie --suite trixie-backports` takes backports. All is kept under
`RNIC_CACHE` (default: target/e2e in the tree). A folder that is complete is used again without a look at the network:
delete it for newer packages.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# What of the machine's apt settings is taken over: how to reach a server, and what it has to show.
KEPT_SETTINGS = ("Acquire::", "APT::Architecture ", "APT::Architectures")
# A part of the name of each unpacked folder; raise it where unpacking changes.
FORMAT = 2


class PackageError(Exception):
    """Packages cannot be had; says why and what to do."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", action="append", help="Debian suite, may be repeated (default: bookworm)")
    parser.add_argument("--program", help="print the path of a script that starts this program of the folder")
    parser.add_argument("package", nargs="+")
    arguments = parser.parse_args()
    try:
        folder = unpacked(arguments.suite or ["bookworm"], arguments.package)
        print(launcher(folder, arguments.program) if arguments.program else folder)
    except PackageError as error:
        print(f"packages.py: {error}", file=sys.stderr)
        return 1
    return 0


def cache():
    """The folder for everything that is fetched or built here and may be deleted."""
    folder = os.path.abspath(os.environ.get("RNIC_CACHE") or os.path.join(TREE, "target", "e2e"))
    os.makedirs(folder, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(name):
    """One process at a time for what `name` stands for."""
    with open(os.path.join(cache(), f"{name}.lock"), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpacked(suites, packages):
    """The folder with `packages` and all that they depend on, fetched and unpacked if it is not there yet."""
    recipe = repr((FORMAT, suites, sorted(packages)))
    name = f"{suites[-1]}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    folder = os.path.join(cache(), "trees", name)
    with locked(f"apt-{suites[-1]}"):
        if not os.path.isdir(folder):
            debs = download(suites, packages)
            part = f"{folder}.part"
            shutil.rmtree(part, ignore_errors=True)
            unpack(debs, part)
            os.rename(part, folder)
    return folder


def download(suites, packages):
    """Fetches with an apt state of its own, as if nothing were installed. Returns the files' paths."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise PackageError("apt-get and dpkg-deb are needed; they come with Debian and its relatives")
    state = os.path.join(cache(), "apt", suites[-1])
    for part in ("lists/partial", "archives/partial"):
        os.makedirs(os.path.join(state, part), exist_ok=True)
    open(os.path.join(state, "status"), "w", encoding="utf-8").close()
    archive, key = debian_archive()
    with open(os.path.join(state, "sources.list"), "w", encoding="utf-8") as file:
        for suite in suites:
            file.write(f"deb {key} {archive} {suite} main\n".replace("  ", " "))
    with open(os.path.join(state, "apt.conf"), "w", encoding="utf-8") as file:
        file.write("\n".join(settings(state, suites[-1])) + "\n")
    apt(state, "update")
    apt(state, "install", "--yes", "--download-only", *packages)
    # apt-get does not say which files it took: they are named after what it would install.
    listed = apt(state, "install", "--yes", "--simulate", *packages)
    wanted = re.findall(r"^Inst (\S+) \((\S+) .*\[(\w+)\]\)", listed, re.M)
    debs = [
        os.path.join(state, "archives", f"{name}_{version.replace(':', '%3a')}_{architecture}.deb")
        for name, version, architecture in wanted
    ]
    missing = [deb for deb in debs if not os.path.isfile(deb)]
    if missing or not debs:
        raise PackageError(f"apt-get has not fetched {' '.join(missing) or 'anything'}")
    return debs


def settings(state, release):
    """apt's settings: the machine's way to reach servers, our folders, none of the machine's hooks."""
    dump = run(["apt-config", "dump"])
    lines = [line for line in dump.splitlines() if line.startswith(KEPT_SETTINGS)]
    etc = directory("Dir::Etc")
    own = {
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::sourcelist": f"{state}/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Etc::trusted": f"{etc}/trusted.gpg",
        "Dir::Etc::trustedparts": f"{etc}/trusted.gpg.d",
        "Dir::Etc::netrc": f"{etc}/auth.conf",
        "Dir::Etc::netrcparts": f"{etc}/auth.conf.d",
        "Dir::State": state,
        "Dir::State::lists": f"{state}/lists",
        "Dir::State::status": f"{state}/status",
        "Dir::State::extended_states": f"{state}/extended_states",
        "Dir::Cache": state,
        "Dir::Cache::archives": f"{state}/archives",
        "Dir::Log": state,
        "APT::Default-Release": release,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Debug::NoLocking": "true",
    }
    return lines + [f'{name} "{value}";' for name, value in own.items()]


def directory(name):
    """A folder of the machine's apt, as apt itself says."""
    return run(["apt-config", "shell", "FOLDER", f"{name}/d"]).split("'")[1].rstrip("/")


def debian_archive():
    """URI of a Debian archive and the option that names its key, from the machine's own sources."""
    key = f"[signed-by={KEYRING}]" if os.path.isfile(KEYRING) else ""
    own = os.environ.get("RNIC_DEBIAN_ARCHIVE")
    if own:
        return own.rstrip("/"), key
    # Says what `update` would fetch, from sources of either format, and fetches nothing.
    uris = run(["apt-get", "--print-uris", "update"])
    for uri in re.findall(r"'([^']+)/dists/[^']*'", uris):
        if uri.rstrip("/").endswith("/debian"):
            return uri, key
    raise PackageError("this machine's apt sources name no Debian archive: set RNIC_DEBIAN_ARCHIVE to the URI of one")


def apt(state, *arguments):
    environment = dict(os.environ, APT_CONFIG=os.path.join(state, "apt.conf"), DEBIAN_FRONTEND="noninteractive")
    return run(["apt-get", "--quiet=2", *arguments], environment)


def run(command, environment=None, stdin=subprocess.DEVNULL):
    environment = dict(environment or os.environ, LC_ALL="C")
    done = subprocess.run(command, env=environment, stdin=stdin, capture_output=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.decode(errors="replace") or done.stdout.decode(errors="replace")).strip().splitlines()
        raise PackageError(f"`{' '.join(command[:6])}` failed: {' / '.join(said[-3:])}")
    return done.stdout.decode(errors="replace")


def unpack(debs, folder):
    """Unpacks in the layout that all of Debian has now: /bin and its sisters are links into /usr."""
    for name in ("bin", "lib", "lib64", "sbin"):
        os.makedirs(os.path.join(folder, "usr", name))
        os.symlink(f"usr/{name}", os.path.join(folder, name))
    for deb in debs:
        # Not `dpkg-deb --extract`: it puts a folder where such a link is.
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as files:
            run(["tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "-C", folder], stdin=files.stdout)
        if files.returncode != 0:
            raise PackageError(f"{deb} is not a whole package: delete it")
    with open(os.path.join(folder, "packages.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{os.path.basename(deb)}\n" for deb in sorted(debs))


def launcher(folder, program):
    """Path of a script that starts a program of the folder with the folder's own loader and libraries."""
    found = [f"{folder}/usr/{place}/{program}" for place in ("bin", "sbin", "libexec")]
    found = [path for path in found if os.path.isfile(path)]
    if not found:
        raise PackageError(f"there is no program {program} in {folder}")
    script = os.path.join(folder, f"run-{program}")
    # QEMU's firmware files and modules are not where it was built for; other programs need no such word.
    data, modules = "", ""
    if program.startswith("qemu-system-"):
        data = ' -L "$here/usr/share/qemu" -L "$here/usr/share/seabios"'
        modules = 'export QEMU_MODULE_DIR="$here/usr/lib/x86_64-linux-gnu/qemu"\n'
    text = f"""#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
{modules}exec "$here/lib64/ld-linux-x86-64.so.2" --library-path "$here/usr/lib/x86_64-linux-gnu" \\
    "$here/{os.path.relpath(found[0], folder)}"{data} "$@"
"""
    part = f"{script}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(part, 0o755)
    os.rename(part, script)
    return script


if __name__ == "__main__":
    sys.exit(main())
