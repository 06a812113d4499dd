//! The context table against the golden list, against the seed's own list, and round trips of bits.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use softrnic_device::mlx4::codes::{Migration, QpState, ServiceType};
use softrnic_device::mlx4::context::{
    At, CONTEXT_LEN, Field, PathField, QpContext, ROW_COUNT, ROWS, WORDS, find,
};
use softrnic_device::mlx4::field::{Origin, Owner, Row, Side};
use softrnic_device::mlx4::field_set::FieldSet;

const GOLDEN: &str = include_str!("../../../golden/hermon-qpc.csv");
const SEED: &str = include_str!("../../../golden/hermon-seed-fields.csv");

/// Cells of a CSV line; quotes only around whole cells, as these files have them.
pub(crate) fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().unwrap().push(c),
        }
    }
    cells
}

pub(crate) fn table(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let head = cells(lines.next().unwrap());
    lines.map(|line| head.iter().cloned().zip(cells(line)).collect()).collect()
}

/// The golden list marks names that only one source has; the table says so in a column.
fn our_name(golden: &str) -> String {
    golden.replace("(linux) ", "").replace("(prm)", "_prm")
}

#[test]
fn the_table_is_the_golden_list_bit_by_bit() {
    let golden = table(GOLDEN);
    assert_eq!((golden.len(), ROWS.len(), ROW_COUNT), (237, 237, 237));
    let mut bits = BTreeSet::new();
    for (expected, row) in golden.iter().zip(ROWS) {
        let number = |key: &str| expected[key].parse::<u32>().unwrap();
        let name = our_name(&expected["name"]);
        assert_eq!(row.full_name().to_string(), name);
        let place = (u32::from(row.word), u32::from(row.high), u32::from(row.low));
        assert_eq!(place, (number("dword"), number("msb"), number("lsb")), "{name}");
        assert_eq!(row.linux_name(), expected["mlx4_name"], "{name}");
        assert_eq!(u32::from(row.width()), number("width"), "{name}");
        assert_eq!(format!("0x{:02x}", row.byte()), expected["byte_offset"], "{name}");
        // The golden list counts bits as the seed does: from the lowest of each word.
        assert_eq!(u32::from(row.word) * 32 + u32::from(row.low), number("bit_offset"), "{name}");
        let origin = match row.origin {
            Origin::Both => "both",
            Origin::Linux => "linux",
            Origin::Prm => "ipxe",
            Origin::Reserved => "reserved",
        };
        assert_eq!(origin, expected["origin"], "{name}");
        assert_eq!(row.is_reserved(), row.origin == Origin::Reserved, "{name}");
        assert!((row.low..=row.high).all(|bit| bits.insert((row.word, bit))), "{name}");
    }
    assert_eq!(bits.len(), 1984);
    assert_eq!(bits.last(), Some(&(61, 31)));
}

#[test]
fn the_table_is_the_seeds_list_of_fields_and_widths() {
    let seed = table(SEED);
    let mut at = 0_usize;
    // The rows in the seed's order: from the lowest bit of each word.
    let mut rows: Vec<&Row> = ROWS.iter().collect();
    rows.sort_by_key(|row| (row.word, row.low));
    let mut rows = rows.into_iter().peekable();
    for field in &seed {
        let (name, width) = (field["name"].as_str(), field["width"].parse::<usize>().unwrap());
        let end = at + width;
        let mut parts = Vec::new();
        while let Some(row) = rows.next_if(|row| position(row) < end) {
            assert!(position(row) + usize::from(row.width()) <= end, "{name} ends inside a row");
            parts.push(row);
        }
        assert_eq!(
            parts.iter().map(|row| usize::from(row.width())).sum::<usize>(),
            width,
            "{name}"
        );
        if width == 352 {
            assert!(parts.iter().all(|row| row.side.map(Side::name) == Some(name)), "{name}");
        } else {
            assert!(parts.iter().all(|row| row.seed == name), "{name}");
            if !name.starts_with("reserved") {
                assert_eq!(parts.len(), 1, "{name} is one row");
                assert_eq!(parts[0].name, name);
            }
        }
        at = end;
    }
    assert_eq!((at, rows.next()), (CONTEXT_LEN * 8, None));
}

/// Bit of the context as the seed counts them.
fn position(row: &Row) -> usize {
    usize::from(row.word) * 32 + usize::from(row.low)
}

#[test]
fn names_are_unique_and_found() {
    let names: BTreeSet<_> = ROWS.iter().map(|row| row.full_name().to_string()).collect();
    assert_eq!(names.len(), ROW_COUNT);
    for row in ROWS {
        assert_eq!(find(&row.full_name().to_string()), Some(row));
        assert!(!row.text.is_empty());
    }
    assert_eq!(find("rlid"), None);
    assert_eq!(find("primary_address_path"), None);
}

