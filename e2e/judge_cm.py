#!/usr/bin/env python3
"""Judge: tshark reads the connection management messages of a capture, and they connect two queue pairs.

    judge_cm.py [capture.pcapng]             golden/ernic-cm.pcapng by default
    judge_cm.py --self-test                  prove that a wrong message is found

1. Does tshark dissect every frame, with no malformed packet or error?
2. Are there REQ, REP and RTU in this order, from QP 1 to QP 1, of one transaction, each naming the
   communication IDs of the other side?
3. Does the data that follows go to the queue pair of the REP, from the PSN of the REQ on?

Exit status 1 where an answer is no.
"""

import argparse
import os
import subprocess
import sys

from judge_tshark import CHECKSUMS, DISSECT, SEVERITY_ERROR, number, version

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden", "ernic-cm.pcapng")
FIELDS = {
    "number": "frame.number",
    "protocols": "frame.protocols",
    "severity": "_ws.expert.severity",
    "message": "_ws.expert.message",
    "source": "ip.src",
    "qpn": "infiniband.bth.destqp",
    "opcode": "infiniband.bth.opcode",
    "psn": "infiniband.bth.psn",
    "qkey": "infiniband.deth.q_key",
    "source_qpn": "infiniband.deth.srcqp",
    "class": "infiniband.mad.mgmtclass",
    "attribute": "infiniband.mad.attributeid",
    "transaction": "infiniband.mad.transactionid",
    "req_id": "infiniband.cm.req",
    "req_qpn": "infiniband.cm.req.localqpn",
    "req_psn": "infiniband.cm.req.startpsn",
    "req_service": "infiniband.cm.req.transpsvctype",
    "rep_id": "infiniband.cm.rep",
    "rep_remote": "infiniband.cm.rep.remotecommid",
    "rep_qpn": "infiniband.cm.rep.localqpn",
    "rep_psn": "infiniband.cm.rep.startpsn",
    "rtu_id": "infiniband.cm.rtu.localcommid",
    "rtu_remote": "infiniband.cm.rtu.remotecommid",
}
REQ, REP, RTU = 0x10, 0x13, 0x14
CLASS_CM = 7
UD_SEND_ONLY, RC_SEND_ONLY, RC_ACK = 0x64, 0x04, 0x11
QP1_QKEY = 0x80010000


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("capture", nargs="?", default=GOLDEN)
    arguments.add_argument("--self-test", action="store_true")
    options = arguments.parse_args()
    if options.self_test:
        return self_test()
    frames = dissect(options.capture)
    checks, wrong = judge(frames)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"JUDGE tshark-cm {version()}: {len(frames)} frames, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


def dissect(path):
    command = ["tshark", "-n", "-r", path, *DISSECT, *CHECKSUMS, "-T", "fields", "-E", "occurrence=f"]
    for field in FIELDS.values():
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tshark cannot read {path}: {done.stderr.strip()}")
    return [dict(zip(FIELDS, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]


def judge(frames):
    """Number of checks, and what is wrong."""
    facts = []
    for frame in frames:
        name = f"frame {frame['number']}"
        facts.append((f"{name}: dissected", "infiniband" in frame["protocols"].split(":"), True))
        facts.append((f"{name}: malformed", "_ws.malformed" in frame["protocols"], False))
        error = frame["severity"] and int(frame["severity"]) >= SEVERITY_ERROR
        facts.append((f"{name}: {frame['message']}", bool(error), False))
    messages = [frame for frame in frames if number(frame["class"]) == CLASS_CM]
    facts.append(("messages", [number(frame["attribute"]) for frame in messages], [REQ, REP, RTU]))
    if len(messages) == 3:
        facts += connection(*messages, [frame for frame in frames if frame not in messages])
    wrong = [f"{what}: {seen}, expected {wanted}" for what, seen, wanted in facts if seen != wanted]
    return len(facts), wrong


def connection(req, rep, rtu, data):
    """What is seen and what is expected of a connection's messages and of the data after them."""
    value = {key: number(req[key] or rep[key] or rtu[key]) for key in FIELDS if key[3:4] == "_"}
    facts = [
        ("transport service of the REQ", value["req_service"], 0),
        ("REP answers", value["rep_remote"], value["req_id"]),
        ("RTU comes from", value["rtu_id"], value["req_id"]),
        ("RTU answers", value["rtu_remote"], value["rep_id"]),
    ]
    for frame in (req, rep, rtu):
        name = f"frame {frame['number']}"
        facts += [
            (f"{name}: opcode", number(frame["opcode"]), UD_SEND_ONLY),
            (f"{name}: queue pairs", (number(frame["source_qpn"]), number(frame["qpn"])), (1, 1)),
            (f"{name}: Q_Key", number(frame["qkey"]), QP1_QKEY),
            (f"{name}: transaction", frame["transaction"], req["transaction"]),
        ]
    facts.append(("sides", (rep["source"] == req["source"], rtu["source"] == req["source"]), (False, True)))
    sent = [frame for frame in data if number(frame["opcode"]) == RC_SEND_ONLY]
    answered = [frame for frame in data if number(frame["opcode"]) == RC_ACK]
    facts += [
        ("data packets and answers", (len(sent), len(answered)), (1, 1)),
        ("data goes to", [number(frame["qpn"]) for frame in sent], [value["rep_qpn"]]),
        ("data begins at PSN", [number(frame["psn"]) for frame in sent], [value["req_psn"]]),
        ("answers go to", [number(frame["qpn"]) for frame in answered], [value["req_qpn"]]),
    ]
    return facts


def self_test():
    """The golden capture passes; each value that is altered in tshark's reading of it is found."""
    frames = dissect(GOLDEN)
    wrong = judge(frames)[1]
    cases = 3
    not_judged = {"number", "protocols", "severity", "message", "source", "rep_psn"}
    for row, frame in enumerate(frames):
        for key in frame.keys() - not_judged:
            if not frame[key] or (key == "psn" and number(frame["opcode"]) != RC_SEND_ONLY):
                continue
            altered = [dict(other) for other in frames]
            altered[row][key] = "99"
            cases += 1
            if not judge(altered)[1]:
                wrong.append(f"{key} of frame {row + 1} was altered, and the judge saw nothing")
    one_sided = [{**frame, "source": "192.0.2.9"} for frame in frames]
    wrong += [] if judge(one_sided)[1] else ["all came from one side, and the judge saw nothing"]
    wrong += [] if judge(frames[:2])[1] else ["the RTU was left out, and the judge saw nothing"]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"JUDGE tshark-cm-self-test {version()}: {cases} captures, {cases} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
