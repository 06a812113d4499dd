#!/usr/bin/env python3
"""Judge: tshark dissects every frame of a capture, and what it reads must make sense as RC traffic.

    judge_tshark.py capture.pcapng [--report report.json] [--decode decode.json] [--ladder ladder.json]
    judge_tshark.py --self-test              prove that a wrong frame is found

Five questions, all but the third asked of every frame:
1. Does tshark dissect it as InfiniBand, with no malformed packet, error or bad checksum?
2. Do the PSNs of each connection count up without a hole, do a message's packets follow each other,
   and does each response answer a request that is in the capture?
3. With --report: does each phase that `rnic run` reports show exactly its messages: operation, opcodes,
   PSNs from the first to the last, addresses, VLAN and bytes?
4. With --decode: does `rnic decode --json` read the same opcode, PSN, queue pair and addresses?
5. With --ladder: does `rnic ladder --json`?

Exit status 1 where an answer is no or there is no frame.
"""

import argparse
import collections
import itertools
import json
import os
import subprocess
import sys
import tempfile

import known_frames

SHOWN_MAX = 20
PSN_COUNT = 1 << 24
PSN_HALF = 1 << 23

# tshark 4.0 takes short SENDs for RPC over RDMA and calls them malformed: that guess is switched off.
DISSECT = ["-d", "udp.port==4791,infiniband", "--disable-heuristic", "rpcrdma_infiniband"]
CHECKSUMS = ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
FIELDS = {
    "number": "frame.number",
    "vlan": "vlan.id",
    "protocols": "frame.protocols",
    "source": "ip.src",
    "destination": "ip.dst",
    "source6": "ipv6.src",
    "destination6": "ipv6.dst",
    "udp_length": "udp.length",
    "opcode": "infiniband.bth.opcode",
    "psn": "infiniband.bth.psn",
    "qpn": "infiniband.bth.destqp",
    "pad": "infiniband.bth.padcnt",
    "dma_length": "infiniband.reth.dmalen",
    "remote_va": "infiniband.reth.va",
    "remote_key": "infiniband.reth.r_key",
    "syndrome": "infiniband.aeth.syndrome",
    "msn": "infiniband.aeth.msn",
    "icrc": "infiniband.invariant.crc",
    "severity": "_ws.expert.severity",
    "message": "_ws.expert.message",
    "ip_checksum": "ip.checksum.status",
}
CHECKSUM_BAD = "0"
SEVERITY_ERROR = 8388608
# RoCE v2 over IPv6 may send UDP checksum 0 (RFC 6936; IBTA annex A17), which tshark calls an error.
ALLOWED_ERRORS = {"Illegal checksum value (0)"}

