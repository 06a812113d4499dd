//! The register map: every register of the chapter with its offset, and where a profile puts the
//! queue pair slots.
//!
//! Offsets are the only thing this crate shares with a device, and it shares them by value: a test
//! elsewhere compares [`REGISTERS`] with the model's own table. Knows no behaviour.

use core::fmt;

use crate::qp::QpNumber;

/// A register's name and offset as the chapter (PG332 v4.0, "Register Space") gives them; for an
/// array, those of its first element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register {
    /// The chapter's name.
    pub name: &'static str,
    /// Byte offset from the start of the map.
    pub offset: u32,
}

impl Register {
    /// The element of an array that lies `bytes` further on.
    pub(crate) const fn plus(self, bytes: u32) -> Self {
        Self { name: self.name, offset: self.offset + bytes }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (offset {:#08x})", self.name, self.offset)
    }
}

/// Where a device keeps what the documents disagree about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Map {
    /// Offset of queue pair 1's register slot.
    pub qp1_slot: u32,
    /// Rows of the memory region table.
    pub region_rows: u16,
}

impl Map {
    /// The chapter as printed: queue pair i at `0x18_0000 + (i - 1) * 0x100`.
    pub const V4_0: Self = Self { qp1_slot: QP_SLOTS, region_rows: 2048 };

    /// As version 4.0 was seen on hardware: queue pair i at `0x18_0000 + i * 0x100`.
    pub const V4_0_SILICON: Self = Self { qp1_slot: QP_SLOTS + STRIDE, region_rows: 2048 };

    /// A per-QP register of one queue pair.
    #[must_use]
    pub const fn of_qp(self, qp: QpNumber, register: Register) -> Register {
        let slot = self.qp1_slot + (qp.get() as u32).saturating_sub(1) * STRIDE;
        Register { name: register.name, offset: register.offset - QP_SLOTS + slot }
    }
}

/// A register of one row of the memory region table.
pub(crate) const fn of_region(index: u16, register: Register) -> Register {
    register.plus(index as u32 * STRIDE)
}

/// Bytes between two rows of the region table, and between two queue pair slots.
const STRIDE: u32 = 0x100;
/// Where the per-QP registers begin in the chapter's numbering.
const QP_SLOTS: u32 = 0x18_0000;

macro_rules! registers {
    ($($constant:ident $name:literal $offset:literal)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: Register = Register { name: $name, offset: $offset };
        )*

        /// Every register of the map as (name, offset), in the order of offsets; an array by its
        /// first element.
        pub const REGISTERS: &[(&str, u32)] = &[$(($name, $offset)),*];
    };
}

