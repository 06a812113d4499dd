#!/usr/bin/env python3
"""Writes docs/reference/conformance.md: each rule of the transport with the tests that check it.

    conformance.py [--tests FILE]            write the page
    conformance.py --check [--tests FILE]    fail where the page is stale or a rule is not covered
    conformance.py --self-test               try the judge on made-up rules and names

Rules come from golden/conformance-rules.csv, tests from `cargo test --workspace -- --list`, or from
FILE, which holds such a list. A test checks each rule that its name mentions and begins with one:
s_34_..., u_02_u_03_....
"""

import csv
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RULES = os.path.join(ROOT, "golden", "conformance-rules.csv")
PAGE = os.path.join(ROOT, "docs", "reference", "conformance.md")

FAMILIES = {
    "F": "Frames",
    "V": "Validation",
    "S": "Responder",
    "Q": "Requester",
    "U": "Unreliable services",
    "M": "States and verbs",
    "T": "Devices",
}
# Ids that tests may begin with and that this page does not list: congestion, invariants, the test plan but
# for what is about devices.
ELSEWHERE = {"C": 34, "P": 27, "T": 40}

ID_AT_START = re.compile(r"^([a-z])_(\d\d)(?=_|$)")
ID_ANYWHERE = re.compile(r"(?:^|_)([a-z])_(\d\d)(?=_|$)")
SOURCES = {"A", "B", "A/B"}


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    check = "--check" in arguments
    arguments = [a for a in arguments if a != "--check"]
    if arguments and (len(arguments) != 2 or arguments[0] != "--tests"):
        sys.exit(__doc__)
    rules = read_rules(RULES)
    names = test_names(read_list(arguments[1] if arguments else None))
    wrong = judge(rules, names)
    page = write_page(rules, names)
    if check:
        if not os.path.exists(PAGE) or open(PAGE, encoding="utf-8").read() != page:
            wrong.append(f"{os.path.relpath(PAGE, ROOT)} is stale: run e2e/conformance.py")
    else:
        os.makedirs(os.path.dirname(PAGE), exist_ok=True)
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(page)
    for text in wrong:
        print(text)
    print(f"JUDGE conformance -: {len(rules)} rules, {len(names)} tests, "
          f"{len(rules)} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


def read_rules(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_list(path):
    if path:
        with open(path, encoding="utf-8") as file:
            return file.read()
    command = ["cargo", "test", "--workspace", "--", "--list"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("the tests do not build, so nothing can be said about them")
    return done.stdout


def test_names(listing):
    """Full names, as cargo takes them, of all tests in the list: lines `a::b::name: test`."""
    found = re.findall(r"^([\w:]+): test$", listing, re.MULTILINE)
    return sorted(set(found))


def rules_of(name):
    """Rule ids that a test's own name mentions; none where it does not begin with one."""
    last = name.rsplit("::", 1)[-1]
    if not ID_AT_START.match(last):
        return []
    return [f"{letter.upper()}-{number}" for letter, number in ID_ANYWHERE.findall(last)]


def judge(rules, names):
    wrong = []
    known = [rule["id"] for rule in rules]
    for rule_id in sorted({i for i in known if known.count(i) > 1}):
        wrong.append(f"{rule_id} is listed twice")
    covered = {rule_id for name in names for rule_id in rules_of(name)}
    for rule in rules:
        if not rule["rule"] or rule["source"] not in SOURCES or None in rule:
            wrong.append(f"{rule['id']}: the row is not id, rule, source, choice, no_test")
        if rule["id"] not in covered and not rule["no_test"]:
            wrong.append(f"{rule['id']} has neither a test nor a reason why not: {rule['rule']}")
        if rule["id"] in covered and rule["no_test"]:
            wrong.append(f"{rule['id']} has a test and a reason for having none")
    for name in names:
        for rule_id in rules_of(name):
            letter, number = rule_id.split("-")
            elsewhere = letter in ELSEWHERE and 1 <= int(number) <= ELSEWHERE[letter]
            if rule_id not in known and not elsewhere:
                wrong.append(f"{name}: there is no rule {rule_id}")
    return wrong


def write_page(rules, names):
    tests = {}
    for name in names:
        for rule_id in rules_of(name):
            tests.setdefault(rule_id, []).append(name)
    lines = [
        "# Conformance",
        "",
        "Each rule of the transport in a few words, with the tests that check it. Made by",
        "`e2e/conformance.py`; edit `golden/conformance-rules.csv` or the tests, not this page.",
        "",
        "A test runs by its name: `cargo test --workspace NAME`. Source A was read in a public",
        "implementation or measured, B is from knowledge of the standard's text; IBTA volume 1 is the",
        "authority for both. *Chosen* is our pick where implementations differ.",
        "",
    ]
    with_test = sum(1 for rule in rules if rule["id"] in tests)
    lines += [f"{len(rules)} rules: {with_test} with tests, {len(rules) - with_test} without.", ""]
    for letter, title in FAMILIES.items():
        lines += [f"## {letter}: {title}", "", "| rule | what | source | tests |", "|---|---|---|---|"]
        for rule in rules:
            if rule["id"].startswith(letter + "-"):
                lines.append(row(rule, tests.get(rule["id"], [])))
        lines.append("")
    return "\n".join(lines)


def row(rule, tests):
    what = rule["rule"]
    if rule["choice"]:
        what += f" *Chosen:* {rule['choice']}"
    shown = "<br>".join(f"`{name}`" for name in tests)
    if rule["no_test"]:
        shown = f"none: {rule['no_test']}"
    cells = [rule["id"], what, rule["source"], shown or "**none**"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def self_test():
    def rule(rule_id, no_test=""):
        return {"id": rule_id, "rule": "x", "source": "A", "choice": "", "no_test": no_test}

    listing = "a::s_01_x: test\nu_02_u_03_y: test\nplain: test\nc_11_z: test\n3 tests, 0 benchmarks\n"
    names = test_names(listing)
    rules = [rule("S-01"), rule("U-02"), rule("U-03"), rule("Q-99", "not offered")]
    cases = [
        (judge(rules, names), 0),
        (judge(rules + [rule("S-02")], names), 1),
        (judge(rules + [rule("S-01")], names), 1),
        (judge(rules, names + ["b::s_77_nothing"]), 1),
        (judge(rules, names + ["c_35_nothing"]), 1),
        (judge(rules[1:] + [rule("S-01", "none")], names), 1),
        (judge([{**rules[0], "source": "C"}] + rules[1:], names), 1),
        ([], 0 if "`a::s_01_x`" in write_page(rules, names) else 1),
    ]
    wrong = [i for i, (found, expected) in enumerate(cases) if len(found) != expected]
    print(f"self-test: {len(cases)} cases, {len(wrong)} wrong {wrong or ''}".rstrip())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
