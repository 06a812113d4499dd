"""What went over the wire in a run, judged from our capture of it.

Three readers look at each frame: this file computes its ICRC (with zlib's CRC-32, nothing of ours), `rnic decode` does, and
tshark dissects it. It does not know what the run was for.
"""

import json
import os
import re
import struct
import subprocess
import zlib

ROCE_PORT = 4791
IPV4, IPV6, UDP = 0x0800, 0x86DD, 17
# pcapng: an enhanced packet block, and the byte order mark of the section header.
PACKET_BLOCK = 6
LITTLE_ENDIAN = b"\x4d\x3c\x2b\x1a"
# The fields that a router may change count as ones (IBTA annex A17.3.3).
FRONT = b"\xff" * 8
# perftest's payloads are random, and tshark guesses what they might be: two bytes that are an EtherType become a packet of that
# kind, and a malformed one. Nobody shall guess.
GUESSES = ["eth_over_ib", "fc_infiniband", "iser_infiniband", "lnet_ib", "mellanox_eoib", "nvme_rdma", "rpcrdma_infiniband"]
GUESSES += ["sdp_infiniband", "smb_direct_infiniband", "smcr_infiniband"]
DISSECT = ["-n", "-d", f"udp.port=={ROCE_PORT},infiniband", *[word for guess in GUESSES for word in ("--disable-heuristic", guess)]]
SHOWN_MAX = 5
SELF_TEST_FRAMES = 200
ACKNOWLEDGE = 0x11


class CaptureError(Exception):
    """A capture cannot be read; says which."""


def frames(path):
    """Ethernet frames of a pcapng file, in order."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 12 or data[:4] != b"\x0a\x0d\x0d\x0a":
        raise CaptureError(f"{path} is no pcapng file")
    order = "<" if data[8:12] == LITTLE_ENDIAN else ">"
    found = []
    for block in blocks(data):
        kind, _ = struct.unpack_from(order + "II", block)
        if kind == PACKET_BLOCK:
            (captured,) = struct.unpack_from(order + "I", block, 20)
            found.append(block[28 : 28 + captured])
    return found


def blocks(data):
    """The whole blocks of a pcapng file. The last one is missing where the program was ended in the middle of it."""
    order = "<" if data[8:12] == LITTLE_ENDIAN else ">"
    at, found = 0, []
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(order + "I", data, at + 4)
        if length < 12 or at + length > len(data):
            break
        found.append(data[at : at + length])
        at += length
    return found


def opcode(frame):
    return roce(frame)[1][8]


def roce(frame):
    """A RoCE v2 frame's IP header, and what is behind it up to the ICRC's end; None for any other frame."""
    kind = int.from_bytes(frame[12:14], "big")
    if kind == IPV4 and len(frame) >= 34 and frame[23] == UDP:
        length = int.from_bytes(frame[16:18], "big")
        header = (frame[14] & 0xF) * 4
    elif kind == IPV6 and len(frame) >= 54 and frame[20] == UDP:
        length = 40 + int.from_bytes(frame[18:20], "big")
        header = 40
    else:
        return None
    packet = frame[14 : 14 + length]
    if int.from_bytes(packet[header + 2 : header + 4], "big") != ROCE_PORT or len(packet) < header + 24:
        return None
    return packet[:header], packet[header:]


def icrc_is_right(header, rest):
    """Whether the last four bytes are the ICRC of what is before them."""
    ip = bytearray(header)
    if ip[0] >> 4 == 4:
        ip[1] = ip[8] = 0xFF
        ip[10:12] = b"\xff\xff"
    else:
        ip[0:4] = bytes([ip[0] | 0x0F]) + b"\xff\xff\xff"
        ip[7] = 0xFF
    udp = rest[:6] + b"\xff\xff"
    bth = rest[8:12] + b"\xff" + rest[13:20]
    computed = zlib.crc32(rest[20:-4], zlib.crc32(FRONT + bytes(ip) + udp + bth))
    return computed == int.from_bytes(rest[-4:], "little")


def judge(path, own_mac, rnic, both_send=True):
    """Findings about a capture, checks made, and how many RoCE frames each side sent: (wrong, checks, ours, theirs).
    `both_send`: there must be frames of either side."""
    wrong, ours, theirs, refused = [], 0, 0, []
    for number, frame in enumerate(frames(path), 1):
        parts = roce(frame)
        if parts is None:
            continue
        if frame[6:12] == own_mac:
            ours += 1
        else:
            theirs += 1
        if not icrc_is_right(*parts):
            refused.append(number)
    if refused:
        wrong.append(f"frames {refused[:SHOWN_MAX]} of {len(refused)} have a wrong ICRC")
    if not ours + theirs or (both_send and not (ours and theirs)):
        wrong.append(f"{ours} RoCE frames of ours and {theirs} of Linux are in the capture")
    count = ours + theirs
    wrong += decoded(path, count, rnic) + dissected(path, count)
    return wrong, 3 * count, ours, theirs


def decoded(path, count, rnic):
    """What `rnic decode` says of each RoCE frame's ICRC."""
    seen, bad = 0, []
    with subprocess.Popen([rnic, "decode", "--json", path], stdout=subprocess.PIPE) as decoding:
        for line in decoding.stdout:
            # The object of a frame is long, and these few bytes are all that is asked.
            found = re.search(rb'^\{"number":(\d+),.*?"icrc":(null|\{[^}]*"right":(true|false)\})', line)
            if found and found.group(2) != b"null":
                seen += 1
                if found.group(3) != b"true":
                    bad.append(int(found.group(1)))
    wrong = [f"rnic decode says that the ICRC of frames {bad[:SHOWN_MAX]} of {len(bad)} is wrong"] if bad else []
    if seen != count:
        wrong.append(f"rnic decode sees an ICRC in {seen} frames, and there are {count}")
    return wrong


