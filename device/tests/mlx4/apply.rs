//! Single rules of the commands: numbers, values that are refused, what the engine's queue pair gets.

use softrnic_device::mlx4::codes::{QpState, ServiceType};
use softrnic_device::mlx4::context::{At, CONTEXT_LEN, Field, PathField, QpContext, ROWS};
use softrnic_device::mlx4::contexts::{MAILBOX_LEN, QpContexts};
use softrnic_device::mlx4::field::Side;
use softrnic_device::mlx4::refusal::{Refusal, Status};
use softrnic_device::mlx4::transitions::{COMMANDS, Command, TAKEN};
use softrnic_device::verbs::QpInit;
use softrnic_engine::{Qpn, Reason, Service, State};

use crate::values::{QPN, device, full, in_state};
use crate::world::{Side as End, World};

const UP: [Command; 3] = [Command::Rst2Init, Command::Init2Rtr, Command::Rtr2Rts];

#[test]
fn the_engines_queue_pair_has_what_the_context_says() {
    let (mut contexts, mut nic) = device();
    let v4 = (Side::Primary, PathField::Rgid9564);
    let given = full(ServiceType::Rc)
        .with((Side::Primary, PathField::Rgid12796), 0)
        .with(v4, 0)
        .with((Side::Primary, PathField::Rgid6332), 0xFFFF)
        .with((Side::Primary, PathField::Rgid310), 0xC000_0207)
        .with((Side::Primary, PathField::Dmac4732), 0x0211)
        .with((Side::Primary, PathField::Dmac310), 0x2233_4455)
        .with(Field::SraMax, 3)
        .with(Field::RraMax, 2)
        .with(Field::MsgMax, 20)
        .with(Field::AckReqFreq, 8)
        .with(Field::Rre, 1)
        .with(Field::Rwe, 0)
        .with(Field::Rae, 1)
        .with(Field::Ric, 1)
        .with(Field::RoceEntropy, 0xC123);
    UP.iter().for_each(|&up| contexts.modify(&mut nic, up, QPN, 0, &given).unwrap());
    let qp = nic.engine.qp(Qpn::new(QPN)).unwrap();
    let attributes = qp.attributes();
    assert_eq!((qp.state(), attributes.service), (State::Rts, Service::Rc));
    assert_eq!(attributes.path.dest_ip, core::net::IpAddr::from([192, 0, 2, 7]));
    assert_eq!(attributes.path.dest_mac, [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert_eq!(attributes.path.priority, Some(5));
    assert_eq!(attributes.path.source_port, Some(0xC123));
    assert_eq!(attributes.path.hop_limit, given.get((Side::Primary, PathField::HopLimit)) as u8);
    assert_eq!((attributes.max_rd_atomic, attributes.max_dest_rd_atomic), (8, 4));
    assert_eq!(attributes.pkey, 0x8002, "the third of the table");
    assert_eq!(attributes.path_mtu.bytes(), 2048);
    let policy = attributes.policy;
    assert_eq!((policy.max_message_len, policy.ack_request_every), (1 << 20, 256));
    assert!(!policy.end_to_end_credits);
    let access = attributes.remote_access;
    assert_eq!((access.read, access.write, access.atomic), (true, false, true));
    assert_eq!(attributes.dest_qpn.get(), given.get(Field::RemoteQpnEen));
    assert_eq!(qp.send_psn().get(), given.get(Field::NextSendPsn));
    assert_eq!(qp.expected_psn().get(), given.get(Field::NextRcvPsn));
}

/// Values at fault, the command that brings them, and what the driver hears.
#[test]
fn values_that_cannot_be_obeyed_are_refused_by_name_and_change_nothing() {
    let pkey = At::from((Side::Primary, PathField::PkeyIndex));
    let sched = At::from((Side::Primary, PathField::SchedQueue));
    let rc = ServiceType::Rc;
    let cases: [(ServiceType, QpState, Command, At, u32, Status); 11] = [
        (rc, QpState::Init, Command::Init2Rtr, Field::Mtu.into(), 0, Status::BadParameter),
        (rc, QpState::Init, Command::Init2Rtr, Field::Mtu.into(), 6, Status::BadParameter),
        (rc, QpState::Init, Command::Init2Rtr, Field::Mtu.into(), 7, Status::BadParameter),
        (
            ServiceType::Ud,
            QpState::Init,
            Command::Init2Rtr,
            Field::Mtu.into(),
            7,
            Status::BadParameter,
        ),
        (
            ServiceType::Mlx,
            QpState::Init,
            Command::Init2Rtr,
            Field::Mtu.into(),
            6,
            Status::BadParameter,
        ),
        (rc, QpState::Init, Command::Init2Rtr, Field::RoceMode.into(), 0, Status::BadParameter),
        (rc, QpState::Rst, Command::Rst2Init, Field::Rss.into(), 1, Status::BadParameter),
        (rc, QpState::Rst, Command::Rst2Init, Field::LocalQpnEen.into(), 5, Status::BadParameter),
        (rc, QpState::Rst, Command::Rst2Init, pkey, 3, Status::BadIndex),
        (rc, QpState::Rst, Command::Rst2Init, sched, 0xC3, Status::BadIndex),
        (rc, QpState::Init, Command::Init2Rtr, sched, 0xC3, Status::BadIndex),
    ];
    for (service, state, command, at, value, status) in cases {
        let (mut contexts, mut nic) = in_state(service, state);
        let before = contexts.query(&mut nic, QPN).unwrap();
        let context = full(service).with(at, value);
        let refusal = contexts.modify(&mut nic, command, QPN, u32::MAX, &context).unwrap_err();
        assert_eq!(refusal.status(), status, "{refusal}");
        let words = refusal.to_string();
        let name = at.row().full_name();
        assert!(words.contains(&format!("{command}: {name} is {value:#x}; ")), "{words}");
        assert_eq!(contexts.query(&mut nic, QPN).unwrap(), before);
        assert_eq!(nic.engine.refused()[Reason::ContextValue as usize], 1);
    }
}

/// A value of a field that a command does not bring is not looked at.
#[test]
fn values_that_a_command_does_not_bring_are_not_looked_at() {
    for &service in TAKEN {
        let (mut contexts, mut nic) = in_state(service, QpState::Rts);
        let mut wild = QpContext::default();
        wild.words_mut().fill(u32::MAX);
        wild.set(Field::LocalQpnEen, 0);
        let before = contexts.query(&mut nic, QPN).unwrap();
        contexts.modify(&mut nic, Command::Rts2Rts, QPN, 0, &wild).unwrap();
        assert_eq!(contexts.query(&mut nic, QPN).unwrap(), before, "{service}");
    }
}

#[test]
fn ignored_fields_are_kept_returned_and_never_refused() {
    use softrnic_device::mlx4::field::Owner;
    for &service in TAKEN {
        let (mut contexts, mut nic) = device();
        let mut given = full(service);
        let ignored = || ROWS.iter().filter(|row| row.owner == Owner::Ignored);
        ignored().for_each(|row| given.write(row, u32::MAX));
        for command in UP {
            contexts.modify(&mut nic, command, QPN, 1, &given).unwrap();
        }
        let found = contexts.query(&mut nic, QPN).unwrap();
        for row in ignored() {
            assert_eq!(found.read(row), row.max(), "{service}: {}", row.full_name());
        }
    }
}

#[test]
fn alternate_path_and_migration_state_are_kept_with_bits_0_and_10() {
    let (mut contexts, mut nic) = in_state(ServiceType::Rc, QpState::Rts);
    let given = full(ServiceType::Rc);
    contexts.modify(&mut nic, Command::Rts2Rts, QPN, 1 << 0 | 1 << 10, &given).unwrap();
    let found = contexts.query(&mut nic, QPN).unwrap();
    for row in ROWS.iter().filter(|row| row.side == Some(Side::Alternate)) {
        assert_eq!(found.read(row), given.read(row), "{}", row.full_name());
    }
    assert_eq!(found.get(Field::PmState), 1);
    let address = nic.engine.qp(Qpn::new(QPN)).unwrap().attributes().path.dest_mac;
    assert_eq!(address, [0; 6], "the path in use is another");
}

#[test]
fn numbers_are_compared_in_full_and_placed_by_their_low_bits() {
    let (mut contexts, mut nic) = device();
    let bare = QpContext::default().with(Field::RoceMode, 2).with(Field::Mtu, 3);
    contexts.modify(&mut nic, Command::Rst2Init, QPN, 0, &bare).unwrap();
    // The same low 8 bits.
    let other = QPN ^ 0x00F0_0000;
    for command in [Command::Rst2Init, Command::Init2Rtr, Command::ToRst, Command::ToErr] {
        let refusal = contexts.modify(&mut nic, command, other, 0, &bare).unwrap_err();
        let (given, holder) = (Qpn::new(other), Qpn::new(QPN));
        assert_eq!(refusal, Refusal::OtherQpn { given, holder });
        assert_eq!(refusal.status() as u8, 0x0A);
    }
    assert!(contexts.query(&mut nic, other).is_err());
    assert_eq!(nic.engine.refused()[Reason::CommandQpn as usize], 5);
    // The highest bit of the modifier is no part of the number.
    contexts.modify(&mut nic, Command::Init2Rtr, QPN | 0xFF00_0000, 0, &bare).unwrap();
    let found = contexts.query(&mut nic, QPN).unwrap();
    assert_eq!((found.state(), found.get(Field::LocalQpnEen)), (QpState::Rtr, QPN));
    // Reset gives the place away.
    contexts.modify(&mut nic, Command::ToRst, QPN, 0, &bare).unwrap();
    contexts.modify(&mut nic, Command::Rst2Init, other, 0, &bare).unwrap();
    assert_eq!(contexts.query(&mut nic, other).unwrap().state(), QpState::Init);
    assert!(nic.engine.qp(Qpn::new(QPN)).is_none());
}

#[test]
fn reset_and_error_are_always_possible() {
    let (mut contexts, mut nic) = device();
    let none = QpContext::default();
    // Never created.
    contexts.modify(&mut nic, Command::ToRst, QPN, 0, &none).unwrap();
    assert_eq!(contexts.query(&mut nic, QPN).unwrap(), none);
    contexts.modify(&mut nic, Command::ToErr, QPN, 0, &none).unwrap();
    assert_eq!(contexts.query(&mut nic, QPN).unwrap().state(), QpState::Err);
    contexts.modify(&mut nic, Command::ToErr, QPN, 0, &none).unwrap();
    contexts.modify(&mut nic, Command::ToRst, QPN, 0, &none).unwrap();
    assert_eq!(contexts.query(&mut nic, QPN).unwrap(), none);
    // From reset, both lead to life again.
    contexts.modify(&mut nic, Command::Rst2Init, QPN, 0, &full(ServiceType::Uc)).unwrap();
    assert_eq!(contexts.query(&mut nic, QPN).unwrap().service(), ServiceType::Uc);
}

#[test]
fn commands_that_are_not_offered_are_bad_opcodes() {
    let (mut contexts, mut nic) = in_state(ServiceType::Rc, QpState::Rts);
    for opcode in [0x32, 0x33, 0x61, 0x18, 0x39, 0xFFF] {
        let refusal = contexts.execute(&mut nic, opcode, QPN, &mut [0; MAILBOX_LEN]).unwrap_err();
        assert_eq!(refusal.status() as u8, 2, "{refusal}");
    }
    assert_eq!(nic.engine.refused()[Reason::CommandOpcode as usize], 6);
    for name in ["SUSPEND_QP", "UNSUSPEND_QP", "UPDATE_QP"] {
        let row = COMMANDS.iter().find(|row| row.name == name).unwrap();
        let refusal =
            contexts.modify(&mut nic, row.command, QPN, 0, &QpContext::default()).unwrap_err();
        assert_eq!(refusal.to_string(), format!("{name} is not offered"));
    }
}

/// The box as drivers build it: mask, a reserved word, the context; a query fills the same shape.
#[test]
fn a_box_carries_mask_and_context() {
    let (mut contexts, mut nic) = in_state(ServiceType::Rc, QpState::Rts);
    let given = full(ServiceType::Rc).with(Field::QKey, 0x1122_3344);
    let mut mailbox = [0; MAILBOX_LEN];
    mailbox[8..].copy_from_slice(&given.to_bytes());
    mailbox[2..4].copy_from_slice(&0x0020_u16.to_be_bytes());
    contexts.execute(&mut nic, 0x1C, QPN, &mut mailbox).unwrap();
    contexts.execute(&mut nic, 0x22, QPN, &mut mailbox).unwrap();
    assert_eq!(mailbox[..8], [0; 8]);
    let found: &[u8; CONTEXT_LEN] = mailbox.last_chunk().unwrap();
    let found = QpContext::from_bytes(found);
    assert_eq!(found.get(Field::QKey), 0x1122_3344);
    assert_eq!(found.get(Field::RetryCount), 0, "its bit was not set");
    assert_eq!(found, contexts.query(&mut nic, QPN).unwrap());
}

#[test]
fn an_rss_queue_pair_keeps_its_table_as_it_is() {
    let (mut contexts, mut nic) = device();
    let mut given = full(ServiceType::RawEth).with(Field::Rss, 1);
    for word in 15..=28 {
        given.words_mut()[word] = 0xFFFF_0000 | word as u32;
    }
    for command in [Command::Rst2Init, Command::Init2Rtr] {
        contexts.modify(&mut nic, command, QPN, 0, &given).unwrap();
        let found = contexts.query(&mut nic, QPN).unwrap();
        assert_eq!(found.words()[15..=28], given.words()[15..=28]);
        assert_eq!(found.get(Field::Rss), 1);
    }
    let qp = nic.engine.qp(Qpn::new(QPN)).unwrap();
    assert_eq!(qp.attributes().path.dest_mac, [0; 6], "no address stands there");
}

/// A reliable connection fails as a whole; its send queue alone never does.
#[test]
fn only_unreliable_services_come_back_from_a_send_queue_error() {
    for &service in TAKEN {
        let (mut contexts, mut nic) = in_state(service, QpState::Sqer);
        let told = contexts.modify(&mut nic, Command::Sqerr2Rts, QPN, 0, &QpContext::default());
        if matches!(service, ServiceType::Rc | ServiceType::Xrc) {
            let refusal = told.unwrap_err();
            assert_eq!(refusal.to_string(), format!("SQERR2RTS_QP is not for {service}"));
            assert_eq!(refusal.status(), Status::BadQpState);
        } else {
            assert_eq!(told, Ok(()));
        }
    }
}

/// An XRC queue pair has a context and no traffic: the engine has no such service.
#[test]
fn an_xrc_queue_pair_lives_and_is_silent() {
    let (mut contexts, mut nic) = device();
    let given = full(ServiceType::Xrc);
    UP.iter().for_each(|&up| contexts.modify(&mut nic, up, QPN, 0, &given).unwrap());
    let found = contexts.query(&mut nic, QPN).unwrap();
    assert_eq!((found.service(), found.state()), (ServiceType::Xrc, QpState::Rts));
    assert_eq!(found.get(Field::Srcd), given.get(Field::Srcd));
    assert!(!nic.engine.qp(Qpn::new(QPN)).unwrap().attributes().enabled);
}

/// A queue pair that verbs have made and connected is shown, too, and can be changed.
#[test]
fn a_queue_pair_of_verbs_has_a_context() {
    let mut world = World::new();
    let mut contexts = QpContexts::default();
    let (qpn, far) = (world.a.qpn.get(), world.b.qpn.get());
    let found = contexts.query(&mut world.a.nic, qpn).unwrap();
    assert_eq!((found.state(), found.service()), (QpState::Rts, ServiceType::Rc));
    assert_eq!((found.get(Field::Mtu), found.get(Field::RemoteQpnEen)), (3, far));
    assert_eq!(found.get(Field::PmState), 3);
    let other = QpContext::default().with(Field::MinRnrNak, 7);
    contexts.modify(&mut world.a.nic, Command::Rts2Rts, qpn, 1 << 6, &other).unwrap();
    let again = contexts.query(&mut world.a.nic, qpn).unwrap();
    assert_eq!((again.get(Field::MinRnrNak), again.get(Field::Mtu)), (7, 3));
    // Its service was chosen when it was made.
    let mut end = End::new(3, QpInit::default(), 8);
    let wrong = full(ServiceType::Ud).with(Field::LocalQpnEen, 0);
    let wrong = wrong.with((Side::Primary, PathField::PkeyIndex), 0);
    let refusal =
        contexts.modify(&mut end.nic, Command::Rst2Init, end.qpn.get(), 0, &wrong).unwrap_err();
    assert!(refusal.to_string().ends_with("created for another service"), "{refusal}");
}
