//! The register space of the ERNIC face: the table against the golden list, the map, and a walk over
//! every address.
#![allow(clippy::unwrap_used, reason = "a test's own helpers may panic")]

use std::collections::BTreeMap;

use softrnic_device::ernic::registers::{MAP_LEN, REGIONS};
use softrnic_device::ernic::{
    Access, Ernic, ErnicConfig, Field, Legal, Location, Map, Profile, ROWS, Register, Section,
};
use softrnic_device::{Nic, Ram};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Qpn, Reason, Room, Rx};

const GOLDEN: &str = include_str!("../../golden/ernic-registers.csv");

fn nic(profile: Profile) -> Nic<Ernic, Ram> {
    Nic::ernic(ErnicConfig { profile, ..ErnicConfig::default() }, Ram::new(0x1000, 0x1000))
}

fn map(profile: Profile) -> Map {
    Map { profile, num_qp: profile.num_qp_max }
}

fn at(register: Register, index: u16) -> u32 {
    map(Profile::V4_0).offset(Location { register, index })
}

fn refused(nic: &Nic<Ernic, Ram>, reason: Reason) -> u64 {
    nic.engine.refused()[reason as usize]
}

/// One address: section, access, name of the row, bits.
type Entry = (String, String, String, Vec<(u8, u8)>);

fn golden_addresses() -> BTreeMap<u32, Entry> {
    let mut addresses = BTreeMap::new();
    for line in GOLDEN.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let [section, offset, stride, count, access, name, bits] = cells[..] else {
            panic!("{line}")
        };
        let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        let bits = bits.split(' ').map(|pair| {
            let (high, low) = pair.split_once(':').unwrap();
            (high.parse().unwrap(), low.parse().unwrap())
        });
        let entry: Entry = (section.into(), access.into(), name.into(), bits.collect());
        // Arrays of regions and queue pairs count as one element; the banks are words in a row.
        let words = if stride == "0x4" { count.parse().unwrap() } else { 1 };
        for word in 0..words {
            assert!(addresses.insert(number(offset) + 4 * word, entry.clone()).is_none(), "{line}");
        }
    }
    addresses
}

#[test]
fn the_table_is_the_golden_list_address_by_address() {
    let golden = golden_addresses();
    assert_eq!(golden.len(), 288);
    assert_eq!(ROWS.len(), 99);
    let mut table = BTreeMap::new();
    for row in ROWS {
        let mut bits: Vec<_> = row.fields.iter().map(|field| (field.high, field.low)).collect();
        bits.sort_unstable();
        for word in 0..u32::from(row.words) {
            let entry: Entry = (
                row.section.name().into(),
                row.access.name().into(),
                row.name.into(),
                bits.clone(),
            );
            assert!(table.insert(row.offset + 4 * word, entry).is_none(), "{}", row.name);
        }
    }
    for (address, entry) in &golden {
        let mut entry = entry.clone();
        entry.3.sort_unstable();
        assert_eq!(table.get(address), Some(&entry), "{address:#x}");
    }
    assert_eq!(table.len(), golden.len());
}

#[test]
fn names_are_unique_and_found_in_any_case() {
    for row in ROWS {
        assert_eq!(Register::by_name(row.name), Some((row.register, 0)));
        assert_eq!(Register::by_name(&row.name.to_lowercase()), Some((row.register, 0)));
        assert!(!row.text.is_empty() && row.text.ends_with('.'), "{}", row.name);
        let mut names: Vec<_> = row.fields.iter().map(|field| field.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), row.fields.len(), "{}", row.name);
    }
    assert_eq!(Register::by_name("RQINTSTS"), Some((Register::Rqintsts, 0)));
    assert_eq!(Register::by_name("rqintsts64"), Some((Register::Rqintsts, 63)));
    assert_eq!(Register::by_name("CNPSCHDSTS2REG"), Some((Register::Cnpschdsts, 1)));
    assert_eq!(Register::by_name("RQINTSTS65"), None);
    assert_eq!(Register::by_name("QPCONFi"), None);
}