def dissected(path, count):
    """What tshark says of each RoCE frame."""
    fields = ["frame.number", "infiniband.bth.opcode", "_ws.malformed", "infiniband.invariant.crc"]
    command = ["tshark", *DISSECT, "-r", path, "-Y", f"udp.dstport == {ROCE_PORT}", "-T", "fields", "-E", "separator=|"]
    command += [word for field in fields for word in ("-e", field)]
    done = subprocess.run(command, capture_output=True, check=False)
    rows = [line.split("|") for line in done.stdout.decode(errors="replace").splitlines()]
    if done.returncode != 0 and len(rows) != count:
        return [f"tshark failed: {done.stderr.decode(errors='replace').strip()[-300:]}"]
    wrong = []
    malformed = [row[0] for row in rows if row[2]]
    blind = [row[0] for row in rows if not row[1] or not row[3]]
    if malformed:
        wrong.append(f"tshark calls frames {malformed[:SHOWN_MAX]} of {len(malformed)} malformed")
    if blind:
        wrong.append(f"tshark sees no BTH or no ICRC in frames {blind[:SHOWN_MAX]} of {len(blind)}")
    if len(rows) != count:
        wrong.append(f"tshark sees {len(rows)} RoCE frames, and there are {count}")
    return wrong


def self_test(path, rnic, folder):
    """Breaks the first frames of a good capture in several ways. Returns how many, and which were not noticed."""
    good = os.path.join(folder, "good.pcapng")
    with open(path, "rb") as file:
        data = file.read()
    data = data[: data.index(frames(path)[:SELF_TEST_FRAMES][-1])]
    data = data[: sum(len(block) for block in blocks(data))]
    with open(good, "wb") as file:
        file.write(data)
    some = [frame for frame in frames(good) if roce(frame)]
    own_mac = some[0][6:12]
    unnoticed = [f"a good capture is refused: {text}" for text in judge(good, own_mac, rnic)[0]]
    ack = next(frame for frame in some if opcode(frame) == ACKNOWLEDGE)
    front = 14 + len(roce(ack)[0]) + 8
    cases = [
        ("a changed PSN", front + 11, ack[front + 11] ^ 1, ("have a wrong ICRC", "rnic decode says")),
        ("a changed ICRC", len(ack) - 1, ack[-1] ^ 1, ("have a wrong ICRC", "rnic decode says")),
        ("a READ request without its RETH", front, 0x0C, ("malformed",)),
    ]
    for what, place, value, readers in cases:
        broken = bytearray(data)
        broken[data.index(ack) + place] = value
        with open(os.path.join(folder, "broken.pcapng"), "wb") as file:
            file.write(broken)
        said = " ".join(judge(file.name, own_mac, rnic)[0])
        unnoticed += [f"{what}: '{words}' is not in {said!r}" for words in readers if words not in said]
    return 1 + len(cases), unnoticed


def counters(text):
    """`rdma statistic` as a dictionary of numbers."""
    words = text.split()
    return {name: int(value) for name, value in zip(words[2::2], words[3::2]) if value.isdigit()}


def json_line(text):
    """The last line of a program's output that is a JSON object, or None."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None
