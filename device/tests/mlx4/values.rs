//! Contexts for the tests: every field with a value of its own, and queue pairs in any state.

use softrnic_device::mlx4::codes::{QpState, ServiceType};
use softrnic_device::mlx4::context::{Field, PathField, QpContext, ROWS};
use softrnic_device::mlx4::contexts::QpContexts;
use softrnic_device::mlx4::field::Side;
use softrnic_device::mlx4::transitions::Command;
use softrnic_device::verbs::Verbs;
use softrnic_device::{Device, Nic, Ram};
use softrnic_engine::{Port, Qpn, State};

pub(crate) const QPN: u32 = 0x00AB_0005;

/// A table with three partition keys, and nothing behind it.
pub(crate) fn device() -> (QpContexts, Nic<Verbs, Ram>) {
    let nic = Nic::verbs(Port::default(), Ram::new(0x1000, 4096));
    (QpContexts::new(8, vec![0xFFFF, 0x8001, 0x8002]), nic)
}

/// Every field that is not reserved has a value that is neither 0 nor its maximum where that can be, and
/// that a queue pair of this service can have.
pub(crate) fn full(service: ServiceType) -> QpContext {
    let mut context = QpContext::default();
    for (i, row) in ROWS.iter().enumerate().filter(|(_, row)| !row.is_reserved()) {
        let value = (0x9E37_79B9_u32.wrapping_mul(i as u32 + 1) >> 7) & row.max();
        context.write(row, value.max(1));
    }
    let raw = matches!(service, ServiceType::Mlx | ServiceType::RawEth);
    context
        .with(Field::St, service.code().into())
        .with(Field::Rss, 0)
        .with(Field::PmState, 1)
        .with(Field::Mtu, if raw { 7 } else { 4 })
        .with(Field::RoceMode, 2)
        .with(Field::LocalQpnEen, QPN)
        .with((Side::Primary, PathField::PkeyIndex), 2)
        .with((Side::Primary, PathField::SchedQueue), 0xAB)
}

/// A queue pair of a service, created by a command with nothing but its service, and put into a state.
pub(crate) fn in_state(service: ServiceType, state: QpState) -> (QpContexts, Nic<Verbs, Ram>) {
    let (mut contexts, mut nic) = device();
    let to = match state {
        QpState::Init => State::Init,
        QpState::Rtr => State::Rtr,
        QpState::Rts => State::Rts,
        QpState::Sqer => State::Sqe,
        QpState::Sqd => State::Sqd,
        QpState::Err => State::Error,
        _ => return (contexts, nic),
    };
    let bare = QpContext::default().with(Field::St, service.code().into());
    contexts.modify(&mut nic, Command::Rst2Init, QPN, 0, &bare).unwrap();
    let Nic { engine, device, memory } = &mut nic;
    engine.set_state(Qpn::new(QPN), to, &mut device.view(memory));
    (contexts, nic)
}
