//! Foreign judges of the layout: where Linux's compiler and iPXE's header have the fields
//! (`e2e/hermon_layouts.py` reads them from the drivers' own headers).

use softrnic_device::mlx4::context::{ROWS, find};
use softrnic_device::mlx4::field::{Origin, Row};

use crate::context::table;

const FOREIGN: &str = include_str!("../../../golden/hermon-foreign.csv");

/// Linux's constants and our names.
const BITS: [(&str, &str); 22] = [
    ("MLX4_FL_CV", "primary_address_path.cv"),
    ("MLX4_FL_SV", "primary_address_path.sv"),
    ("MLX4_FL_ETH_HIDE_CQE_VLAN", "primary_address_path.eth_hide_cqe_vlan"),
    ("MLX4_FL_ETH_SRC_CHECK_MC_LB", "primary_address_path.eth_src_check_mc_lb"),
    ("MLX4_FL_ETH_SRC_CHECK_UC_LB", "primary_address_path.eth_src_check_uc_lb"),
    ("MLX4_CTRL_ETH_SRC_CHECK_IF_COUNTER", "primary_address_path.src_check_if_counter"),
    ("MLX4_VLAN_CTRL_ETH_TX_BLOCK_TAGGED", "primary_address_path.tx_block_tagged"),
    ("MLX4_VLAN_CTRL_ETH_TX_BLOCK_PRIO_TAGGED", "primary_address_path.tx_block_prio"),
    ("MLX4_VLAN_CTRL_ETH_TX_BLOCK_UNTAGGED", "primary_address_path.tx_block_untagged"),
    ("MLX4_VLAN_CTRL_ETH_RX_BLOCK_TAGGED", "primary_address_path.rx_block_tagged"),
    ("MLX4_VLAN_CTRL_ETH_RX_BLOCK_PRIO_TAGGED", "primary_address_path.rx_block_prio"),
    ("MLX4_VLAN_CTRL_ETH_RX_BLOCK_UNTAGGED", "primary_address_path.rx_block_untagged"),
    ("MLX4_FEUP_FORCE_ETH_UP", "primary_address_path.force_eth_up"),
    ("MLX4_FSM_FORCE_ETH_SRC_MAC", "primary_address_path.fsm"),
    ("MLX4_FVL_FORCE_ETH_VLAN", "primary_address_path.fvl"),
    ("MLX4_FVL_RX_FORCE_ETH_VLAN", "primary_address_path.fvl_rx"),
    ("MLX4_QP_BIT_RRE", "rre"),
    ("MLX4_QP_BIT_RWE", "rwe"),
    ("MLX4_QP_BIT_RAE", "rae"),
    ("MLX4_QP_BIT_FPP", "fpp"),
    ("MLX4_QP_BIT_RIC", "ric"),
    ("MLX4_STRIP_VLAN", "vsd"),
];

struct Place {
    name: String,
    word: u8,
    high: u8,
    low: u8,
}

impl Place {
    fn holds(&self, row: &Row) -> bool {
        row.word == self.word && row.low >= self.low && row.high <= self.high
    }
}

fn places(source: &str) -> Vec<Place> {
    let rows = table(FOREIGN).into_iter().filter(|row| row["source"] == source);
    rows.map(|row| {
        let number = |key: &str| row[key].parse().unwrap();
        Place {
            name: row["name"].clone(),
            word: number("word"),
            high: number("high"),
            low: number("low"),
        }
    })
    .collect()
}

#[test]
fn linux_has_its_members_where_the_table_names_them() {
    let (constants, members): (Vec<_>, Vec<_>) =
        places("linux").into_iter().partition(|place| place.name.starts_with("MLX4_"));
    assert!(members.len() > 75, "{}", members.len());
    for place in &members {
        let parts: Vec<_> = ROWS.iter().filter(|row| place.holds(row)).collect();
        let bits: u32 = parts.iter().map(|row| u32::from(row.width())).sum();
        assert_eq!(bits, u32::from(place.high - place.low) + 1, "{} cuts a row", place.name);
        // `control` and `vlan_control` are one byte.
        let same = |row: &&Row| {
            let linux = row.linux_name();
            let member = linux.split(['[', ' ']).next().unwrap().to_string();
            member == place.name
                || member.replace("vlan_control", "control") == place.name
                || member.replace("control", "vlan_control") == place.name
        };
        let strangers: Vec<_> =
            parts.iter().filter(|row| !same(row)).map(|row| row.linux_name()).collect();
        assert!(strangers.is_empty(), "{}: {strangers:?}", place.name);
    }
    // And the other way round: what the table calls a member of Linux is inside of that member.
    for row in ROWS.iter().filter(|row| matches!(row.origin, Origin::Both | Origin::Linux)) {
        assert!(members.iter().any(|place| place.holds(row)), "{}", row.full_name());
    }
    assert_eq!(constants.len(), BITS.len());
    for (constant, name) in BITS {
        let place = constants.iter().find(|place| place.name == constant).unwrap();
        let row = find(name).unwrap();
        assert_eq!(
            (row.word, row.high, row.low),
            (place.word, place.high, place.low),
            "{constant}"
        );
    }
}

#[test]
fn ipxe_has_its_bits_where_the_table_has_them() {
    let places = places("ipxe");
    assert!(places.len() > 100, "{}", places.len());
    for place in &places {
        // Names that the table gives to Linux's place of the same thing.
        let name = place.name.replace(".counter_index", ".counter_index_prm");
        let name = name.replace(".vlan_index", ".vlan_index_prm");
        let row = find(&name).unwrap_or_else(|| panic!("no row is called {name}"));
        assert_eq!((row.word, row.high, row.low), (place.word, place.high, place.low), "{name}");
        assert!(matches!(row.origin, Origin::Both | Origin::Prm), "{name}");
    }
    let named = ROWS.iter().filter(|row| matches!(row.origin, Origin::Both | Origin::Prm)).count();
    assert_eq!(places.len(), named, "iPXE names each of them");
}
