#!/usr/bin/env python3
"""Check: what the tree may not contain.

    check_tree.py [FOLDER]       every file that git tracks
    check_tree.py --self-test

- No path of one machine and no host of the package registries that this machine is set up with.
- Nothing that points outside of the tree.
- `unsafe` only under host/; every other crate forbids it.
- No unfinished code by its usual marks.
- No compiled file or archive, and nothing above 1 MiB.
"""

import os
import re
import subprocess
import sys
import tempfile

SIZE_MAX = 1 << 20
# Public names that may stand in a document even where the machine's settings name them too.
PUBLIC_HOSTS = {"github.com", "crates.io", "docs.rs", "localhost"}
# Split, so that this file does not find itself.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:wo" r"rk|root|home/\w+|Users/\w+)/[\w.]"),
    "a path outside of the tree": re.compile(r"\.\./sha" r"red\b"),
    "a mark of unfinished code": re.compile(r"\b(?:FIX" r"ME|to" r"do!|unimple" r"mented!)"),
}
FORBID_UNSAFE = "#![forbid(unsafe_code)]"


def main():
    arguments = sys.argv[1:]
    if "--self-test" in arguments:
        return self_test()
    folder = arguments[0] if arguments else "."
    names = tracked(folder)
    hosts = registry_hosts()
    wrong = judge(folder, names, hosts)
    for text in wrong:
        print(text)
    print(f"JUDGE tree -: {len(names)} files, {len(names)} checks, {len(wrong)} wrong")
    return 1 if wrong or not names else 0


def tracked(folder):
    command = ["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, check=True)
    names = [name for name in done.stdout.decode().split("\0") if name]
    return [name for name in names if os.path.isfile(os.path.join(folder, name))]


def judge(folder, names, hosts):
    wrong = []
    host = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in hosts) or r"(?!)")
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        if len(data) > SIZE_MAX:
            wrong.append(f"{name}: {len(data)} bytes are too many")
        if data[:4] in (b"\x7fELF", b"PK\x03\x04") or data[:2] == b"\x1f\x8b":
            wrong.append(f"{name}: a compiled file or an archive")
        text = data.decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            for what, pattern in FORBIDDEN.items():
                if pattern.search(line):
                    wrong.append(f"{name}:{number}: {what}")
            if host.search(line):
                wrong.append(f"{name}:{number}: a registry host of this machine's settings")
            if name.endswith(".rs") and not name.startswith("host/") and has_unsafe(line):
                wrong.append(f"{name}:{number}: unsafe outside of host/")
        member, _, rest = name.partition("/")
        if rest in ("src/lib.rs", "src/main.rs") and member != "host" and FORBID_UNSAFE not in text:
            wrong.append(f"{name}: does not say {FORBID_UNSAFE}")
    return wrong


def has_unsafe(line):
    code = line.split("//")[0]
    return re.search(r"\bunsafe\b", re.sub(r'"[^"]*"', '""', code)) is not None


def registry_hosts():
    """Hosts that pip, cargo, npm and apt are told to use on this machine."""
    texts = [value for name, value in os.environ.items() if re.match(r"(PIP|CARGO|NPM|UV)_", name, re.I)]
    texts += [value for name, value in os.environ.items() if name.lower().endswith("_proxy")]
    home = os.path.expanduser("~")
    cargo_home = os.environ.get("CARGO_HOME", os.path.join(home, ".cargo"))
    files = [os.path.join(cargo_home, name) for name in ("config.toml", "config")]
    files += [os.path.join(home, name) for name in (".npmrc", ".pip/pip.conf", ".config/pip/pip.conf")]
    files += ["/etc/pip.conf", "/etc/npmrc", "/etc/apt/sources.list"]
    for folder in ("/etc/apt/sources.list.d", "/etc/apt/apt.conf.d"):
        if os.path.isdir(folder):
            files += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    for name in files:
        try:
            with open(name, encoding="utf-8", errors="replace") as file:
                texts += [line for line in file if not line.lstrip().startswith("#")]
        except OSError:
            continue
    hosts = set()
    for text in texts:
        hosts.update(re.findall(r"[a-z+]+://(?:[^/\s@]*@)?([\w.-]+)", text))
    return sorted(hosts - PUBLIC_HOSTS)


def self_test():
    lib = FORBID_UNSAFE + "\n"
    good = {
        "engine/src/lib.rs": lib + "// unsafe is a word here\nlet text = \"unsafe\";\n",
        "host/src/lib.rs": "unsafe { f() }\n",
        "README.md": "See example.org and a/work/of/art, docs/home.md.\n",
    }
    bad = {
        "a path of one machine": ("a.md", "see /wo" "rk/x\n"),
        "a path outside of the tree": ("a.md", "see ../sha" "red/x\n"),
        "a mark of unfinished code": ("a.rs", "to" "do!()\n"),
        "a registry host": ("a.toml", 'url = "https://mirror.invalid/x"\n'),
        "unsafe outside of host/": ("sim/src/a.rs", "unsafe { f() }\n"),
        "does not say": ("sim/src/lib.rs", "\n"),
        "a compiled file": ("a.bin", "\x7fELF"),
        "bytes are too many": ("a.txt", "x" * (SIZE_MAX + 1)),
    }
    hosts = ["mirror.invalid"]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        def findings(files):
            for name, text in files.items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return judge(folder, list(files), hosts)

        wrong += findings(good)
        for expected, (name, text) in bad.items():
            found = findings({name: text})
            if len(found) != 1 or expected not in found[0]:
                wrong.append(f"{name} should be '{expected}', and the check said {found}")
    for text in wrong:
        print(text)
    checks = len(good) + len(bad)
    print(f"JUDGE tree-self-test -: {checks} files, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
