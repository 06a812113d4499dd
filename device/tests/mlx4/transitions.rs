//! Every command from every state for every service: what happens, what is applied, what stays.

use std::fmt::Write as _;

use insta::assert_snapshot;
use softrnic_device::mlx4::codes::{QpState, ServiceType};
use softrnic_device::mlx4::context::{Field, PathField, QpContext, ROWS};
use softrnic_device::mlx4::field::{Owner, Side};
use softrnic_device::mlx4::field_set::FieldSet;
use softrnic_device::mlx4::transitions::{COMMANDS, Command, MASK_BITS, TAKEN};

use crate::values::{QPN, device, full, in_state};

const STATES: [QpState; 7] = [
    QpState::Rst,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqer,
    QpState::Sqd,
    QpState::Err,
];

/// The table for people: a line for each command, a column for each state that it finds.
#[test]
fn t_40_every_command_from_every_state_for_every_service() {
    let mut tables: Vec<(String, Vec<String>)> = Vec::new();
    for &service in TAKEN {
        let mut text = format!("{:<14}", "");
        STATES.iter().for_each(|state| text += &format!("{:>6}", state.to_string()));
        for row in COMMANDS {
            text += &format!("\n{:<14}", row.name);
            for state in STATES {
                let (mut contexts, mut nic) = in_state(service, state);
                let before = contexts.query(&mut nic, QPN).unwrap();
                assert_eq!(before.state(), state, "{service}");
                let told = if row.command == Command::Query {
                    contexts.query(&mut nic, QPN).map(|_| ())
                } else {
                    contexts.modify(&mut nic, row.command, QPN, u32::MAX, &full(service))
                };
                let after = contexts.query(&mut nic, QPN).unwrap();
                let cell = match told {
                    Ok(()) => after.state().to_string(),
                    Err(refusal) => {
                        assert_eq!(after, before, "{refusal}");
                        format!("{:#04x}", refusal.status() as u8)
                    }
                };
                text += &format!("{cell:>6}");
            }
        }
        match tables.iter_mut().find(|(table, _)| *table == text) {
            Some((_, services)) => services.push(service.to_string()),
            None => tables.push((text, vec![service.to_string()])),
        }
    }
    let mut all = String::from("The state afterwards, or the status of the refusal.\n");
    for (text, services) in tables {
        let _ = write!(all, "\n{}\n{text}\n", services.join(", "));
    }
    assert_snapshot!(all);
}

