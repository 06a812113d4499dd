#!/usr/bin/env python3
"""Where drivers have the fields of the Hermon queue pair context: facts, read from their own headers.

    hermon_layouts.py --linux QP_H --ipxe PRM_H           write golden/hermon-foreign.csv
    hermon_layouts.py --linux QP_H --ipxe PRM_H --check   fail where the file says something else

QP_H is include/linux/mlx4/qp.h of a Linux kernel (Debian: package linux-headers-*-common), PRM_H is
src/drivers/infiniband/MT25408_PRM.h of iPXE. A C compiler (`cc`) says where the fields of Linux's
structures are; the lists of iPXE's bits are counted as its macros do. No code of theirs is kept: the
result is names, words and bits. A test of the device crate compares it with the context table.
"""

import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "golden", "hermon-foreign.csv")

TYPES = """
#include <stddef.h>
#include <stdio.h>
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64; typedef u16 __be16; typedef u32 __be32; typedef u64 __be64;
#define ETH_ALEN 6
"""
# Which member a constant of Linux belongs to, and that member's size in bytes.
CONSTANTS = {
    "MLX4_FL_CV": "pri_path.fl",
    "MLX4_FL_SV": "pri_path.fl",
    "MLX4_FL_ETH_HIDE_CQE_VLAN": "pri_path.fl",
    "MLX4_FL_ETH_SRC_CHECK_MC_LB": "pri_path.fl",
    "MLX4_FL_ETH_SRC_CHECK_UC_LB": "pri_path.fl",
    "MLX4_CTRL_ETH_SRC_CHECK_IF_COUNTER": "pri_path.control",
    "MLX4_VLAN_CTRL_ETH_TX_BLOCK_TAGGED": "pri_path.vlan_control",
    "MLX4_VLAN_CTRL_ETH_TX_BLOCK_PRIO_TAGGED": "pri_path.vlan_control",
    "MLX4_VLAN_CTRL_ETH_TX_BLOCK_UNTAGGED": "pri_path.vlan_control",
    "MLX4_VLAN_CTRL_ETH_RX_BLOCK_TAGGED": "pri_path.vlan_control",
    "MLX4_VLAN_CTRL_ETH_RX_BLOCK_PRIO_TAGGED": "pri_path.vlan_control",
    "MLX4_VLAN_CTRL_ETH_RX_BLOCK_UNTAGGED": "pri_path.vlan_control",
    "MLX4_FEUP_FORCE_ETH_UP": "pri_path.feup",
    "MLX4_FSM_FORCE_ETH_SRC_MAC": "pri_path.feup",
    "MLX4_FVL_FORCE_ETH_VLAN": "pri_path.feup",
    "MLX4_FVL_RX_FORCE_ETH_VLAN": "pri_path.fvl_rx",
    "MLX4_QP_BIT_RRE": "params2",
    "MLX4_QP_BIT_RWE": "params2",
    "MLX4_QP_BIT_RAE": "params2",
    "MLX4_QP_BIT_FPP": "params2",
    "MLX4_QP_BIT_RIC": "params2",
    "MLX4_STRIP_VLAN": "param3",
}


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    arguments = [argument for argument in arguments if argument != "--check"]
    if len(arguments) != 4 or arguments[0] != "--linux" or arguments[2] != "--ipxe":
        sys.exit(__doc__)
    linux, ipxe = (open(arguments[i], encoding="utf-8", errors="replace").read() for i in (1, 3))
    rows = linux_rows(linux) + ipxe_rows(ipxe)
    text = ("# Where drivers have the fields of the Hermon queue pair context: e2e/hermon_layouts.py.\n"
            "# word: big-endian 32-bit word; bits high:low in it. Facts only.\n"
            "source,name,word,high,low\n")
    text += "".join(",".join(str(cell) for cell in row) + "\n" for row in rows)
    wrong = 0
    if check:
        wrong = int(open(OUT, encoding="utf-8").read() != text)
        if wrong:
            print("golden/hermon-foreign.csv says something else than these headers")
    else:
        with open(OUT, "w", encoding="utf-8") as file:
            file.write(text)
    print(f"JUDGE hermon-layouts -: {len(rows)} checks, {wrong} wrong")
    return wrong


