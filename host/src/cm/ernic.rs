//! QP 1 of an ERNIC for connection management, as its driver does it: the device sends and receives whole frames, which
//! software builds and reads, and it tells of no first packet. It knows no connection.

use std::net::IpAddr;

use softrnic_driver::management::{Datagram, FramePath, datagram};
use softrnic_driver::registers::STATRQPIDB;
use softrnic_driver::{
    Completion, DmaBuffer, Ernic, Error, Local, MadConfig, PathConfig, PathMtu as DriverMtu,
    Platform, QpNumber, Remote, Request,
};
use softrnic_engine::{Nanos, PathMtu, Qpn};

use super::agent::{AgentCounters, Endpoint, Gsi};
use super::connection::{Parameters, Peer};
use super::message::Mad;
use crate::port::{PortConfig, Resolution, Resolve};

/// Frames in flight, at most.
const DEPTH: u16 = 64;
/// Bytes for a frame: Ethernet with a tag, IPv6, UDP, BTH, DETH and a datagram fit.
const FRAME_LEN: u32 = 512;
const SOURCE_PORT: u16 = 0xC000;

/// QP 1, with a place for each frame that it may send.
#[derive(Debug)]
pub struct ErnicGsi {
    qp1: QpNumber,
    port: PortConfig,
    frames: DmaBuffer,
    next_frame: u16,
    in_flight: u16,
    psn: u32,
}

impl ErnicGsi {
    /// Makes QP 1, which must be a device's first queue pair.
    ///
    /// # Errors
    /// There are queue pairs already, or no memory.
    pub fn new<P: Platform>(driver: &mut Ernic<P>, port: &PortConfig) -> Result<Self, Error> {
        let config = MadConfig { sq_depth: DEPTH, rq_depth: DEPTH, rq_element_len: FRAME_LEN };
        let qp1 = driver.create_qp1(&config)?;
        let len = usize::from(DEPTH) * FRAME_LEN as usize;
        let frames = driver.dma_alloc("frames of QP 1", len)?;
        Ok(Self { qp1, port: port.clone(), frames, next_frame: 0, in_flight: 0, psn: 0 })
    }

    /// Takes frames that have come; counts what is none of ours.
    fn take<P: Platform>(
        &self,
        driver: &mut Ernic<P>,
        counters: &mut AgentCounters,
        take: &mut dyn FnMut(Peer, &[u8]),
    ) -> Result<bool, Error> {
        let mut busy = false;
        // No more than there are elements, so that a flood lets others work.
        for _ in 0..DEPTH {
            let Some(received) = driver.poll_receive(self.qp1)? else { break };
            busy = true;
            let mut frame = [0; FRAME_LEN as usize];
            driver.platform_mut().dma_read(received.bus, &mut frame)?;
            driver.release_receive(self.qp1, 1)?;
            match Datagram::from_frame(&frame) {
                Some(Datagram { source_ip: ip, source_qpn, mad }) => {
                    take(Peer { ip, qpn: Qpn::new(source_qpn) }, mad);
                }
                None => counters.receive_errors += 1,
            }
        }
        Ok(busy)
    }

    /// Takes frames that have left.
    fn retire<P: Platform>(
        &mut self,
        driver: &mut Ernic<P>,
        counters: &mut AgentCounters,
    ) -> Result<(), Error> {
        let mut done = [Completion::default(); 16];
        while let count @ 1.. = driver.poll_completions(self.qp1, &mut done)? {
            self.in_flight = self.in_flight.saturating_sub(count as u16);
            let failed = done[..count].iter().filter(|completion| completion.failed);
            counters.send_errors += failed.count() as u64;
        }
        Ok(())
    }

    fn try_send<P: Platform>(
        &mut self,
        driver: &mut Ernic<P>,
        peer: Peer,
        dest_mac: [u8; 6],
        mad: &Mad,
    ) -> Result<(), Error> {
        // A peer of a family that this port has not cannot have reached it.
        let Ok(source_ip) = self.port.own_address(peer.ip.is_ipv6()) else { return Ok(()) };
        let path = FramePath {
            source_mac: self.port.mac,
            dest_mac,
            source_ip,
            dest_ip: peer.ip,
            source_port: SOURCE_PORT,
            vlan_tci: self.port.vlan_tci,
        };
        let frame = datagram(&path, peer.qpn.get(), self.psn, mad);
        let address = self.frames.bus + u64::from(self.next_frame) * u64::from(FRAME_LEN);
        driver.platform_mut().dma_write(address, &frame)?;
        let local = Local::Bus { address, len: frame.len() as u32 };
        driver.post(self.qp1, &Request::send(self.next_frame, local))?;
        driver.ring(self.qp1)?;
        self.psn = self.psn.wrapping_add(1);
        self.next_frame = (self.next_frame + 1) % DEPTH;
        self.in_flight += 1;
        Ok(())
    }
}