/// Names of the fields, a path's in short where all of it that can be given is given.
fn names(context: &QpContext, before: &QpContext) -> String {
    let changed = |row: &&_| context.read(row) != before.read(row);
    let mut rows: Vec<_> = ROWS.iter().filter(changed).filter(|row| row.name != "state").collect();
    let mut names = Vec::new();
    for side in [Side::Primary, Side::Alternate] {
        let whole: Vec<_> = FieldSet::path(side).rows().collect();
        let missing: Vec<_> = whole.iter().filter(|row| !rows.contains(row)).collect();
        if missing.len() > 4 {
            continue;
        }
        rows.retain(|row| row.side != Some(side));
        let but: Vec<_> = missing.iter().map(|row| row.name).collect();
        let but = if but.is_empty() { String::new() } else { format!(" but {}", but.join(", ")) };
        names.push(format!("{}{but}", side.name()));
    }
    names.splice(0..0, rows.iter().map(|row| row.full_name().to_string()));
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

/// What each command applies always, and what with each bit of the mask; every other bit alone does
/// nothing more.
#[test]
fn t_40_what_each_command_applies() {
    let mut all = String::new();
    for row in COMMANDS.iter().filter(|row| row.command != Command::Query) {
        let Some(&from) = row.from.first() else { continue };
        let mut told: Vec<(String, Vec<String>)> = Vec::new();
        for &service in row.services {
            let applied = |mask| {
                let (mut contexts, mut nic) = in_state(service, from);
                let before = contexts.query(&mut nic, QPN).unwrap();
                contexts.modify(&mut nic, row.command, QPN, mask, &full(service)).unwrap();
                (contexts.query(&mut nic, QPN).unwrap(), before)
            };
            let (always, before) = applied(0);
            let mut text = format!("  always: {}", names(&always, &before));
            for bit in 0..32 {
                let (with, _) = applied(1 << bit);
                let named = MASK_BITS.iter().find(|mask| u32::from(mask.bit) == bit);
                if row.optional >> bit & 1 == 0 {
                    assert_eq!(with, always, "{} with bit {bit}", row.name);
                } else {
                    let more = names(&with, &always);
                    let name = named.unwrap().name;
                    let _ = write!(text, "\n  bit {bit} {name}: {more}");
                }
            }
            match told.iter_mut().find(|(other, _)| *other == text) {
                Some((_, services)) => services.push(service.to_string()),
                None => told.push((text, vec![service.to_string()])),
            }
        }
        for (text, services) in told {
            let _ = writeln!(all, "{} from {from}: {}\n{text}", row.name, services.join(", "));
        }
    }
    assert_snapshot!(all);
}

#[test]
fn t_40_services_that_are_not_offered_are_refused_by_name() {
    for &service in ServiceType::ALL {
        let offered = TAKEN.contains(&service);
        let (mut contexts, mut nic) = device();
        let told = contexts.modify(&mut nic, Command::Rst2Init, QPN, 0, &full(service));
        assert_eq!(told.is_ok(), offered, "{service}");
        if let Err(refusal) = told {
            let words = refusal.to_string();
            assert!(words.contains("st is") && words.contains(&service.to_string()), "{words}");
            assert_eq!(refusal.status() as u8, 3);
        }
    }
    for code in [8, 9, 10, 12, 13, 14, 15] {
        let (mut contexts, mut nic) = device();
        let context = QpContext::default().with(Field::St, code);
        let refusal = contexts.modify(&mut nic, Command::Rst2Init, QPN, 0, &context).unwrap_err();
        assert!(refusal.to_string().ends_with("no service has this code"), "{refusal}");
        assert_eq!(contexts.query(&mut nic, QPN).unwrap(), QpContext::default());
    }
}

/// Whatever software can give is given by the three commands that bring a queue pair up, with mask 0, and
/// comes back: nothing is lost, nothing is invented.
#[test]
fn m_20_t_40_with_mask_0_everything_comes_back_and_reserved_bits_do_not() {
    for &service in TAKEN {
        let (mut contexts, mut nic) = device();
        let mut given = full(service);
        ROWS.iter().filter(|row| row.is_reserved()).for_each(|row| given.write(row, u32::MAX));
        for command in [Command::Rst2Init, Command::Init2Rtr, Command::Rtr2Rts] {
            contexts.modify(&mut nic, command, QPN, 0, &given).unwrap();
        }
        let found = contexts.query(&mut nic, QPN).unwrap();
        for row in ROWS {
            let expected = match row.owner {
                _ if row.name == "state" => QpState::Rts.code().into(),
                // Nothing has gone over the wire: what is left is all, and counters are 0.
                Owner::Query(_) => match row.name {
                    "cur_retry_cnt" => given.get(Field::RetryCount),
                    "cur_rnr_retry" => given.get(Field::RnrRetry),
                    "last_acked_psn" => given.get(Field::NextSendPsn) - 1,
                    _ => 0,
                },
                Owner::Reserved => 0,
                // Only with its bit.
                _ if row.side == Some(Side::Alternate) => 0,
                _ if row.name == "q_key" && !is_datagram(service) => 0,
                Owner::Engine(_) | Owner::Face | Owner::Ignored => given.read(row),
            };
            assert_eq!(found.read(row), expected, "{service}: {}", row.full_name());
        }
    }
}

fn is_datagram(service: ServiceType) -> bool {
    matches!(service, ServiceType::Ud | ServiceType::Mlx | ServiceType::RawEth)
}

/// RTR2RTS of Linux: the timeout with link type 0, the rest of the path 0. And a path that is given again
/// in SQD without timeout, P_Key and counter.
#[test]
fn a_zeroed_path_does_not_overwrite_the_path() {
    let service = TAKEN[0];
    let (mut contexts, mut nic) = device();
    let given = full(service);
    for command in [Command::Rst2Init, Command::Init2Rtr] {
        contexts.modify(&mut nic, command, QPN, 0, &given).unwrap();
    }
    let before = contexts.query(&mut nic, QPN).unwrap();
    let timeout = (Side::Primary, PathField::AckTimeout);
    let sparse = QpContext::default().with(timeout, 9);
    contexts.modify(&mut nic, Command::Rtr2Rts, QPN, 1 << 14 | 1 << 12 | 1 << 8, &sparse).unwrap();
    let after = contexts.query(&mut nic, QPN).unwrap();
    assert_eq!(after.get(timeout), 9);
    let path = |context: &QpContext| {
        let rows = FieldSet::path(Side::Primary).without(timeout.into()).rows();
        rows.map(|row| context.read(row)).collect::<Vec<_>>()
    };
    assert_eq!(path(&after), path(&before));
    // Created once, repeated by the drivers as zeros: stays.
    for field in [Field::Pd, Field::CqnRcv, Field::UsrPage, Field::LogSqSize, Field::RemoteQpnEen] {
        assert_eq!(after.get(field), given.get(field), "{field:?}");
    }
    contexts.modify(&mut nic, Command::Rts2Sqd, QPN, 0, &sparse).unwrap();
    let lid = (Side::Primary, PathField::Rlid);
    let again = QpContext::default().with(lid, 0x77);
    contexts.modify(&mut nic, Command::Sqd2Sqd, QPN, 1 << 7, &again).unwrap();
    let moved = contexts.query(&mut nic, QPN).unwrap();
    assert_eq!((moved.get(lid), moved.get(timeout)), (0x77, 9));
    for kept in [PathField::PkeyIndex, PathField::CounterIndex] {
        let kept = (Side::Primary, kept);
        assert_eq!(moved.get(kept), given.get(kept));
    }
    // And the timeout alone.
    contexts.modify(&mut nic, Command::Sqd2Sqd, QPN, 1 << 14, &sparse.with(timeout, 3)).unwrap();
    let last = contexts.query(&mut nic, QPN).unwrap();
    assert_eq!((last.get(lid), last.get(timeout)), (0x77, 3));
}