#[test]
fn each_row_has_an_owner_and_only_one_path_is_the_engines() {
    let count = |is: fn(&Owner) -> bool| ROWS.iter().filter(|row| is(&row.owner)).count();
    let owners = [
        count(|owner| matches!(owner, Owner::Engine(_))),
        count(|owner| matches!(owner, Owner::Face)),
        count(|owner| matches!(owner, Owner::Query(_))),
        count(|owner| matches!(owner, Owner::Ignored)),
        count(|owner| matches!(owner, Owner::Reserved)),
    ];
    assert_eq!(owners.iter().sum::<usize>(), 237);
    let engine_of = |side| {
        ROWS.iter()
            .filter(|row| row.side == Some(side) && matches!(row.owner, Owner::Engine(_)))
            .count()
    };
    assert_eq!((engine_of(Side::Primary), engine_of(Side::Alternate)), (10, 0));
    // Each of the engine's attributes has one row.
    let attributes: BTreeSet<_> = ROWS
        .iter()
        .filter_map(|row| match row.owner {
            Owner::Engine(attribute) => Some(format!("{attribute:?}")),
            Owner::Query(live) => Some(format!("{live:?}")),
            Owner::Face | Owner::Ignored | Owner::Reserved => None,
        })
        .collect();
    assert_eq!(attributes.len(), owners[0] + owners[2]);
}

#[test]
fn fields_are_found_by_their_handles() {
    let places = [
        (At::from(Field::State), (0, 31, 28)),
        (Field::RemoteQpnEen.into(), (5, 23, 0)),
        ((Side::Primary, PathField::Fl).into(), (6, 31, 31)),
        ((Side::Primary, PathField::Dmac310).into(), (16, 31, 0)),
        ((Side::Alternate, PathField::Fl).into(), (17, 31, 31)),
        ((Side::Alternate, PathField::Dmac310).into(), (27, 31, 0)),
        (Field::AckReqFreq.into(), (28, 31, 28)),
        (Field::Reserved485.into(), (61, 31, 0)),
    ];
    for (at, place) in places {
        let row = at.row();
        assert_eq!((row.word, row.high, row.low), place);
    }
    let set = FieldSet::of(&[Field::Pd]).union(FieldSet::path(Side::Alternate));
    assert!(set.has(Field::Pd.into()) && !set.has(Field::Mtu.into()));
    assert_eq!(set.rows().count(), 1 + 54 - 11, "a path has 11 reserved rows");
    assert!(set.rows().skip(1).all(|row| row.side == Some(Side::Alternate)));
}

/// Every field at 0, at its maximum and at each single bit, over a context of zeros and one of ones: the
/// field has the value, no other bit moves, and bytes carry it.
#[test]
fn t_40_every_field_at_zero_maximum_and_a_walking_one() {
    for background in [0, u32::MAX] {
        let mut base = QpContext::default();
        base.words_mut().fill(background);
        for row in ROWS {
            let walking = (0..row.width()).map(|bit| 1 << bit);
            for value in [0, row.max()].into_iter().chain(walking) {
                let mut context = base;
                context.write(row, value);
                let context = QpContext::from_bytes(&context.to_bytes());
                assert_eq!(context.read(row), value, "{}", row.full_name());
                for (other, found) in context.fields().filter(|(other, _)| *other != row) {
                    assert_eq!(
                        found,
                        base.read(other),
                        "{} beside {}",
                        other.full_name(),
                        row.full_name()
                    );
                }
                let word = usize::from(row.word);
                let changed = context.words()[word] ^ base.words()[word];
                assert_eq!(changed & !row.mask(), 0);
                // What does not fit is cut off and touches nothing else.
                let mut cut = base;
                cut.write(row, value | !row.max());
                assert_eq!(cut, context);
            }
        }
    }
}

proptest! {
    #[test]
    fn t_40_bytes_to_fields_to_bytes(bytes in prop::collection::vec(any::<u8>(), CONTEXT_LEN)) {
        let bytes: [u8; CONTEXT_LEN] = bytes.try_into().unwrap();
        let context = QpContext::from_bytes(&bytes);
        let mut again = QpContext::default();
        for (row, value) in context.fields() {
            prop_assert!(value <= row.max());
            again.write(row, value);
        }
        prop_assert_eq!(again.to_bytes(), bytes);
    }
}

/// The seed's numbers of states and of migration, which are not those of verbs.
#[test]
fn t_40_state_and_migration_numbers_are_the_contexts() {
    let states = [QpState::Rst, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqer];
    assert_eq!(states.map(QpState::code), [0, 1, 2, 3, 4]);
    assert_eq!([QpState::Sqd, QpState::Err, QpState::SqDraining].map(QpState::code), [5, 6, 7]);
    let migration = [Migration::Armed, Migration::Rearm, Migration::Migrated];
    assert_eq!(migration.map(Migration::code), [0, 1, 3]);
    let context = QpContext::default().with(Field::State, 5).with(Field::St, 6);
    assert_eq!((context.state(), context.service()), (QpState::Sqd, ServiceType::Xrc));
    assert_eq!(context.to_bytes()[..4], [0x50, 0x06, 0, 0]);
    assert_eq!(WORDS, 62);
}
