"""Frames whose ICRC is known to be right, and a pcap writer: what the judges test themselves with.

The frames are vectors of golden/ whose ICRC four independent programs agree on. Nothing here knows
our code.
"""

import struct

# RC SEND_ONLY, 16 bytes, PSN 0x100, IPv4.
SEND_ONLY = bytes.fromhex(
    "02000000000202000000000108004502003c123440004011a477c0000201c0000202c12312b700280000"
    "0400ffff0000001180000100030a11181f262d343b424950575e656c41c977c1"
)
# The same behind an 802.1Q tag, VID 100.
SEND_ONLY_VLAN = bytes.fromhex(
    "0200000000020200000000018100606408004502003c123440004011a477c0000201c0000202c12312b7"
    "002800000400ffff0000001180000100030a11181f262d343b424950575e656c41c977c1"
)
# RC SEND_ONLY without payload, PSN 0x101; two bytes of Ethernet padding follow the ICRC.
SEND_EMPTY = bytes.fromhex(
    "02000000000202000000000108004502002c123440004011a487c0000201c0000202c12312b700180000"
    "0400ffff00000011800001014654fa2d0000"
)
# RC SEND_ONLY, 1 byte and 3 of padding, PSN 0x102.
SEND_PADDED = bytes.fromhex(
    "020000000002020000000001080045020030123440004011a483c0000201c0000202c12312b7001c0000"
    "0430ffff000000118000010203000000cc98ed4e"
)
# RC RDMA READ request, PSN 0x200, 256 bytes of DMA length.
READ_REQUEST = bytes.fromhex(
    "02000000000202000000000108004502003c123440004011a477c0000201c0000202c12312b700280000"
    "0c00ffff00000011800002000000000000002000abcdef0100001001602efd21"
)
# UD SEND_ONLY, 32 bytes, IPv6.
UD_IPV6 = bytes.fromhex(
    "02000000000202000000000186dd668123450040114020010db800000000000000000000000120010db8"
    "000000000000000000000002c12312b7004000006400ffff00000033000000071111111100000044030a"
    "11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dc872c3640"
)
# RC ACK, PSN 0x100, MSN 1, from the other side.
ACK = bytes.fromhex(
    "020000000002020000000001080045020030123440004011a483c0000201c0000202c12312b7001c0000"
    "1100ffff00000022000001001f0000018928bb4d"
)

ALL = [SEND_ONLY, SEND_ONLY_VLAN, SEND_EMPTY, SEND_PADDED, READ_REQUEST, UD_IPV6, ACK]


def flip(frame, offset, mask=0x01):
    """The frame with some bits of one byte turned over. A negative offset counts from the end."""
    changed = bytearray(frame)
    changed[offset] ^= mask
    return bytes(changed)


def write_pcap(path, frames):
    """Writes Ethernet frames to a classic pcap file, one microsecond apart."""
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(frames):
            out.write(struct.pack("<IIII", 0, number, len(frame), len(frame)) + frame)