#[test]
fn profiles_differ_in_where_queue_pairs_are_and_in_one_reset_value() {
    let qp = |profile, offset| map(profile).locate(offset);
    let conf = |index| Some(Location { register: Register::Qpconf, index });
    assert_eq!(qp(Profile::V4_0, 0x18_0000), conf(1));
    assert_eq!(qp(Profile::V4_0, 0x18_0100), conf(2));
    assert_eq!(qp(Profile::V4_0, 0x1F_FE00), conf(2047));
    assert_eq!(qp(Profile::V4_0, 0x1F_FF00), None);
    assert_eq!(qp(Profile::V4_0_SILICON, 0x18_0000), None);
    assert_eq!(qp(Profile::V4_0_SILICON, 0x18_0100), conf(1));
    assert_eq!(qp(Profile::V4_0_SILICON, 0x1F_FF00), conf(2047));
    assert_eq!(nic(Profile::V4_0).read32(0x10_0004), 0);
    assert_eq!(nic(Profile::V4_0_SILICON).read32(0x10_0004), 0x000A_0000);
    assert_eq!(Profile::by_name("v4.0-silicon"), Some(&Profile::V4_0_SILICON));
    assert_eq!(Profile::by_name("v9"), None);
    assert_eq!(qp(Profile::V3_1, 0x2_0200), conf(1));
    assert_eq!(qp(Profile::V3_1, 0x3_0000), conf(255));
    assert_eq!(qp(Profile::V3_1, 0x3_0100), None);
}

/// The addresses that RecoNIC's and the first Linux driver's headers name, on the older map.
#[test]
fn v3_1_is_where_its_drivers_look() {
    let map = map(Profile::V3_1);
    for (offset, register, index) in [
        (0x0_0000, Register::Pdpdnum, 0),
        (0x0_FF1C, Register::Accessdesc, 255),
        (0x2_0000, Register::Xrnicconf, 0),
        (0x2_0070, Register::Ipv4xadd, 0),
        (0x2_00BC, Register::Resperrwrptr, 0),
        (0x2_017C, Register::Outrdrsppktcnt, 0),
        (0x2_0184, Register::Intsts, 0),
        (0x2_0190, Register::Rqintsts, 0),
        (0x2_01AC, Register::Rqintsts, 7),
        (0x2_01B0, Register::Cqintsts, 0),
        (0x2_01CC, Register::Cqintsts, 7),
        (0x2_01D0, Register::Cnpschdsts, 0),
        (0x2_01EC, Register::Cnpschdsts, 7),
        (0x2_0288, Register::Statqp, 1),
        (0x2_0338, Register::Sqpi, 2),
        (0x2_03D8, Register::Statrqbufcamsb, 2),
    ] {
        assert_eq!(map.locate(offset), Some(Location { register, index }), "{offset:#x}");
    }
    for offset in [0x1_0000, 0x2_0044, 0x2_0030, 0x2_005C, 0x2_01F0, 0x4_0000, 0x10_0000] {
        assert_eq!(map.locate(offset), None, "{offset:#x}");
    }
    let mut nic = nic(Profile::V3_1);
    nic.write32(0x2_0000, 0x12B7_1E21);
    assert_eq!(nic.read32(0x2_0000), 0x12B7_1E21);
    assert!(nic.engine.port().enabled);
    let attributes = *nic.engine.qp(softrnic_engine::Qpn::new(2)).unwrap().attributes();
    assert_eq!(attributes.path.source_port, Some(0x12B7));
    let count = Location { register: Register::XrnicConfQpEn, index: 0 };
    assert_eq!(nic.read_register(count), 0x1E);
}

#[test]
fn every_address_has_one_register_and_every_register_its_address() {
    for profile in Profile::ALL {
        for num_qp in [8, 64, profile.num_qp_max] {
            let map = Map { profile: *profile, num_qp };
            let mut listed = BTreeMap::new();
            for offset in (0..MAP_LEN).step_by(4) {
                if let Some(location) = map.locate(offset) {
                    assert_eq!(map.offset(location), offset);
                    *listed.entry(location.register).or_insert(0u16) += 1;
                }
            }
            for row in ROWS {
                let count = listed.get(&row.register).copied().unwrap_or(0);
                assert_eq!(count, map.count(row.register), "{}", row.name);
            }
        }
    }
    assert_eq!(map(Profile::V4_0).count(Register::Pd), 2046);
    assert_eq!(map(Profile::V4_0).count(Register::Pdpdnum), REGIONS);
    assert_eq!(map(Profile::V4_0).locate(MAP_LEN), None);
    assert_eq!(map(Profile::V4_0).locate(u32::MAX), None);
}