# RC opcodes: kind, place in the message, bytes of extension headers. IBTA vol 1, table 38.
RC = {
    0x00: ("SEND", "FIRST", 0),
    0x01: ("SEND", "MIDDLE", 0),
    0x02: ("SEND", "LAST", 0),
    0x03: ("SEND", "LAST", 4),
    0x04: ("SEND", "ONLY", 0),
    0x05: ("SEND", "ONLY", 4),
    0x06: ("WRITE", "FIRST", 16),
    0x07: ("WRITE", "MIDDLE", 0),
    0x08: ("WRITE", "LAST", 0),
    0x09: ("WRITE", "LAST", 4),
    0x0A: ("WRITE", "ONLY", 16),
    0x0B: ("WRITE", "ONLY", 20),
    0x0C: ("READ", "ONLY", 16),
    0x0D: ("READ_RESPONSE", "FIRST", 4),
    0x0E: ("READ_RESPONSE", "MIDDLE", 0),
    0x0F: ("READ_RESPONSE", "LAST", 4),
    0x10: ("READ_RESPONSE", "ONLY", 4),
    0x11: ("ACK", "ONLY", 4),
    0x12: ("ATOMIC_ACK", "ONLY", 12),
    0x13: ("ATOMIC", "ONLY", 28),
    0x14: ("ATOMIC", "ONLY", 28),
    0x16: ("SEND", "LAST", 4),
    0x17: ("SEND", "ONLY", 4),
}
READ_RESPONSE_FIRST = 0x0D
RESPONSES = {"READ_RESPONSE", "ACK", "ATOMIC_ACK"}
HEADERS_LEN = 8 + 12 + 4  # UDP, BTH, ICRC


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("capture", nargs="?")
    arguments.add_argument("--report", help="report.json of the `rnic run` that made the capture")
    arguments.add_argument("--decode", help="output of `rnic decode --json` for the same capture")
    arguments.add_argument("--ladder", help="output of `rnic ladder --json` for the same capture")
    arguments.add_argument("--self-test", action="store_true")
    options = arguments.parse_args()
    if options.self_test:
        return self_test()
    if not options.capture:
        arguments.error("name a capture, or --self-test")
    frames = dissect(options.capture)
    report = None
    if options.report:
        with open(options.report, encoding="utf-8") as file:
            report = json.load(file)
    checks, wrong, messages = judge(frames, report)
    for path, reader, what, keys in (
        (options.decode, read_decode, "rnic decode", None),
        (options.ladder, read_ladder, "rnic ladder", LADDER_KEYS),
    ):
        if path:
            with open(path, encoding="utf-8") as file:
                more, differences = compare(frames, reader(file), what, keys)
            checks += more
            wrong += differences
    for text in wrong[:SHOWN_MAX]:
        print(text)
    if len(wrong) > SHOWN_MAX:
        print(f"... and {len(wrong) - SHOWN_MAX} more")
    for (source, destination, kind), count in sorted(messages.items()):
        print(f"{source} -> {destination}: {count} {kind}")
    print(f"JUDGE tshark {version()}: {len(frames)} frames, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


def version():
    first = subprocess.run(["tshark", "--version"], capture_output=True, text=True, check=True).stdout
    return first.split()[2].rstrip(".")


def dissect(path):
    """tshark's reading of each frame: a dictionary by the keys of FIELDS."""
    command = ["tshark", "-n", "-r", path, *DISSECT, *CHECKSUMS, "-T", "fields", "-E", "occurrence=f"]
    command += ["-E", "separator=/t"]
    for field in FIELDS.values():
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tshark cannot read {path}: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    return [dict(zip(FIELDS, line.split("\t"), strict=True)) for line in lines]


def judge(frames, report=None):
    """Number of checks, what is wrong, and messages by direction and kind."""
    wrong = [] if frames else ["no frame in the capture"]
    packets = []
    for frame in frames:
        reason = judge_dissection(frame)
        if reason:
            wrong.append(f"frame {frame['number']}: {reason}")
        else:
            packets.append(parse(frame))
    checks = len(frames) + len(packets)
    messages = collections.Counter()
    phases = report["phases"] if report else [None]
    if report and sum(phase["frames"] for phase in phases) != len(packets):
        wrong.append(f"report.json counts {sum(phase['frames'] for phase in phases)} frames")
    start = 0
    for phase in phases:
        end = start + phase["frames"] if phase else len(packets)
        ladder = Ladder(packets[start:end], phase["path_mtu"] if phase else None)
        for packet in packets[start:end]:
            reason = ladder.step(packet)
            if reason:
                wrong.append(f"frame {packet.number}: {reason}")
        wrong += ladder.holes()
        messages += ladder.messages
        if phase:
            found = judge_phase(phase, report["nodes"], packets[start:end], ladder)
            checks += len(found)
            wrong += [f"phase {phase['name']}: {text}" for text in found if text]
        start = end
    return checks, wrong, messages


def judge_phase(phase, nodes, packets, ladder):
    """One entry for each check of a phase against what was seen: a text, or None where it holds."""
    address = {node["name"]: node["ipv4" if phase["ip"] == 4 else "ipv6"] for node in nodes}
    source, destination = address[phase["from"]], address[phase["to"]]
    kind = phase["operation"].upper()
    sent = [key for key in ladder.sent if key[:2] == (source, destination)]
    requests = ladder.sent[sent[0]] if len(sent) == 1 else {}
    size, mtu, count = phase["size"], phase["path_mtu"], phase["expected_messages"]
    length = phase["file"]["bytes"] if phase.get("file") else size * count
    per_message = max(1, -(-size // mtu))
    last_message = length - size * (count - 1)
    packet_count = per_message * (count - 1) + max(1, -(-last_message // mtu))
    first, total = phase["first_psn"], sum(bytes_ for _, bytes_ in requests.values())
    if kind == "READ":
        replies = {p.psn: p.payload for p in packets if p.kind == "READ_RESPONSE"}
        total = sum(replies.values())
    vlan = "" if phase["vlan"] is None else str(phase["vlan"])
    facts = [
        ("addresses", {frozenset(p.reverse) for p in packets}, {frozenset((source, destination))}),
        ("queue pairs that requests go to", len(sent), 1),
        ("messages", dict(ladder.messages), {(source, destination, kind): count}),
        ("PSNs", set(requests), {(first + i) % PSN_COUNT for i in range(packet_count)}),
        ("first PSN", next(iter(requests), None), first),
        ("bytes", total, length),
        ("VLANs", {p.vlan for p in packets}, {vlan}),
        ("opcodes", opcodes_of(requests, kind), expected_opcodes(kind, per_message, count, last_message, mtu)),
    ]
    return [None if seen == expected else f"{what}: {show(seen)}, expected {show(expected)}"
            for what, seen, expected in facts]


def show(value):
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(value)} in all)"


def opcodes_of(requests, kind):
    """How often each opcode was sent, a packet that was sent again counted once."""
    found = collections.Counter(opcode for opcode, _ in requests.values())
    return {0x0C: None} if kind == "READ" and set(found) == {0x0C} else dict(found)


def expected_opcodes(kind, per_message, count, last_message, mtu):
    if kind == "READ":
        return {0x0C: None}  # one request has many PSNs; the number of messages is checked apart
    base, only = {"SEND": (0x00, 0x04), "WRITE": (0x06, 0x0A)}[kind]
    expected = collections.Counter()
    for packets, messages in ((per_message, count - 1), (max(1, -(-last_message // mtu)), 1)):
        if packets == 1:
            expected[only] += messages
        else:
            expected.update({base: messages, base + 1: (packets - 2) * messages, base + 2: messages})
    return {opcode: number for opcode, number in expected.items() if number}


def judge_dissection(frame):
    """Why tshark's reading of one frame is not acceptable, or None."""
    protocols = frame["protocols"].split(":")
    if "_ws.malformed" in protocols or "_ws.short" in protocols:
        return f"malformed ({frame['protocols']})"
    if "infiniband" not in protocols or not frame["opcode"]:
        return f"not dissected as InfiniBand ({frame['protocols']})"
    if frame["severity"] and int(frame["severity"]) >= SEVERITY_ERROR:
        if frame["message"] not in ALLOWED_ERRORS:
            return frame["message"]
    if frame["ip_checksum"] == CHECKSUM_BAD:
        return "the IPv4 header checksum is wrong"
    if int(frame["opcode"]) not in RC:
        return f"opcode 0x{int(frame['opcode']):02x} is not one that this judge knows"
    if not frame["icrc"]:
        return "tshark finds no ICRC"
    return None


Packet = collections.namedtuple(
    "Packet", "number connection reverse opcode kind place psn payload dma_length syndrome vlan"
)


def parse(frame):
    opcode = int(frame["opcode"])
    kind, place, extension = RC[opcode]
    source = frame["source"] or frame["source6"]
    destination = frame["destination"] or frame["destination6"]
    return Packet(
        number=int(frame["number"]),
        connection=(source, destination, int(frame["qpn"], 0)),
        reverse=(destination, source),
        opcode=opcode,
        kind=kind,
        place=place,
        psn=int(frame["psn"]),
        payload=int(frame["udp_length"]) - HEADERS_LEN - extension - int(frame["pad"]),
        dma_length=int(frame["dma_length"] or 0),
        syndrome=int(frame["syndrome"] or 0),
        vlan=frame["vlan"],
    )


class Ladder:
    """Follows every connection, one packet after the other. A connection is source, destination
    and destination queue pair; its requests and its responses are followed apart."""

    def __init__(self, packets, path_mtu=None):
        self.messages = collections.Counter()
        self.next_psn = {}
        self.open_message = {}
        self.sent = collections.defaultdict(dict)  # connection -> PSN -> (opcode, payload)
        self.answerable = collections.defaultdict(set)  # (source, destination) -> PSNs
        self.missing = collections.defaultdict(dict)  # connection -> PSN -> frame that skipped it
        self.given_mtu = path_mtu
        # Without a report, what the first packets of messages carry tells the path MTU: of a
        # connection, and for READs of the request whose PSN the response begins with.
        self.path_mtu = {}
        for packet in packets:
            if packet.place == "FIRST":
                self.path_mtu.setdefault(packet.connection, packet.payload)
            if packet.opcode == READ_RESPONSE_FIRST:
                self.path_mtu.setdefault((packet.reverse, packet.psn), packet.payload)

    def step(self, packet):
        """Why this packet does not fit what came before, or None."""
        if packet.payload < 0:
            return "the headers are longer than the packet"
        mtu = self.given_mtu or self.path_mtu.get(packet.connection)
        if packet.place in ("FIRST", "MIDDLE") and packet.payload != mtu:
            return f"{packet.kind} {packet.place} carries {packet.payload} bytes, others {mtu}"
        if mtu is not None and packet.payload > mtu:
            return f"{packet.payload} bytes are more than the path MTU {mtu}"
        if packet.kind in RESPONSES:
            return self.response(packet)
        return self.request(packet)

    def request(self, packet):
        key = packet.connection
        span = 1
        if packet.kind == "READ":
            mtu = self.given_mtu or self.path_mtu.get((key[:2], packet.psn), packet.dma_length)
            span = max(1, -(-packet.dma_length // max(1, mtu)))
        expected = self.next_psn.setdefault(key, packet.psn)
        distance = (packet.psn - expected) % PSN_COUNT
        seen = self.sent[key].get(packet.psn)
        if distance >= PSN_HALF and packet.psn not in self.missing[key]:
            if seen is None:
                return f"PSN {packet.psn} goes back to a PSN that was never sent (next is {expected})"
            if seen != (packet.opcode, packet.payload) and packet.kind != "READ":
                return f"PSN {packet.psn} was sent before as another packet"
            return None
        for skipped in range(distance if distance < PSN_HALF else 0):
            self.missing[key][(expected + skipped) % PSN_COUNT] = packet.number
        self.missing[key].pop(packet.psn, None)
        for offset in range(span):
            psn = (packet.psn + offset) % PSN_COUNT
            self.sent[key][psn] = (packet.opcode, packet.payload)
            self.answerable[key[:2]].add(psn)
        if distance >= PSN_HALF:  # it fills a hole
            return self.count(packet)
        self.next_psn[key] = (packet.psn + span) % PSN_COUNT
        if distance > 0:
            self.open_message.pop(key, None)
            return self.count(packet)
        return self.order(packet) or self.count(packet)

    def order(self, packet):
        open_kind = self.open_message.get(packet.connection)
        if packet.place in ("FIRST", "MIDDLE"):
            self.open_message[packet.connection] = packet.kind
        else:
            self.open_message.pop(packet.connection, None)
        if packet.place in ("MIDDLE", "LAST") and open_kind != packet.kind:
            return f"{packet.kind} {packet.place} inside of {open_kind or 'no message'}"
        if packet.place in ("FIRST", "ONLY") and open_kind:
            return f"{packet.kind} {packet.place} before the {open_kind} before it has ended"
        return None

    def count(self, packet):
        if packet.place in ("LAST", "ONLY"):
            self.messages[(*packet.connection[:2], packet.kind)] += 1

    def response(self, packet):
        if packet.psn not in self.answerable[packet.reverse]:
            # A NAK or RNR NAK may name the PSN that got lost before the capture saw it.
            if packet.kind != "ACK" or packet.syndrome < 0x20:
                return f"{packet.kind} of PSN {packet.psn}, which nobody asked for"
        return None

    def holes(self):
        return [
            f"frame {number}: PSN {psn} of {key[0]} -> {key[1]} QP {key[2]} was skipped and never sent"
            for key, psns in self.missing.items()
            for psn, number in psns.items()
        ]


def read_decode(file):
    """The values of each frame of `rnic decode --json`, which writes one object a line."""
    return (decoded_values(json.loads(line)) for line in file)


def decoded_values(frame):
    """What is compared, from a frame as `rnic decode --json` shows it."""
    headers = {}
    for node in frame["tree"]:
        headers[node["name"]] = {child["name"]: child.get("value") for child in node.get("children", [])}
    network = headers.get("IPv4") or headers.get("IPv6") or {}
    bth, reth, aeth = (headers.get(name, {}) for name in ("BTH", "RETH", "AETH"))
    return {
        "source": network.get("Source"),
        "destination": network.get("Destination"),
        "opcode": bth.get("OpCode"),
        "psn": bth.get("PSN"),
        "qpn": bth.get("DestQP"),
        "icrc": (frame["icrc"] or {}).get("carried"),
        "dma_length": reth.get("DMA length"),
        "remote_va": reth.get("VA"),
        "remote_key": reth.get("R_Key"),
        "syndrome": aeth.get("Syndrome"),
        "msn": aeth.get("MSN"),
    }


LADDER_KEYS = {"source": "from", "destination": "to", "opcode": "opcode", "psn": "psn", "qpn": "qpn"}


def read_ladder(file):
    """The values of each packet of `rnic ladder --json`, which writes one object a line."""
    return ({key: packet[name] for key, name in LADDER_KEYS.items()} for packet in map(json.loads, file))


def tshark_values(frame):
    """What is compared, from tshark's fields. A key that the packet does not have is left out."""
    values = {
        "source": frame["source"] or frame["source6"],
        "destination": frame["destination"] or frame["destination6"],
        "opcode": number(frame["opcode"]),
        "psn": number(frame["psn"]),
        "qpn": number(frame["qpn"]),
        "icrc": number(frame["icrc"]),
    }
    for key in ("dma_length", "remote_va", "remote_key", "syndrome", "msn"):
        if frame[key]:
            values[key] = number(frame[key])
    return values


def number(text):
    return int(text, 0) if text else None


def compare(frames, decoded, what="rnic decode", keys=None):
    """Number of values compared, all or those with these keys, and where tshark and we differ."""
    wrong, checks = [], 0
    for theirs, values in itertools.zip_longest(frames, decoded):
        if theirs is None or values is None:
            wrong.append(f"{what} does not read the same {len(frames)} frames")
            break
        for key, value in tshark_values(theirs).items():
            if keys and key not in keys:
                continue
            checks += 1
            if values.get(key) != value:
                wrong.append(f"frame {theirs['number']}: {key}: tshark {value}, {what} {values.get(key)}")
    return checks, wrong


def self_test():
    """Known frames pass; each kind of damage is found, at the right frame."""
    send, empty, padded = known_frames.SEND_ONLY, known_frames.SEND_EMPTY, known_frames.SEND_PADDED
    read, ack = known_frames.READ_REQUEST, with_opcode_psn(known_frames.ACK, 0x11, 0x100)
    ack = swap_addresses(ack)
    good = [send, empty, padded, ack]
    cases = {
        "a READ request that ends in its RETH": ([cut(read, 12)], 5),
        "another UDP port": ([known_frames.flip(padded, 37)], 5),
        "an IPv4 header checksum": ([known_frames.flip(padded, 24)], 5),
        "an opcode that does not exist": ([with_opcode_psn(padded, 0x1F, 0x103)], 5),
        "a PSN from before the start": ([with_opcode_psn(padded, 0x04, 0xFF)], 5),
        "a hole in the PSNs": ([with_opcode_psn(padded, 0x04, 0x105)], 5),
        "a MIDDLE without FIRST": ([with_opcode_psn(send, 0x01, 0x103)], 5),
        "an ACK of nothing": ([with_opcode_psn(ack, 0x11, 0x300)], 5),
        "another packet under an old PSN": ([with_opcode_psn(padded, 0x04, 0x100)], 5),
    }
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "frames.pcap")

        def findings(frames):
            known_frames.write_pcap(path, frames)
            return judge(dissect(path))[1]

        wrong += findings(good)
        wrong += findings([*good, send])  # the same packet again is a retransmission
        wrong += findings([send, padded, empty, padded])  # go-back-N over a packet that got lost
        wrong += findings([known_frames.SEND_ONLY_VLAN])
        for what, (frames, number) in cases.items():
            found = findings([*good, *frames])
            if not found or not all(text.startswith(f"frame {number}: ") for text in found):
                wrong.append(f"{what} was changed, and the judge said {found}")
        reports = altered_reports()
        run = [send, with_opcode_psn(send, 0x04, 0x101), with_opcode_psn(send, 0x04, 0x102), ack]
        known_frames.write_pcap(path, run)
        frames = dissect(path)
        wrong += judge(frames, reports.pop("nothing"))[1]
        wrong += [f"{what} was altered in the report, and the judge saw nothing"
                  for what, report in reports.items() if not judge(frames, report)[1]]
        known_frames.write_pcap(path, good)
        frames = dissect(path)
        agreed = [tshark_values(frame) for frame in frames]
        wrong += compare(frames, agreed)[1]
        for key in agreed[0]:
            altered = [dict(values) for values in agreed]
            altered[1][key] = "altered"
            found = compare(frames, altered, keys=LADDER_KEYS if key in LADDER_KEYS else None)[1]
            if len(found) != 1 or not found[0].startswith("frame 2: "):
                wrong.append(f"{key} was altered, and the comparison said {found}")
    for text in wrong:
        print(text)
    checks = 4 + len(cases) + 1 + len(reports) + 1 + len(agreed[0])
    print(f"JUDGE tshark-self-test {version()}: {checks} captures, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


def altered_reports():
    """By what was altered: a report on three SENDs of 16 bytes; under "nothing" it is right."""
    nodes = [
        {"name": "a", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1"},
        {"name": "b", "ipv4": "192.0.2.2", "ipv6": "2001:db8::2"},
    ]
    phase = {"name": "SEND", "from": "a", "to": "b", "operation": "send", "path_mtu": 1024, "ip": 4,
             "vlan": None, "size": 16, "expected_messages": 3, "first_psn": 0x100, "frames": 4}
    altered = {"from": "b", "to": "a", "operation": "write", "path_mtu": 8, "ip": 6, "vlan": 100,
               "size": 15, "expected_messages": 4, "first_psn": 0x101, "frames": 3}
    reports = {key: {"phases": [{**phase, key: value}], "nodes": nodes} for key, value in altered.items()}
    return {"nothing": {"phases": [phase], "nodes": nodes}, **reports}


def with_opcode_psn(frame, opcode, psn):
    """An untagged IPv4 frame with another opcode and PSN. The ICRC is not this judge's matter."""
    return frame[:42] + bytes([opcode]) + frame[43:51] + psn.to_bytes(3, "big") + frame[54:]


def swap_addresses(frame):
    """An untagged IPv4 frame with source and destination address exchanged; the checksum stays."""
    return frame[:26] + frame[30:34] + frame[26:30] + frame[34:]


def cut(frame, count):
    """An untagged IPv4 frame without its last bytes, all lengths and the checksum put right."""
    header = bytearray(frame[14:34])
    header[2:4] = (len(frame) - 14 - count).to_bytes(2, "big")
    header[10:12] = bytes(2)
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, 20, 2))
    total = (total & 0xFFFF) + (total >> 16)
    header[10:12] = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    udp = frame[34:38] + (len(frame) - 34 - count).to_bytes(2, "big") + frame[40:]
    return frame[:14] + bytes(header) + udp[: len(udp) - count]


if __name__ == "__main__":
    sys.exit(main())
