#!/usr/bin/env python3
"""Check: every crate that Cargo.lock names has a permissive licence, and ours are MIT OR Apache-2.0.

    check_licences.py < METADATA        where METADATA is `cargo metadata --format-version 1`
    check_licences.py --self-test
"""

import json
import re
import sys

ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
OURS = "MIT OR Apache-2.0"


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    metadata = json.load(sys.stdin)
    members = set(metadata["workspace_members"])
    wrong = []
    for package in metadata["packages"]:
        licence = package["license"] or ""
        name = f"{package['name']} {package['version']}"
        if package["id"] in members and licence != OURS:
            wrong.append(f"{name}: licence is '{licence}', not '{OURS}'")
        if not permitted(licence):
            wrong.append(f"{name}: licence '{licence}' is not on the list in e2e/check_licences.py")
    for text in wrong:
        print(text)
    count = len(metadata["packages"])
    print(f"JUDGE licences -: {count} packages, {count} checks, {len(wrong)} wrong")
    return 1 if wrong or not count else 0


def permitted(expression):
    """Whether an SPDX expression can be satisfied with allowed licences only."""
    tokens = re.findall(r"[()]|[^\s()/]+|/", expression)
    rest, value = either(tokens)
    return value and not rest


def either(tokens):
    tokens, value = both(tokens)
    while tokens and tokens[0] in ("OR", "/"):
        tokens, other = both(tokens[1:])
        value = value or other
    return tokens, value


def both(tokens):
    tokens, value = one(tokens)
    while tokens and tokens[0] == "AND":
        tokens, other = one(tokens[1:])
        value = value and other
    return tokens, value


def one(tokens):
    if not tokens:
        return [], False
    if tokens[0] == "(":
        tokens, value = either(tokens[1:])
        return tokens[1:], value and tokens[:1] == [")"]
    if tokens[1:2] == ["WITH"]:
        return tokens[3:], " ".join(tokens[:3]) in ALLOWED
    return tokens[1:], tokens[0] in ALLOWED


def self_test():
    cases = {
        "MIT": True,
        "MIT/Apache-2.0": True,
        "GPL-2.0-only": False,
        "": False,
        "MIT OR GPL-3.0-only": True,
        "MIT AND GPL-3.0-only": False,
        "(MIT OR Apache-2.0) AND Unicode-3.0": True,
        "(MIT AND LGPL-2.1-only) OR (MPL-2.0 AND MIT)": False,
        "Apache-2.0 WITH LLVM-exception OR MIT": True,
        "GPL-2.0-only WITH Classpath-exception-2.0": False,
        "(MIT": False,
    }
    wrong = [text for text, expected in cases.items() if permitted(text) != expected]
    for text in wrong:
        print(f"'{text}' is judged wrongly")
    print(f"JUDGE licences-self-test -: {len(cases)} cases, {len(cases)} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
