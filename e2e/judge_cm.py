#!/usr/bin/env python3
"""Judge: tshark reads the connection management messages of a capture, and they tell whole stories.

    judge_cm.py [capture.pcapng...] [--decode decode.json]   golden/ernic-cm.pcapng and golden/cm.pcapng by default
    judge_cm.py --self-test                                  prove that a wrong message is found

1. Does tshark dissect every frame, with no malformed packet or error?
2. Does each message go from QP 1 to QP 1 with the right Q_Key, and does it answer one that came before: the
   communication IDs of both ends, the transaction, the right side?
3. Do data go to queue pairs that a REQ or a REP named, the first with the PSN that was named with it, and are
   they answered?
4. With --decode: does `rnic decode --json` read what tshark reads in every field of every message? Only with
   one capture.

Exit status 1 where an answer is no, or there is no message.
"""

import argparse
import json
import os
import subprocess
import sys

from judge_tshark import ALLOWED_ERRORS, CHECKSUMS, DISSECT, SEVERITY_ERROR, number, version

GOLDEN_DIR = os.path.join(os.path.dirname(__file__), "..", "golden")
GOLDEN = [os.path.join(GOLDEN_DIR, name) for name in ("ernic-cm.pcapng", "cm.pcapng")]
FIELDS = {
    "number": "frame.number",
    "protocols": "frame.protocols",
    "severity": "_ws.expert.severity",
    "message": "_ws.expert.message",
    "source": "ip.src",
    "source6": "ipv6.src",
    "destination": "ip.dst",
    "destination6": "ipv6.dst",
    "qpn": "infiniband.bth.destqp",
    "opcode": "infiniband.bth.opcode",
    "psn": "infiniband.bth.psn",
    "qkey": "infiniband.deth.q_key",
    "source_qpn": "infiniband.deth.srcqp",
    "class": "infiniband.mad.mgmtclass",
    "attribute": "infiniband.mad.attributeid",
    "transaction": "infiniband.mad.transactionid",
}
# Name in our tree, and tshark's, of every field that tshark 4.0 knows. It knows nothing of an MRA.
PATH = {
    "Local Port LID": "locallid",
    "Remote Port LID": "remotelid",
    "Flow Label": "flowlabel",
    "Packet Rate": "pktrate",
    "Traffic Class": "tfcclass",
    "Hop Limit": "hoplim",
    "SL": "sl",
    "Subnet Local": "subnetlocal",
    "Local ACK Timeout": "localacktout",
}
MESSAGES = {
    "MAD": {
        "Management class": "infiniband.mad.mgmtclass",
        "Class version": "infiniband.mad.classversion",
        "Method": "infiniband.mad.method",
        "Transaction ID": "infiniband.mad.transactionid",
        "Attribute ID": "infiniband.mad.attributeid",
        "Attribute modifier": "infiniband.mad.attributemodifier",
    },
    "REQ": {
        "Local Communication ID": "infiniband.cm.req",
        "ServiceID": "infiniband.cm.req.serviceid",
        "Local CA GUID": "infiniband.cm.req.localcaguid",
        "Local Q_Key": "infiniband.cm.req.localqkey",
        "Local QPN": "infiniband.cm.req.localqpn",
        "Responder Resources": "infiniband.cm.req.responderres",
        "Local EECN": "infiniband.cm.req.localeecn",
        "Initiator Depth": "infiniband.cm.req.initdepth",
        "Remote EECN": "infiniband.cm.req.remoteeecn",
        "Remote CM Response Timeout": "infiniband.cm.req.remoteresptout",
        "Transport Service Type": "infiniband.cm.req.transpsvctype",
        "End-to-End Flow Control": "infiniband.cm.req.e2eflowctrl",
        "Starting PSN": "infiniband.cm.req.startpsn",
        "Local CM Response Timeout": "infiniband.cm.req.localresptout",
        "Retry Count": "infiniband.cm.req.retrcount",
        "Partition Key": "infiniband.cm.req.pkey",
        "Path Packet Payload MTU": "infiniband.cm.req.pppmtu",
        "RDC Exists": "infiniband.cm.req.rdcexist",
        "RNR Retry Count": "infiniband.cm.req.rnrretrcount",
        "Max CM Retries": "infiniband.cm.req.maxcmretr",
        "SRQ": "infiniband.cm.req.srq",
        "Extended Transport Type": "infiniband.cm.req.ext_transport",
        **{f"Primary {name}": f"infiniband.cm.req.prim_{short}" for name, short in PATH.items()},
        **{f"Alternate {name}": f"infiniband.cm.req.alt_{short}" for name, short in PATH.items()},
    },
    "IP CM": {
        "Major version": "infiniband.cm.req.ip_cm.majv",
        "Minor version": "infiniband.cm.req.ip_cm.minv",
        "IP version": "infiniband.cm.req.ip_cm.ipv",
        "Source port": "infiniband.cm.req.ip_cm.sport",
    },
    "REP": {
        "Local Communication ID": "infiniband.cm.rep",
        "Remote Communication ID": "infiniband.cm.rep.remotecommid",
        "Local Q_Key": "infiniband.cm.rep.localqkey",
        "Local QPN": "infiniband.cm.rep.localqpn",
        "Local EE Context Number": "infiniband.cm.rep.localeecn",
        "Starting PSN": "infiniband.cm.rep.startpsn",
        "Responder Resources": "infiniband.cm.rep.respres",
        "Initiator Depth": "infiniband.cm.rep.initdepth",
        "Target ACK Delay": "infiniband.cm.rep.tgtackdelay",
        "Failover Accepted": "infiniband.cm.rep.failoveracc",
        "End-to-End Flow Control": "infiniband.cm.rep.e2eflowctrl",
        "RNR Retry Count": "infiniband.cm.rep.rnrretrcount",
        "SRQ": "infiniband.cm.rep.srq",
        "Local CA GUID": "infiniband.cm.rep.localcaguid",
    },
    "RTU": {
        "Local Communication ID": "infiniband.cm.rtu.localcommid",
        "Remote Communication ID": "infiniband.cm.rtu.remotecommid",
    },
    "REJ": {
        "Local Communication ID": "infiniband.cm.rej.localcommid",
        "Remote Communication ID": "infiniband.cm.rej.remotecommid",
        "Message REJected": "infiniband.cm.rej.msgrej",
        "Reject Info Length": "infiniband.cm.rej.rejinfolen",
        "Reason": "infiniband.cm.rej.reason",
    },
    "DREQ": {
        "Local Communication ID": "infiniband.cm.dreq.localcommid",
        "Remote Communication ID": "infiniband.cm.dreq.remotecommid",
        "Remote QPN/EECN": "infiniband.cm.req.remoteqpneecn",
    },
    "DREP": {
        "Local Communication ID": "infiniband.cm.drsp.localcommid",
        "Remote Communication ID": "infiniband.cm.drsp.remotecommid",
    },
}
KINDS = {0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP"}
# Addresses that tshark shows as text: our header and field, tshark's for IPv4 and IPv6.
ADDRESSES = {
    ("REQ", "Primary Local Port GID"): "infiniband.cm.req.prim_localgid",
    ("REQ", "Primary Remote Port GID"): "infiniband.cm.req.prim_remotegid",
    ("IP CM", "Source address"): "infiniband.cm.req.ip_cm.sip",
    ("IP CM", "Destination address"): "infiniband.cm.req.ip_cm.dip",
}
CLASS_CM = 7
# Datagrams of programs, and CNPs.
OTHER_OPCODES = (0x64, 0x65, 0x81)
UD_SEND_ONLY = 0x64
# RC opcodes: all but the responses are requests.
RC, RC_RESPONSES = range(0x00, 0x18), range(0x0D, 0x13)
QP1_QKEY = 0x80010000
OTHER = {"arp", "icmp", "icmpv6"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("captures", nargs="*", metavar="capture")
    arguments.add_argument("--decode", help="output of `rnic decode --json` for the same capture")
    arguments.add_argument("--self-test", action="store_true")
    options = arguments.parse_args()
    if options.self_test:
        return self_test()
    captures = options.captures or GOLDEN
    if options.decode and len(captures) != 1:
        arguments.error("--decode goes with one capture")
    count, checks, wrong = 0, 0, []
    for capture in captures:
        frames = dissect(capture)
        facts = judge(frames)
        if options.decode:
            facts += compare(frames, read_decode(options.decode))
        count += len(frames)
        checks += len(facts)
        wrong += [f"{os.path.basename(capture)}: {line}" for line in failures(facts)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"JUDGE tshark-cm {version()}: {count} frames, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


def dissect(path):
    """Each frame: our names of the common fields, tshark's of all others."""
    extra = [name for table in MESSAGES.values() for name in table.values()]
    extra += ["infiniband.cm.req.prim_localgid_ipv4", "infiniband.cm.req.prim_remotegid_ipv4"]
    extra += ["infiniband.cm.req.prim_localgid", "infiniband.cm.req.prim_remotegid"]
    extra += [f"infiniband.cm.req.ip_cm.{end}ip{family}" for end in "sd" for family in "46"]
    columns = list(dict.fromkeys([*FIELDS.values(), *extra]))
    command = ["tshark", "-n", "-r", path, *DISSECT, *CHECKSUMS, "-T", "fields", "-E", "occurrence=f"]
    for field in columns:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tshark cannot read {path}: {done.stderr.strip()}")
    rows = [dict(zip(columns, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]
    return [row | {name: row[field] for name, field in FIELDS.items()} for row in rows]


def failures(facts):
    return [f"{what}: {seen}, expected {wanted}" for what, seen, wanted in facts if seen != wanted]


def judge(frames):
    """What is seen, and what is expected."""
    facts, stories, messages = [], Stories(), 0
    for frame in frames:
        name = f"frame {frame['number']}"
        protocols = frame["protocols"].split(":")
        if OTHER & set(protocols):
            continue
        facts.append((f"{name}: dissected", "infiniband" in protocols, True))
        facts.append((f"{name}: malformed", "_ws.malformed" in protocols, False))
        error = frame["severity"] and int(frame["severity"]) >= SEVERITY_ERROR
        error = error and frame["message"] not in ALLOWED_ERRORS
        facts.append((f"{name}: {frame['message']}", bool(error), False))
        if number(frame["class"]) == CLASS_CM:
            messages += 1
            facts += stories.message(name, frame)
        elif number(frame["opcode"]) in RC:
            facts += stories.data(name, frame)
        else:
            facts.append((f"{name}: opcode", number(frame["opcode"]) in OTHER_OPCODES, True))
    facts.append(("there are messages", messages > 0, True))
    facts += stories.end()
    return facts


def ends(frame):
    return frame["source"] or frame["source6"], frame["destination"] or frame["destination6"]


class Stories:
    """Connections as their messages tell them."""

    def __init__(self):
        # By the active side's communication ID.
        self.connections = {}
        # By sender and receiver: the last request, while no response has come.
        self.unanswered = {}

    def message(self, name, frame):
        kind = KINDS.get(number(frame["attribute"]), "?")
        facts = [
            (f"{name}: opcode", number(frame["opcode"]), UD_SEND_ONLY),
            (f"{name}: queue pairs", (number(frame["source_qpn"]), number(frame["qpn"])), (1, 1)),
            (f"{name}: Q_Key", number(frame["qkey"]), QP1_QKEY),
        ]
        value = {key: number(frame[field]) for key, field in MESSAGES.get(kind, {}).items()}
        source, destination = ends(frame)
        if kind == "REQ":
            gids = [addresses(frame, f"infiniband.cm.req.prim_{end}gid", "")[0] for end in ("local", "remote")]
            facts.append((f"{name}: ends", gids, [source, destination]))
            connection = {
                "transaction": frame["transaction"],
                "active": source,
                "passive": destination,
                "id": None,
                "delayed": False,
                "qps": {source: (value["Local QPN"], value["Starting PSN"])},
                "begun": set(),
                "end": None,
            }
            known = self.connections.setdefault(value["Local Communication ID"], connection)
            return facts + [
                (f"{name}: transport service", value["Transport Service Type"], 0),
                (f"{name}: a REQ of the same ID is the same", known["transaction"], frame["transaction"]),
            ]
        if kind == "MRA":
            # tshark shows no field of it: it belongs to whom its transaction says.
            mine = [c for c in self.connections.values() if c["transaction"] == frame["transaction"]]
            sides = {(c["active"], c["passive"]) for c in mine} | {(c["passive"], c["active"]) for c in mine}
            facts.append((f"{name}: MRA between both", (source, destination) in sides, True))
            for connection in mine:
                connection["delayed"] = True
            return facts + [(f"{name}: MRA answers", len(mine), 1)]
        ids = value.get("Local Communication ID"), value.get("Remote Communication ID")
        ours = [n for n in ids if n in self.connections]
        facts.append((f"{name}: {kind} names a connection", len(ours), 1))
        if len(ours) != 1:
            return facts
        connection = self.connections[ours[0]]
        other_id = ids[0] if ours[0] == ids[1] else ids[1]
        from_active = source == connection["active"]
        sides = (connection["active"], connection["passive"])
        facts.append((f"{name}: {kind} between both", (source, destination), sides[:: 1 if from_active else -1]))
        facts.append((f"{name}: {kind} names its sender's ID first", from_active, ours[0] == ids[0]))
        if kind in ("REP", "REJ") and connection["id"] is None:
            facts.append((f"{name}: {kind} comes from the other side", from_active, False))
        if kind == "REP":
            connection["id"] = other_id
            connection["qps"][source] = (value["Local QPN"], value["Starting PSN"])
        if kind in ("REP", "RTU", "REJ"):
            facts.append((f"{name}: transaction", frame["transaction"], connection["transaction"]))
        if kind == "REJ":
            # Whoever rejects a REQ at once has never had a number for it.
            known = {0, connection["id"]}
            facts.append((f"{name}: REJ names both", other_id in known or connection["delayed"], True))
        else:
            facts.append((f"{name}: {kind} names both", other_id, connection["id"]))
        if kind == "RTU":
            facts.append((f"{name}: RTU comes from the active side", from_active, True))
        if kind == "DREQ":
            peer = connection["passive"] if from_active else connection["active"]
            facts.append((f"{name}: queue pair", value["Remote QPN/EECN"], connection["qps"].get(peer, (None,))[0]))
            connection["end"] = (frame["transaction"], source)
        if kind == "DREP":
            end = connection["end"] or ("", source)
            facts.append((f"{name}: DREP answers", (frame["transaction"], source != end[1]), (end[0], True)))
        return facts

    def data(self, name, frame):
        (source, destination), qpn = ends(frame), number(frame["qpn"])
        named = [
            connection
            for connection in self.connections.values()
            if source in connection["qps"] and connection["qps"].get(destination, (None,))[0] == qpn
        ]
        facts = [(f"{name}: queue pairs that a message named", len(named) >= 1, True)]
        if not named:
            return facts
        connection = named[-1]
        if number(frame["opcode"]) in RC_RESPONSES:
            self.unanswered.pop((destination, source), None)
            return facts
        self.unanswered[source, destination] = name
        if source not in connection["begun"]:
            connection["begun"].add(source)
            facts.append((f"{name}: first PSN", number(frame["psn"]), connection["qps"][destination][1]))
        return facts

    def end(self):
        return [("data that nobody answered", list(self.unanswered.values()), [])]


def read_decode(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compare(frames, decoded):
    """Every field of every message, as tshark and as `rnic decode` read it."""
    facts = [("frames that rnic decode shows", len(decoded), len(frames))]
    for frame, ours in zip(frames, decoded):
        if number(frame["class"]) != CLASS_CM:
            continue
        kind = KINDS.get(number(frame["attribute"]))
        headers = {node["name"]: {c["name"]: c for c in node.get("children", [])} for node in ours["tree"]}
        facts.append((f"frame {frame['number']}: rnic decode shows a {kind}", kind in headers, True))
        for header, fields in headers.items():
            for field, node in fields.items():
                name = f"frame {frame['number']}: {header} {field}"
                if theirs := MESSAGES.get(header, {}).get(field):
                    facts.append((name, number(frame[theirs]), node["value"]))
                elif theirs := ADDRESSES.get((header, field)):
                    facts.append((name, *addresses(frame, theirs, node["value"])))
    return facts


def addresses(frame, theirs, ours):
    """The same address from both, in tshark's writing."""
    v4 = [frame.get(f"{theirs}{suffix}") for suffix in ("_ipv4", "4")]
    v6 = [frame.get(f"{theirs}{suffix}") for suffix in ("", "6")]
    if seen := next(filter(None, v4), None):
        return f"{seen}", ours.removeprefix("::ffff:").removeprefix("::")
    return next(filter(None, v6), None), ours


def self_test():
    """The golden captures pass; each value that is altered in tshark's reading of them is found."""
    wrong, cases = [], 0
    judged = ("protocols", "qpn", "opcode", "qkey", "source_qpn", "attribute", "transaction")
    judged += ("source", "source6", "destination", "destination6")
    for capture in GOLDEN:
        frames = dissect(capture)
        wrong += failures(judge(frames))
        ids = [name for table in MESSAGES.values() for field, name in table.items() if "Communication" in field]
        for row, frame in enumerate(frames):
            if OTHER & set(frame["protocols"].split(":")):
                continue
            for key in (*judged, *ids, "infiniband.cm.req.remoteqpneecn"):
                if not frame[key]:
                    continue
                altered = [dict(other) for other in frames]
                altered[row][key] = "99"
                cases += 1
                if not failures(judge(altered)):
                    wrong.append(f"{key} of frame {frame['number']} was altered, and the judge saw nothing")
        wrong += [] if failures(judge(frames[:0])) else ["no frame at all, and the judge saw nothing"]
        cases += 1
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"JUDGE tshark-cm-self-test {version()}: {cases} captures, {cases} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
