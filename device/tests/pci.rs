//! Configuration space walked as software walks it: sizing, capabilities, every dword with all ones and
//! all zeroes, and writes of any width at random against a model of bytes.
#![allow(clippy::unwrap_used, reason = "a test's own helpers may panic")]

use proptest::prelude::*;
use softrnic_device::pci::{
    Bar, BarError, CONFIG_LEN, ConfigSpace, ConfigWrite, ERNIC_BAR, ERNIC_IDENTITY, MSIX_BAR,
    MSIX_BAR_LEN, MSIX_CAPABILITY, PCIE_CAPABILITY, POWER_CAPABILITY, ROWS,
};

const BARS: [Bar; 2] =
    [Bar { index: MSIX_BAR, len: MSIX_BAR_LEN }, Bar { index: ERNIC_BAR, len: 0x20_0000 }];

fn space() -> ConfigSpace {
    ConfigSpace::new(ERNIC_IDENTITY, &BARS).unwrap()
}

fn read32(space: &ConfigSpace, offset: u16) -> u32 {
    let mut bytes = [0; 4];
    space.read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// The bits of a dword that rows and BARs let software write, and those that 1 clears.
fn masks(offset: u16) -> (u32, u32) {
    let (mut writable, mut clear) = (0, 0);
    for row in ROWS {
        for byte in 0..u16::from(row.len) {
            let at = u16::from(row.offset) + byte;
            if at & !3 == offset {
                let (from, to) = (8 * u32::from(byte), 8 * u32::from(at & 3));
                writable |= (row.writable >> from & 0xFF) << to;
                clear |= (row.clear >> from & 0xFF) << to;
            }
        }
    }
    if let Some(bar) = BARS.iter().find(|bar| offset == 0x10 + 4 * bar.index as u16) {
        writable |= !(bar.len - 1);
    }
    (writable, clear)
}

#[test]
fn rows_are_in_order_inside_the_space_and_do_not_overlap() {
    for pair in ROWS.windows(2) {
        assert!(
            pair[0].offset + pair[0].len <= pair[1].offset,
            "{} {}",
            pair[0].name,
            pair[1].name
        );
    }
    for row in ROWS {
        assert!(
            matches!(row.len, 1 | 2 | 4) && row.offset.is_multiple_of(row.len.min(2)),
            "{}",
            row.name
        );
        let bits = if row.len == 4 { u32::MAX } else { (1 << (8 * row.len)) - 1 };
        assert_eq!((row.reset | row.writable | row.clear) & !bits, 0, "{}", row.name);
        assert_eq!(row.writable & row.clear, 0, "{}", row.name);
    }
}

#[test]
fn every_dword_keeps_what_its_mask_says_and_nothing_else() {
    let fresh = self::space();
    for offset in (0..CONFIG_LEN).step_by(4) {
        let (writable, _) = masks(offset);
        let mut space = space();
        let reset = read32(&space, offset);
        // The bit that resets the function is looked at elsewhere.
        let ones = if offset == u16::from(PCIE_CAPABILITY) + 8 { !(1 << 15) } else { u32::MAX };
        assert_eq!(space.write(offset, &ones.to_le_bytes()), ConfigWrite::Kept);
        assert_eq!(
            read32(&space, offset),
            reset & !writable | ones & writable,
            "ones at {offset:#x}"
        );
        space.write(offset, &[0; 4]);
        assert_eq!(read32(&space, offset), reset & !writable, "zeroes at {offset:#x}");
        for other in (0..CONFIG_LEN).step_by(4).filter(|other| *other != offset) {
            assert_eq!(
                read32(&space, other),
                read32(&fresh, other),
                "{offset:#x} changed {other:#x}"
            );
        }
    }
}

#[test]
fn header_and_sizing_are_what_a_bus_walk_expects() {
    let mut space = space();
    assert_eq!(read32(&space, 0), 0x903F_10EE);
    assert_eq!(read32(&space, 8), 0x0280_0000);
    assert_eq!(read32(&space, 0x2C), 0x0007_10EE);
    let mut sizes = [0; 6];
    for (index, size) in (0u16..).zip(&mut sizes) {
        let at = 0x10 + index * 4;
        assert_eq!(read32(&space, at), 0, "32-bit memory, not prefetchable");
        space.write(at, &[0xFF; 4]);
        *size = (!read32(&space, at)).wrapping_add(1);
        space.write(at, &0xFEA0_1234_u32.to_le_bytes());
    }
    assert_eq!(sizes, [0x1000, 0, 0x20_0000, 0, 0, 0]);
    assert_eq!(read32(&space, 0x18), 0xFEA0_0000, "the part below the size stays 0");
    space.write(0x30, &[0xFF; 4]);
    assert_eq!(read32(&space, 0x30), 0, "no expansion ROM");
}

#[test]
fn capabilities_are_a_list_that_ends() {
    let space = space();
    assert_ne!(read32(&space, 4) >> 16 & 1 << 4, 0, "Status says that there is a list");
    let (mut at, mut seen) = (read32(&space, 0x34) as u16 & 0xFF, Vec::new());
    while at != 0 {
        let word = read32(&space, at);
        seen.push((at as u8, word as u8));
        assert!(seen.len() <= 48, "a loop");
        at = word as u16 >> 8;
    }
    assert_eq!(seen, [(POWER_CAPABILITY, 0x01), (MSIX_CAPABILITY, 0x11), (PCIE_CAPABILITY, 0x10)]);
    assert_eq!(read32(&space, 0x100), 0, "no extended capabilities");
}

#[test]
fn a_function_level_reset_puts_everything_back_but_the_request_reads_zero() {
    let mut space = space();
    space.write(4, &6u16.to_le_bytes());
    assert!(space.bus_master() && space.memory_enabled());
    let control = u16::from(PCIE_CAPABILITY) + 8;
    assert_eq!(space.write(control + 1, &[0x80]), ConfigWrite::FunctionLevelReset);
    assert!(!space.bus_master() && !space.memory_enabled());
    assert_eq!(read32(&space, control) & 0x8000, 0);
    assert_eq!(space.write(control, &[0xFF]), ConfigWrite::Kept, "the other byte");
}

#[test]
fn interrupts_are_enabled_as_command_and_message_control_say() {
    let mut space = space();
    assert!(space.intx_enabled() && !space.msix_enabled());
    space.set_intx_status(true);
    assert_ne!(read32(&space, 4) >> 16 & 1 << 3, 0);
    space.write(5, &[4]);
    assert!(!space.intx_enabled());
    let control = u16::from(MSIX_CAPABILITY) + 3;
    space.write(control, &[0x80]);
    assert!(space.msix_enabled());
    space.write(control, &[0xC0]);
    assert!(!space.msix_enabled(), "the function is masked");
    space.set_intx_status(false);
    assert_eq!(read32(&space, 4) >> 16 & 1 << 3, 0);
}

#[test]
fn bars_that_cannot_be_are_refused() {
    for bar in [(6, 0x1000), (0, 0x1001), (0, 8), (0, 0)] {
        let bar = Bar { index: bar.0, len: bar.1 };
        let error = ConfigSpace::new(ERNIC_IDENTITY, &[bar]).unwrap_err();
        assert_eq!(error, BarError(bar));
        assert!(error.to_string().contains("2^n"));
    }
}

#[test]
fn what_is_outside_of_the_space_reads_all_ones() {
    let mut space = space();
    let mut bytes = [0; 8];
    space.read(CONFIG_LEN - 4, &mut bytes);
    assert_eq!(bytes, [0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    assert_eq!(space.write(u16::MAX, &[0xFF; 16]), ConfigWrite::Kept);
}

proptest! {
    #[test]
    fn writes_of_any_width_change_only_bits_that_may_be_written(
        writes in prop::collection::vec((0..CONFIG_LEN, prop::collection::vec(any::<u8>(), 0..9)), 0..40)
    ) {
        let mut space = space();
        let mut model: Vec<u8> = (0..CONFIG_LEN).map(|at| {
            let mut byte = [0];
            space.read(at, &mut byte);
            byte[0]
        }).collect();
        let fresh = model.clone();
        for (offset, bytes) in writes {
            let asked = space.write(offset, &bytes);
            for (at, byte) in (usize::from(offset)..).zip(&bytes).filter(|(at, _)| *at < CONFIG_LEN.into()) {
                let shift = 8 * (at as u32 & 3);
                let (writable, clear) = masks(at as u16 & !3);
                let (writable, clear) = ((writable >> shift) as u8, (clear >> shift) as u8);
                model[at] = (model[at] & !writable | byte & writable) & !(byte & clear);
            }
            if asked == ConfigWrite::FunctionLevelReset {
                model.clone_from(&fresh);
            }
            let mut all = vec![0; model.len()];
            space.read(0, &mut all);
            prop_assert_eq!(&all, &model);
        }
    }
}
