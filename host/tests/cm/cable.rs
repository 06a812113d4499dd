//! A wire between two stations on virtual time, and the addresses of their ports.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Room, Rx};
use softrnic_host::capture::{Interface, Writer};
use softrnic_host::link::{Limits, Link, LinkCounters, LinkError, Written};
use softrnic_host::port::PortConfig;

/// Whether a frame from an end gets lost.
type Loses = dyn FnMut(usize, &[u8]) -> bool + Send;

/// A wire: frames of each direction, and a capture of all.
pub struct Cable {
    waiting: [VecDeque<Vec<u8>>; 2],
    pub lose: Box<Loses>,
    pub now: Nanos,
    pub capture: Writer<Vec<u8>>,
}

impl Cable {
    pub fn new(now: Nanos) -> Arc<Mutex<Self>> {
        let interfaces = ["client", "server"].map(|name| Interface {
            name: name.to_owned(),
            description: "a port of the native face".to_owned(),
        });
        let capture = Writer::new(Vec::new(), &interfaces).unwrap();
        let (waiting, lose) = ([VecDeque::new(), VecDeque::new()], Box::new(|_, _: &[u8]| false));
        Arc::new(Mutex::new(Self { waiting, lose, now, capture }))
    }
}

pub struct CableEnd {
    side: usize,
    cable: Arc<Mutex<Cable>>,
    room: Vec<u8>,
}

impl CableEnd {
    pub fn new(side: usize, cable: &Arc<Mutex<Cable>>) -> Self {
        Self { side, cable: cable.clone(), room: vec![0; FRAME_LEN_MAX] }
    }
}

impl Link for CableEnd {
    fn name(&self) -> &str {
        "cable"
    }

    fn limits(&self) -> Limits {
        Limits::of_mtu(1500)
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError> {
        let mut taken = 0;
        while taken < budget {
            let frame = self.cable.lock().unwrap().waiting[1 - self.side].pop_front();
            let Some(mut frame) = frame else { break };
            take(&mut frame, Rx::default());
            taken += 1;
        }
        Ok(taken)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        Some(Room { bytes: &mut self.room, segments: 1, source_port: None })
    }

    fn commit(&mut self, written: Written) {
        let mut cable = self.cable.lock().unwrap();
        let frame = self.room[..written.len].to_vec();
        let now = cable.now;
        cable.capture.packet(self.side as u32, now, &frame, &[]).unwrap();
        if !(cable.lose)(self.side, &frame) {
            cable.waiting[self.side].push_back(frame);
        }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

pub fn port(number: u8) -> PortConfig {
    PortConfig {
        mac: [2, 0, 0, 0, 0, number],
        ipv4: Some(([192, 0, 2, number].into(), 24)),
        ipv6: Some((format!("2001:db8::{number}").parse().unwrap(), 64)),
        ..PortConfig::default()
    }
}

pub fn ip(number: u8, v6: bool) -> IpAddr {
    let port = port(number);
    if v6 { port.ipv6.unwrap().0.into() } else { port.ipv4.unwrap().0.into() }
}