impl<P: Platform + Resolve> Gsi<Ernic<P>> for ErnicGsi {
    fn receive(
        &mut self,
        driver: &mut Ernic<P>,
        counters: &mut AgentCounters,
        take: &mut dyn FnMut(Peer, &[u8]),
    ) -> bool {
        let taken = self.retire(driver, counters).and_then(|()| self.take(driver, counters, take));
        taken.unwrap_or_else(|_| {
            // The device reports what cannot be, or does not answer: whoever waits for it has its timeouts.
            counters.receive_errors += 1;
            false
        })
    }

    fn send(&mut self, driver: &mut Ernic<P>, peer: Peer, dest_mac: [u8; 6], mad: &Mad) -> bool {
        // One entry of the ring stays empty.
        self.in_flight < DEPTH - 1 && self.try_send(driver, peer, dest_mac, mad).is_ok()
    }

    fn resolve(&mut self, driver: &mut Ernic<P>, _: Nanos, ip: IpAddr) -> Resolution {
        driver.platform_mut().resolve(ip)
    }

    fn check(&mut self, driver: &mut Ernic<P>, qpn: Qpn) -> Result<(), String> {
        match driver.is_connected(number(qpn)) {
            Ok(false) => Ok(()),
            Ok(true) => Err(format!("{} is connected already", number(qpn))),
            Err(error) => Err(error.to_string()),
        }
    }

    fn connect(
        &mut self,
        driver: &mut Ernic<P>,
        endpoint: &Endpoint,
        parameters: &Parameters,
        dest_mac: [u8; 6],
    ) -> Result<(), String> {
        let qp = number(endpoint.qpn);
        let path = PathConfig {
            path_mtu: driver_mtu(parameters.path_mtu),
            timeout: parameters.ack_timeout_within(endpoint.ack_timeout_max),
            retry_count: parameters.retry_count,
            rnr_retry: parameters.rnr_retry,
            // The device has the DSCP, and sends no ECN.
            traffic_class: parameters.traffic_class >> 2,
            ttl: parameters.hop_limit.max(1),
            pkey: parameters.pkey,
        };
        let remote = Remote {
            mac: dest_mac,
            ip: parameters.remote,
            qpn: parameters.dest_qpn.get(),
            send_psn: parameters.send_psn.get(),
            receive_psn: parameters.expected_psn.get(),
        };
        let connected = driver.set_path(qp, &path).and_then(|()| driver.connect_qp(qp, &remote));
        connected.map_err(|error| error.to_string())
    }

    fn fail(&mut self, driver: &mut Ernic<P>, qpn: Qpn) -> bool {
        // Where the device does not come to rest, whoever destroys the queue pair hears of it.
        let qp = number(qpn);
        driver.is_connected(qp) == Ok(true) && {
            let _ = driver.flush_qp(qp);
            true
        }
    }

    fn has_received(&mut self, driver: &mut Ernic<P>, qpn: Qpn) -> bool {
        driver.read_qp(number(qpn), STATRQPIDB) & 0xFFFF != 0
    }
}

/// The device's number of a queue pair; beyond its range one that it does not have.
fn number(qpn: Qpn) -> QpNumber {
    QpNumber::new(u16::try_from(qpn.get()).unwrap_or(u16::MAX))
}

/// A path MTU in the driver's words.
pub(crate) const fn driver_mtu(mtu: PathMtu) -> DriverMtu {
    match mtu {
        PathMtu::M256 => DriverMtu::Mtu256,
        PathMtu::M512 => DriverMtu::Mtu512,
        PathMtu::M1024 => DriverMtu::Mtu1024,
        PathMtu::M2048 => DriverMtu::Mtu2048,
        PathMtu::M4096 => DriverMtu::Mtu4096,
    }
}
