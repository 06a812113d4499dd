#!/usr/bin/env python3
"""Judge: scapy recomputes the ICRC of every frame of a capture.

    judge_scapy.py capture.pcapng...     judge captures
    judge_scapy.py --self-test           prove that a wrong frame is found

scapy reads the file, dissects each frame and computes the ICRC from its own view of the packet
(scapy.contrib.roce). Bytes behind the IP packet (Ethernet padding) are cut off first, because
scapy would take them for payload. Exit status 1 where a frame is wrong or there is none.
"""

import argparse
import multiprocessing
import os
import struct
import sys
import tempfile

import scapy
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader

import known_frames

SHOWN_MAX = 20
CHUNK = 256
VLAN_TYPES = (0x8100, 0x88A8)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("captures", nargs="*", metavar="CAPTURE")
    arguments.add_argument("--self-test", action="store_true")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = arguments.parse_args()
    if options.self_test:
        return self_test()
    if not options.captures:
        arguments.error("name a capture, or --self-test")
    total, wrong = 0, []
    for path in options.captures:
        frames = read(path)
        if not frames:
            wrong.append(f"{path}: no frame in it")
        total += len(frames)
        wrong += [f"{path}: {text}" for text in judge(frames, options.jobs)]
    for text in wrong[:SHOWN_MAX]:
        print(text)
    if len(wrong) > SHOWN_MAX:
        print(f"... and {len(wrong) - SHOWN_MAX} more")
    print(f"JUDGE scapy {scapy.__version__}: {total} frames, {total} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


def read(path):
    """All frames of a pcap or pcapng file as bytes."""
    with RawPcapReader(path) as reader:
        return [bytes(frame) for frame, _ in reader]


def judge(frames, jobs=1):
    """What is wrong, one text a finding, in frame order."""
    chunks = [(start, frames[start : start + CHUNK]) for start in range(0, len(frames), CHUNK)]
    if jobs <= 1 or len(chunks) == 1:
        found = map(judge_chunk, chunks)
    else:
        with multiprocessing.Pool(jobs) as pool:
            found = pool.map(judge_chunk, chunks)
    return [text for texts in found for text in texts]


def judge_chunk(chunk):
    start, frames = chunk
    texts = []
    for number, frame in enumerate(frames, start + 1):
        reason = judge_frame(frame)
        if reason:
            texts.append(f"frame {number}: {reason}")
    return texts


def judge_frame(frame):
    """Why a frame is wrong, or None."""
    try:
        packet = Ether(without_padding(frame))
    except (struct.error, ValueError, IndexError) as error:
        return f"cannot be read: {error}"
    bth = packet.getlayer(BTH)
    if bth is None or not (packet.haslayer(IP) or packet.haslayer(IPv6)):
        return f"not a RoCE v2 frame: {packet.summary()}"
    if bth.icrc is None:
        return "ends before the ICRC"
    computed = int.from_bytes(bth.compute_icrc(b""), "big")
    if computed != bth.icrc:
        return f"ICRC 0x{bth.icrc:08x}, scapy computes 0x{computed:08x} ({packet.summary()})"
    return None


def without_padding(frame):
    """The frame up to the end of its IP packet."""
    at = 12
    (kind,) = struct.unpack_from("!H", frame, at)
    while kind in VLAN_TYPES:
        at += 4
        (kind,) = struct.unpack_from("!H", frame, at)
    at += 2
    if kind == 0x0800:
        end = at + struct.unpack_from("!H", frame, at + 2)[0]
    elif kind == 0x86DD:
        end = at + 40 + struct.unpack_from("!H", frame, at + 4)[0]
    else:
        raise ValueError(f"EtherType 0x{kind:04x}")
    if end > len(frame):
        raise ValueError(f"the IP packet ends at byte {end}, the frame at {len(frame)}")
    return frame[:end]


def self_test():
    """Known frames are right; each kind of damage is found, with its frame number."""
    good = known_frames.ALL
    damaged = {
        "a bit of the payload": known_frames.flip(known_frames.SEND_ONLY, 60),
        "a bit of the ICRC": known_frames.flip(known_frames.SEND_ONLY, -1),
        "a bit of the PSN": known_frames.flip(known_frames.UD_IPV6, 73),
        "the IP identification": known_frames.flip(known_frames.ACK, 19),
        "the ICRC's byte order": known_frames.ACK[:-4] + known_frames.ACK[:-5:-1],
        "the end of the frame": known_frames.SEND_ONLY[:-1],
        "the UDP port": known_frames.flip(known_frames.SEND_ONLY, 37),
    }
    # A router may change these on the way: they are outside of the ICRC.
    allowed = {
        "the TTL": known_frames.flip(known_frames.SEND_ONLY, 22),
        "the VLAN": known_frames.flip(known_frames.SEND_ONLY_VLAN, 15),
        "BECN": known_frames.flip(known_frames.SEND_ONLY, 46, 0x40),
    }
    wrong = judge(good)
    wrong += [f"{what}: {text}" for what, frame in allowed.items() for text in judge([frame])]
    with tempfile.TemporaryDirectory() as folder:
        for what, frame in damaged.items():
            path = os.path.join(folder, "damaged.pcap")
            known_frames.write_pcap(path, [*good, frame])
            found = judge(read(path))
            if len(found) != 1 or not found[0].startswith(f"frame {len(good) + 1}: "):
                wrong.append(f"{what} was changed, and the judge said {found}")
    for text in wrong:
        print(text)
    checks = len(good) + len(damaged) + len(allowed)
    print(f"JUDGE scapy-self-test {scapy.__version__}: {checks} frames, {checks} checks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