registers! {
    PDPDNUM "PDPDNUM" 0x00_0000
    VIRTADDRLSB "VIRTADDRLSB" 0x00_0004
    VIRTADDRMSB "VIRTADDRMSB" 0x00_0008
    BUFBASEADDRLSB "BUFBASEADDRLSB" 0x00_000C
    BUFBASEADDRMSB "BUFBASEADDRMSB" 0x00_0010
    BUFRKEY "BUFRKEY" 0x00_0014
    WRRDBUFLEN "WRRDBUFLEN" 0x00_0018
    ACCESSDESC "ACCESSDESC" 0x00_001C
    XRNICCONF "XRNICCONF" 0x10_0000
    XRNICADCONF "XRNICADCONF" 0x10_0004
    XRNIC_BUF_THRESHOLD_ROCE "XRNIC_BUF_THRESHOLD_ROCE" 0x10_0008
    XRNIC_PAUSE_CONF "XRNIC_PAUSE_CONF" 0x10_000C
    MACXADDLSB "MACXADDLSB" 0x10_0010
    MACXADDMSB "MACXADDMSB" 0x10_0014
    XRNIC_BUF_THRESHOLD_NON_ROCE "XRNIC_BUF_THRESHOLD_NON_ROCE" 0x10_0018
    IPV6XADD1 "IPv6XADD1" 0x10_0020
    IPV6XADD2 "IPv6XADD2" 0x10_0024
    IPV6XADD3 "IPv6XADD3" 0x10_0028
    IPV6XADD4 "IPv6XADD4" 0x10_002C
    XRNIC_CONF_QP_EN "XRNIC_CONF_QP_EN" 0x10_0044
    ERRBUFBA "ERRBUFBA" 0x10_0060
    ERRBUFBAMSB "ERRBUFBAMSB" 0x10_0064
    ERRBUFSZ "ERRBUFSZ" 0x10_0068
    ERRBUFWPTR "ERRBUFWPTR" 0x10_006C
    IPV4XADD "IPv4XADD" 0x10_0070
    OPKTERRQBA "OPKTERRQBA" 0x10_0078
    OPKTERRQBAMSB "OPKTERRQBAMSB" 0x10_007C
    OUTERRSTSQSZ "OUTERRSTSQSZ" 0x10_0080
    OPTERRSTSQQPTRDB "OPTERRSTSQQPTRDB" 0x10_0084
    IPKTERRQBA "IPKTERRQBA" 0x10_0088
    IPKTERRQBAMSB "IPKTERRQBAMSB" 0x10_008C
    IPKTERRQSZ "IPKTERRQSZ" 0x10_0090
    IPKTERRQWPTR "IPKTERRQWPTR" 0x10_0094
    DATBUFBA "DATBUFBA" 0x10_00A0
    DATBUFBAMSB "DATBUFBAMSB" 0x10_00A4
    DATBUFSZ "DATBUFSZ" 0x10_00A8
    CON_IO_CONF "CON_IO_CONF" 0x10_00AC
    RESPERRPKTBA "RESPERRPKTBA" 0x10_00B0
    RESPERRPKTBAMSB "RESPERRPKTBAMSB" 0x10_00B4
    RESPERRSZ "RESPERRSZ" 0x10_00B8
    RESPERRWRPTR "RESPERRWRPTR" 0x10_00BC
    INSRRPKTCNT "INSRRPKTCNT" 0x10_0100
    INAMPKTCNT "INAMPKTCNT" 0x10_0104
    OUTIOPKTCNT "OUTIOPKTCNT" 0x10_0108
    OUTAMPKTCNT "OUTAMPKTCNT" 0x10_010C
    LSTINPKT "LSTINPKT" 0x10_0110
    LSTOUTPKT "LSTOUTPKT" 0x10_0114
    ININVDUPCNT "ININVDUPCNT" 0x10_0118
    WQEPROCSTS "WQEPROCSTS" 0x10_0124
    QPMSTS "QPMSTS" 0x10_012C
    INALLDRPPKTCNT "INALLDRPPKTCNT" 0x10_0130
    INNAKPKTCNT "INNAKPKTCNT" 0x10_0134
    OUTNAKPKTCNT "OUTNAKPKTCNT" 0x10_0138
    RESPHNDSTS "RESPHNDSTS" 0x10_013C
    RETRYCNTSTS "RETRYCNTSTS" 0x10_0140
    INCNPPKTCNT "INCNPPKTCNT" 0x10_0174
    OUTCNPPKTCNT "OUTCNPPKTCNT" 0x10_0178
    OUTRDRSPPKTCNT "OUTRDRSPPKTCNT" 0x10_017C
    INTEN "INTEN" 0x10_0180
    INTSTS "INTSTS" 0x10_0184
    RQINTSTS "RQINTSTSn" 0x10_0190
    CQINTSTS "CQINTSTSn" 0x10_0290
    CNPSCHDSTS "CNPSCHDSTSnREG" 0x10_0390
    QPCONF "QPCONF" 0x18_0000
    QPADVCONF "QPADVCONF" 0x18_0004
    RQBA "RQBA" 0x18_0008
    SQBA "SQBA" 0x18_0010
    CQBA "CQBA" 0x18_0018
    RQWPTRDBADD "RQWPTRDBADD" 0x18_0020
    RQWPTRDBADDMSB "RQWPTRDBADDMSB" 0x18_0024
    CQDBADD "CQDBADD" 0x18_0028
    CQDBADDMSB "CQDBADDMSB" 0x18_002C
    CQHEAD "CQHEAD" 0x18_0030
    RQCI "RQCI" 0x18_0034
    SQPI "SQPI" 0x18_0038
    QDEPTH "QDEPTH" 0x18_003C
    SQPSN "SQPSN" 0x18_0040
    LSTRQREQ "LSTRQREQ" 0x18_0044
    DESTQPCONF "DESTQPCONF" 0x18_0048
    TIMEOUTCONF "TIMEOUTCONF" 0x18_004C
    MACDESADDLSB "MACDESADDLSB" 0x18_0050
    MACDESADDMSB "MACDESADDMSB" 0x18_0054
    IPDESADDR1 "IPDESADDR1" 0x18_0060
    IPDESADDR2 "IPDESADDR2" 0x18_0064
    IPDESADDR3 "IPDESADDR3" 0x18_0068
    IPDESADDR4 "IPDESADDR4" 0x18_006C
    STATSSN "STATSSN" 0x18_0080
    STATMSN "STATMSN" 0x18_0084
    STATQP "STATQP" 0x18_0088
    STATCURSQPTR "STATCURSQPTR" 0x18_008C
    STATRESPSN "STATRESPSN" 0x18_0090
    STATRQBUFCA "STATRQBUFCA" 0x18_0094
    STATWQE "STATWQE" 0x18_0098
    STATRQPIDB "STATRQPIDB" 0x18_009C
    QP_PD "PD" 0x18_00B0
    RQBAMSB "RQBAMSB" 0x18_00C0
    SQBAMSB "SQBAMSB" 0x18_00C8
    CQBAMSB "CQBAMSB" 0x18_00D0
    STATRQBUFCAMSB "STATRQBUFCAMSB" 0x18_00D8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_in_order_and_aligned() {
        assert_eq!(REGISTERS.len(), 99);
        assert!(REGISTERS.is_sorted_by(|a, b| a.1 < b.1));
        assert!(REGISTERS.iter().all(|(_, offset)| offset % 4 == 0 && *offset < 0x20_0000));
    }

    #[test]
    fn the_two_maps_differ_by_one_slot() {
        let qp2 = QpNumber::new(2);
        assert_eq!(Map::V4_0.of_qp(qp2, SQPI).offset, 0x18_0138);
        assert_eq!(Map::V4_0_SILICON.of_qp(qp2, SQPI).offset, 0x18_0238);
        assert_eq!(of_region(3, BUFRKEY).offset, 0x314);
    }
}
