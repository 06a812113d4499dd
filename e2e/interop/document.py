"""docs/interop.md: what was played, written from the outcomes of a full run."""

import itertools
import os

import matrix

INTRODUCTION = """# Interoperability with Linux

Written by `e2e/run --full`; not to be edited by hand. The peer is `rdma_rxe` of Linux {kernel} with rdma-core's libraries, perftest,
rping and pyverbs, in a guest that [e2e/guest](../e2e/guest) builds from Debian packages. The wire is a UNIX socket between QEMU and `rnic`,
with an IP MTU of 9000 bytes.

{runs} runs, {checks} checks, {wrong} wrong.

In each run that is not about a break: both programs end well; `retry_exceeded_err`, `retry_rnr_exceeded_err` and `send_err` of rxe have
not grown; every RoCE frame of the capture has the ICRC that zlib's CRC-32 and `rnic decode` compute, and tshark finds none malformed; and, where
no frame was lost on purpose, rxe's `rcvd_pkts` has grown by the number of RoCE frames that we sent. `verify` compares every byte, also
those around the target, on both ends ([e2e/guest/verify.py](../e2e/guest/verify.py)).
`script` plays a random script of 200 requests, eight in flight at each end, twice: between two ends on Linux, and between Linux
and us. Memory and completions of both ends must be the same. `e2e/interop/script.py RUN` prints a run's script; a run's name is what
`e2e/run --list --full` has.
A loss run loses one frame of a hundred on either way, by fault rules of ours. In a break our program must end in time, with an error
that names peer and queue pair.

ERNIC moves multiples of 64 bytes and knows neither atomics nor UC nor UD: those cells are not there.

`STATION` below stands for

    --link qemu-stream:wire.sock --address {address4} (or {address6}) --mac {mac} --mtu {mtu} --face FACE --capture capture.pcapng
"""


def write(path, outcomes, kernel, station):
    """Writes the document. `station` has what the introduction says of our end."""
    wrong = sum(len(outcome.wrong) for outcome in outcomes)
    checks = sum(outcome.checks for outcome in outcomes)
    text = INTRODUCTION.format(kernel=kernel, runs=len(outcomes), checks=checks, wrong=wrong, **station)
    by_operation = itertools.groupby(outcomes, key=lambda outcome: outcome.run.operation)
    for operation, group in by_operation:
        group = list(group)
        text += f"\n## {operation}\n\n"
        text += "| our face | client | IP | message sizes | path MTUs | with loss | runs | checks | verdict |\n"
        text += "|---|---|---|---|---|---|---|---|---|\n"
        commands = ""
        for (face, client, family), cell in itertools.groupby(group, key=cell_of):
            cell = list(cell)
            failed = sum(bool(outcome.wrong) for outcome in cell)
            some = sorted({outcome.run.size for outcome in cell if not outcome.run.loss})
            if matrix.OPERATIONS[operation].kind == "verify":
                some = sorted({size for outcome in cell for size in outcome.run.verify_sizes})
            mtus = sorted({outcome.run.mtu for outcome in cell})
            loss = "yes" if any(outcome.run.loss for outcome in cell) else "no"
            verdict = f"**{failed} of {len(cell)} runs failed**" if failed else "good"
            text += f"| {face} | {client} | IPv{family} | {', '.join(map(str, some))} | {', '.join(map(str, mtus))} | {loss}"
            text += f" | {len(cell)} | {sum(outcome.checks for outcome in cell)} | {verdict} |\n"
            shown = next((outcome for outcome in cell if outcome.commands), None)
            if shown:
                commands += f"# {face}, {client} is the client, IPv{family}\n"
                commands += f"linux: {' '.join(shown.commands['linux'])}\n"
                commands += f"ours:  {short(shown.commands['ours'])}\n"
        text += f"\n```text\n{commands}```\n"
        for outcome in group:
            for what in outcome.wrong:
                text += f"\n- `{outcome.run.name}`: {what}\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def cell_of(outcome):
    return outcome.run.face, outcome.run.client, outcome.run.family


def short(command):
    """Our command without what is the same in all of them."""
    words, left_out = [], False
    for word in command:
        if word == "--link":
            words.append("STATION")
        left_out = word in ("--link", "--address", "--mac", "--mtu", "--face", "--capture", "--faults") or left_out
        if left_out:
            left_out = word.startswith("--")
            continue
        words.append(os.path.basename(word) if os.path.isabs(word) else word)
    return " ".join(words)