/// What a field reads after `written` was written to it on a fresh device.
fn expected_field(field: &Field, reset: u32, written: u32) -> u32 {
    let value = field.of(written);
    let taken = match field.legal {
        Legal::Any => true,
        Legal::UpTo(most) => value <= most,
        // The depth is 0 on a fresh device.
        Legal::SendIndex | Legal::ReceiveIndex => value == 0,
    };
    match field.access {
        Access::Rw if taken => value << field.low,
        Access::W1c => reset & field.mask() & !written,
        Access::Rw | Access::Ro | Access::Override => reset & field.mask(),
    }
}

fn expected(profile: &Profile, register: Register, written: u32) -> u32 {
    if profile.moved.iter().any(|field| field.on == register) {
        // Each bit of these two has a field, but for a few that are listed here.
        return written & if register == Register::Xrnicconf { !0xC6 } else { 0xFF0F_0005 };
    }
    let reset = profile.reset(register);
    let fields = register.row().fields.iter();
    fields.fold(0, |value, field| value | expected_field(field, reset, written))
}

#[test]
fn a_walk_over_every_address_reads_back_what_the_row_says() {
    for profile in Profile::ALL {
        let mut nic = nic(*profile);
        let map = nic.device.map();
        let (mut unlisted, mut read_only) = (0, 0);
        for written in [u32::MAX, 0] {
            for offset in (0..MAP_LEN).step_by(4) {
                nic.reset();
                nic.write32(offset, written);
                let read = nic.read32(offset);
                let Some(location) = map.locate(offset) else {
                    assert_eq!(read, 0, "{offset:#x} is not listed");
                    unlisted += 2;
                    continue;
                };
                let register = location.register;
                assert_eq!(
                    read,
                    expected(profile, register, written),
                    "{offset:#x} {} after {written:#x}",
                    register.row().name
                );
                let row = register.row();
                read_only += u64::from(row.mask_of(Access::Rw) | row.mask_of(Access::W1c) == 0);
            }
        }
        assert_eq!(refused(&nic, Reason::RegisterUnlisted), unlisted);
        assert_eq!(refused(&nic, Reason::RegisterReadOnly), read_only);
        // Path MTU 7 for each queue pair; SQPI and RQCI beyond depth 0.
        let qps = u64::from(map.num_qp) - 1;
        assert_eq!(refused(&nic, Reason::RegisterValue), qps);
        assert_eq!(refused(&nic, Reason::RingDepth), 2 * qps);
        assert_eq!(refused(&nic, Reason::QpDisabled), 0);
    }
}

/// The walk above stands on this: after a reset nothing is left of what was written before.
#[test]
fn reset_leaves_nothing_behind() {
    // Few queue pairs: the writes post a full ring of 65535 entries to each and flush it again.
    let few = || {
        let config = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
        Nic::ernic(config, Ram::new(0x1000, 0x1000))
    };
    let mut used = few();
    for written in [u32::MAX, 0x5555_5555, 1] {
        for offset in (0..MAP_LEN).step_by(4).rev() {
            used.write32(offset, written);
        }
    }
    used.reset();
    let mut fresh = few();
    for offset in (0..MAP_LEN).step_by(4) {
        assert_eq!(used.read32(offset), fresh.read32(offset), "{offset:#x}");
    }
    assert_eq!(format!("{:?}", used.engine.port()), format!("{:?}", fresh.engine.port()));
    for (used, fresh) in used.engine.qps().zip(fresh.engine.qps()) {
        assert_eq!(format!("{:?}", used.attributes()), format!("{:?}", fresh.attributes()));
        assert_eq!(used.state(), fresh.state());
    }
    let kept = |nic: &Nic<Ernic, Ram>| {
        let text = format!("{:?}", nic.device);
        text.split(", faults: ").next().unwrap().to_owned()
    };
    assert!(kept(&used) == kept(&fresh), "something is kept");
}

