#!/usr/bin/env python3
"""Random scripts of requests, and whether two plays of one came to the same (rule P-27).

What a script may hold, and where its bytes go, stands at the top of guest/verify.py; both ends of all implementations play
the same file. It starts nothing and knows no device.

    script.py RUN    prints the script of a run of matrix.py
"""

import json
import random
import sys

import matrix

ARENA = 1 << 15
DEPTH = 8
REQUESTS = 100
# At the start of the arena, 0 before; only atomics change them.
CELLS = 8
ALL = ("send", "write", "write_imm", "read", "fetch_add", "cmp_swap")
LONGEST = 16384
WORD = 1 << 64


def of(run):
    """The script of a run."""
    return make(run.script_seed, run.verify_operations, matrix.ERNIC_ALIGNMENT if run.face == "ernic" else 1)


def make(seed, operations=ALL, unit=1, requests=REQUESTS):
    """A script whose sizes and places are multiples of `unit` bytes."""
    chance = random.Random(seed)
    return {
        "arena": ARENA,
        "depth": DEPTH,
        "client": part(chance, operations, unit, requests),
        "server": part(chance, operations, unit, requests),
    }


def part(chance, operations, unit, requests):
    # What the peer's cells hold when a request is executed, and what of its arena is being read.
    cells, reading, made = [0] * CELLS, [], []
    for _ in range(requests):
        one = request(chance, chance.choice(operations), unit, cells)
        span = (one["at"], one["at"] + one["size"]) if "at" in one else (0, 0)
        if one["op"] == "read":
            reading.append(span)
        elif any(start < span[1] and span[0] < end for start, end in reading):
            # A responder may put a READ off until after what comes later (IBTA vol 1, 10.8.3); all else it does in order.
            one["wait"], reading = True, []
        made.append(one)
    return made


def request(chance, op, unit, cells):
    if op in ("fetch_add", "cmp_swap"):
        return atomic(chance, op, cells)
    longest = chance.choice((64, 300, 1500, 5000, LONGEST)) // unit
    size = chance.randint(0 if unit == 1 else 1, longest) * unit
    start = 0 if op == "read" else CELLS * 8
    place = chance.randint(-(-start // unit), (ARENA - size) // unit) * unit
    source = chance.randint(0, (ARENA - size) // unit) * unit
    made = {"op": op, "size": size}
    if op != "read":
        made["from"] = source
    if op != "send":
        made["at"] = place
    if op == "write_imm":
        made["operand"] = chance.randrange(1 << 32)
    return made


def atomic(chance, op, cells):
    cell, operand = chance.randrange(CELLS), chance.randrange(WORD)
    made = {"op": op, "size": 8, "at": cell * 8, "operand": operand}
    if op == "fetch_add":
        cells[cell] = (cells[cell] + operand) % WORD
        return made
    # Every second swap meets what it compares with.
    made["compare"] = cells[cell] if chance.random() < 0.5 else (cells[cell] + 1) % WORD
    if made["compare"] == cells[cell]:
        cells[cell] = operand
    return made


def differences(wanted, found):
    """What differs between the results of two plays, in words. What a device does not tell cannot differ."""
    differ = []
    for end in ("client", "server"):
        for what in ("requests", "receives", "memory"):
            a, b = wanted[end][what], found[end][what]
            if len(a) != len(b):
                differ.append(f"{end}: {len(b)} {what}, not {len(a)}")
                continue
            places = [place for place, pair in enumerate(zip(a, b)) if not same(*pair)]
            if places:
                first = places[0]
                differ.append(f"{end}: {len(places)} of {len(a)} {what} differ, number {first}: {b[first]}, not {a[first]}")
    return differ


def same(wanted, found):
    if isinstance(wanted, dict):
        return all(found[name] is None or found[name] == value for name, value in wanted.items())
    return wanted == found


def main():
    runs = [run for run in matrix.full() if sys.argv[1:] == [run.name] and run.operation == "script"]
    if not runs:
        print(__doc__, file=sys.stderr)
        return 2
    print(json.dumps(of(runs[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