def linux_rows(header):
    structs = [cut(header, f"struct mlx4_qp_{name} {{") for name in ("path", "context")]
    enums = "".join(re.findall(r"^enum[^{;]*\{[^}]*\};", header, re.MULTILINE))
    members = names(structs[1])
    members = [m for m in members if not m.endswith("_path")]
    members += [f"{p}_path.{m}" for p in ("pri", "alt") for m in names(structs[0])]
    members = [m for m in members if "reserved" not in m]
    program = TYPES + enums + "".join(structs) + "\ntypedef struct mlx4_qp_context C; int main(void) {\n"
    for member in members:
        program += (f'printf("{member} %zu %zu\\n", offsetof(C, {member}), sizeof ((C *)0)->{member});\n')
    for constant in CONSTANTS:
        program += f'printf("{constant} %llu\\n", (u64)(u32){constant});\n'
    program += 'printf("sizeof %zu %zu\\n", sizeof(C), sizeof(struct mlx4_qp_path)); }\n'
    lines = [line.split() for line in run(program).splitlines()]
    places, rows = {}, []
    for line in lines:
        if line[0] == "sizeof":
            assert line[1:] == ["248", "44"], line
        elif line[0] in CONSTANTS:
            offset, size = places[CONSTANTS[line[0]]]
            bit = int(line[1]).bit_length() - 1
            assert 1 << bit == int(line[1]), line
            low = (4 - offset % 4 - size) * 8 + bit
            rows.append(("linux", line[0], offset // 4, low, low))
        else:
            offset, size = int(line[1]), int(line[2])
            places[line[0]] = offset, size
            rows += [("linux", *row) for row in words(line[0], offset, size)]
    return rows


def words(name, offset, size):
    """A member's bytes, a row for each word that it has a part in."""
    out = []
    while size > 0:
        part = min(size, 4 - offset % 4)
        low = (4 - offset % 4 - part) * 8
        out.append((name, offset // 4, low + part * 8 - 1, low))
        offset, size = offset + part, size - part
    return out


def cut(header, start):
    at = header.index(start)
    return header[at:header.index("\n};", at) + 4]


def names(struct):
    struct = re.sub(r"/\*.*?\*/", "", struct, flags=re.DOTALL)
    return re.findall(r"(\w+)\s*(?:\[\w+\])?;", struct)


def run(program):
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        with open(source, "w", encoding="utf-8") as file:
            file.write(program)
        subprocess.run(["cc", "-o", binary, source], check=True)
        return subprocess.run([binary], check=True, stdout=subprocess.PIPE, text=True).stdout


def ipxe_rows(header):
    path = bits(header, "address_path")
    rows = []
    at = 0
    for name, width in bits(header, "queue_pair_ee_context_entry"):
        if width is None:
            for inner, inner_width in path:
                rows += ipxe_row(f"{name}.{inner}", at, inner_width)
                at += inner_width
        else:
            rows += ipxe_row(name, at, width)
            at += width
    assert at == 1984, at
    return rows


def ipxe_row(name, at, width):
    if re.search(r"reserved\d+$", name):
        return []
    low = at % 32
    assert low + width <= 32, name
    return [("ipxe", name, at // 32, low + width - 1, low)]


def bits(header, name):
    struct = cut(header, f"struct hermonprm_{name}_st {{")
    found = re.findall(r"pseudo_bit_t\s+(\w+)\[(0x[0-9a-fA-F]+)\]|struct hermonprm_address_path_st\s+(\w+);", struct)
    return [(field or inner, int(width, 16) if width else None) for field, width, inner in found]


if __name__ == "__main__":
    sys.exit(main())