#[test]
fn qp1_lacks_what_the_chapter_says_it_lacks() {
    let mut nic = nic(Profile::V4_0);
    for row in ROWS.iter().filter(|row| row.section == Section::RcQp) {
        nic.write32(row.offset, u32::MAX);
        assert_eq!(nic.read32(row.offset), 0, "{}", row.name);
        assert_eq!(map(Profile::V4_0).locate(row.offset), None, "{}", row.name);
    }
    let rows = ROWS.iter().filter(|row| row.section == Section::RcQp).count() as u64;
    assert_eq!(refused(&nic, Reason::RegisterUnlisted), 2 * rows);
}

#[test]
fn only_aligned_words_are_taken() {
    let mut nic = nic(Profile::V4_0);
    nic.write32(0x10_0010, 0x0102_0304);
    let mut word = [0; 4];
    nic.read_bytes(0x10_0010, &mut word);
    assert_eq!(word, [4, 3, 2, 1]);
    nic.write_bytes(0x10_0010, &[9, 9]);
    nic.write_bytes(0x10_0010, &[9; 8]);
    nic.write_bytes(0x10_0011, &[9; 4]);
    nic.write32(0x10_0012, 0x0909_0909);
    let mut half = [7; 2];
    nic.read_bytes(0x10_0010, &mut half);
    assert_eq!(half, [0, 0]);
    assert_eq!(nic.read32(0x10_0013), 0);
    assert_eq!(nic.read32(0x10_0010), 0x0102_0304);
    assert_eq!(refused(&nic, Reason::RegisterAlignment), 6);
}

#[test]
fn fields_that_live_in_the_engine_are_the_engines() {
    let mut nic = nic(Profile::V4_0);
    let qp = |register| at(register, 5);
    nic.write32(qp(Register::Sqpsn), 0xFFAB_CDEF);
    nic.write32(qp(Register::Lstrqreq), 0x04FF_FFFF);
    nic.write32(qp(Register::Macdesaddlsb), 0x0203_0405);
    nic.write32(qp(Register::Macdesaddmsb), 0x0001);
    nic.write32(qp(Register::Timeoutconf), 0x0001_3F12);
    nic.write32(qp(Register::Qpadvconf), 0xFFFF_2008);
    nic.write32(qp(Register::Ipdesaddr1), 0xC000_0202);
    nic.write32(qp(Register::Ipdesaddr4), 0x2001_0DB8);
    nic.write32(qp(Register::Qpconf), 4 << 8);
    let engine_qp = nic.engine.qp(softrnic_engine::Qpn::new(5)).unwrap();
    let attributes = engine_qp.attributes();
    assert_eq!(engine_qp.send_psn().get(), 0xAB_CDEF);
    assert_eq!(engine_qp.expected_psn().get(), 0);
    assert_eq!(attributes.path.dest_mac, [0, 1, 2, 3, 4, 5]);
    assert_eq!((attributes.ack_timeout, attributes.retry_count), (0x12, 7));
    assert_eq!((attributes.rnr_retry, attributes.min_rnr_timer), (7, 1));
    assert_eq!((attributes.path.hop_limit, attributes.path.traffic_class), (0x20, 0x20));
    assert_eq!((attributes.pkey, attributes.path_mtu.bytes()), (0xFFFF, 4096));
    assert_eq!(attributes.path.dest_ip.to_string(), "192.0.2.2");
    nic.write32(qp(Register::Qpconf), 7 << 8 | 1 << 7);
    let attributes = nic.engine.qp(softrnic_engine::Qpn::new(5)).unwrap().attributes();
    assert_eq!(attributes.path.dest_ip.to_string(), "2001:db8::c000:202");
    assert_eq!(attributes.path_mtu.bytes(), 4096, "code 7 is reserved: the field stays");
    assert_eq!(nic.read32(qp(Register::Qpconf)), 4 << 8 | 1 << 7);
    assert_eq!(nic.read32(qp(Register::Ipdesaddr1)), 0xC000_0202);
    // A TTL of 0 reads 0 and sends 64.
    nic.write32(qp(Register::Qpadvconf), 0);
    assert_eq!(nic.read32(qp(Register::Qpadvconf)), 0);
    let attributes = nic.engine.qp(softrnic_engine::Qpn::new(5)).unwrap().attributes();
    assert_eq!(attributes.path.hop_limit, 64);
}

#[test]
fn read_only_pointers_are_writable_under_override_for_the_queue_pair_named() {
    let mut nic = nic(Profile::V4_0);
    let conf = at(Register::Xrnicadconf, 0);
    let heads = [at(Register::Cqhead, 5), at(Register::Cqhead, 6)];
    let write_both = |nic: &mut Nic<Ernic, Ram>, adconf: u32, value| {
        nic.write32(conf, adconf);
        heads.iter().for_each(|&head| nic.write32(head, value));
        heads.map(|head| nic.read32(head))
    };
    assert_eq!(write_both(&mut nic, 0, 3), [0, 0]);
    assert_eq!(refused(&nic, Reason::RegisterReadOnly), 2);
    assert_eq!(write_both(&mut nic, 1, 3), [3, 3]);
    assert_eq!(write_both(&mut nic, 1 | 6 << 20, 4), [3, 4]);
    assert_eq!(refused(&nic, Reason::RegisterReadOnly), 3);
}

#[test]
fn queue_pair_count_is_cut_to_the_build_parameter() {
    let config = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
    let mut nic = Nic::ernic(config, Ram::new(0, 64));
    nic.write32(at(Register::XrnicConfQpEn, 0), u32::MAX);
    assert_eq!(nic.read32(at(Register::XrnicConfQpEn, 0)), 7);
    nic.write32(at(Register::Destqpconf, 7), 0x1234);
    assert_eq!(nic.read32(at(Register::Destqpconf, 7)), 0x1234);
    assert_eq!(nic.read32(at(Register::Destqpconf, 8)), 0);
    assert_eq!(refused(&nic, Reason::RegisterUnlisted), 1);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    /// A hostile driver: any registers, any values, its own frames handed back to it. Whatever it
    /// does, the device neither panics nor hangs, and resets to what it was.
    #[test]
    fn no_order_of_writes_breaks_the_device(
        script in proptest::collection::vec(
            (0..ROWS.len(), 0u16..4, proptest::prop_oneof![
                proptest::prelude::any::<u32>(),
                0u32..20,
                proptest::prelude::Just(0x0010_003D),
                proptest::prelude::Just(0x0008_0008),
            ]),
            1..300,
        ),
    ) {
        let config = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
        let mut nic = Nic::ernic(config, Ram::new(0, 0x1_0000));
        let map = nic.device.map();
        nic.write32(at(Register::XrnicConfQpEn, 0), 7);
        nic.write32(at(Register::Xrnicconf, 0), 1);
        for (row, index, value) in script {
            let register = ROWS[row].register;
            let index = index % map.count(register).max(1) + u16::from(ROWS[row].offset >= 0x18_0000);
            let offset = map.offset(Location { register, index });
            nic.write32(offset, value);
            nic.read32(offset);
            let mut bytes = [0; FRAME_LEN_MAX];
            for _ in 0..4 {
                let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
                let Some(train) = nic.poll_transmit(Nanos(0), &mut room) else { break };
                nic.handle_frame(Nanos(0), &bytes[..train.len], Rx::default());
            }
            if let Some(deadline) = nic.next_deadline() {
                nic.handle_timeout(deadline);
            }
        }
        nic.reset();
        for row in ROWS {
            let location = Location { register: row.register, index: u16::from(row.offset >= 0x18_0000) * 2 };
            let expected = map.profile.reset(row.register);
            proptest::prop_assert_eq!(nic.read32(map.offset(location)), expected, "{}", row.name);
        }
    }
}

/// Found by the fuzz target `ernic`: a queue pair whose own registers nobody had written stayed active,
/// and refused packets as switched off instead of as above the number of active ones.
#[test]
fn a_reset_forgets_how_many_queue_pairs_were_active() {
    let config = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
    let mut nic = Nic::ernic(config, Ram::new(0x1000, 0x1000));
    let disabled =
        |nic: &Nic<_, Ram>| nic.engine.qp(Qpn::new(3)).map(|qp| qp.attributes().policy.disabled);
    let fresh = disabled(&nic);
    let at = Location { register: Register::XrnicConfQpEn, index: 0 };
    nic.write32(nic.device.map().offset(at), 7);
    assert_ne!(disabled(&nic), fresh);
    nic.reset();
    assert_eq!(disabled(&nic), fresh);
}
