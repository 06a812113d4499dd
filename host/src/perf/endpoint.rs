//! Any endpoint as a device under test: one reliable connection whose requests all report. ERNIC comes this way.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use softrnic_engine::Service;

use super::PerfError;
use super::rig::{Ended, Limits, Request, Rig, Verb};
use crate::endpoint::{Done, Endpoint, Local, Op, Remote, Transfer};

/// Requests and receives that endpoints take (`DEPTH` of theirs), less one that may be ending.
const DEPTH: u32 = 15;

/// An endpoint.
pub struct EndpointRig<'a> {
    endpoint: &'a mut dyn Endpoint,
    local: Local,
    ipv6: bool,
    /// How many requests each that is in flight ends, 0 for none.
    signals: VecDeque<u32>,
}

impl std::fmt::Debug for EndpointRig<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointRig").field("local", &self.local).finish_non_exhaustive()
    }
}

impl<'a> EndpointRig<'a> {
    /// Over an endpoint that is not connected.
    ///
    /// # Errors
    /// Its port has no address.
    pub fn new(endpoint: &'a mut dyn Endpoint) -> Result<Self, PerfError> {
        let ipv6 = endpoint.local(false).is_err();
        let local = endpoint.local(ipv6)?;
        Ok(Self { endpoint, local, ipv6, signals: VecDeque::new() })
    }
}

impl Rig for EndpointRig<'_> {
    fn limits(&self) -> Limits {
        let ability = self.endpoint.ability();
        Limits {
            send_depth: DEPTH,
            recv_depth: DEPTH,
            rd_atomic: ability.rd_atomic_max,
            granularity: ability.granularity,
            service: Service::Rc,
        }
    }

    fn address(&self, ipv6: bool) -> Result<IpAddr, PerfError> {
        if ipv6 == self.ipv6 {
            return Ok(self.local.ip);
        }
        Ok(self.endpoint.local(ipv6)?.ip)
    }

    fn qpn(&self, _: usize) -> u32 {
        self.local.qpn.get()
    }

    fn region(&self) -> (u64, u32) {
        (self.local.va, self.local.rkey)
    }

    fn connect(&mut self, _: usize, remote: &Remote) -> Result<(), PerfError> {
        Ok(self.endpoint.connect(remote)?)
    }

    fn post_receive(&mut self, _: usize, offset: u64, len: u32) -> Result<(), PerfError> {
        Ok(self.endpoint.post_receive(offset, len)?)
    }

    fn post(&mut self, _: usize, request: &Request, signals: &[u32]) -> Result<(), PerfError> {
        let Request { verb, offset, len, remote_va, rkey } = *request;
        let op = match verb {
            Verb::Send => Op::Send,
            Verb::Write => Op::Write,
            Verb::Read => Op::Read,
            Verb::Atomic => Op::FetchAdd(1),
        };
        for &signal in signals {
            self.endpoint.post(&Transfer { op, offset, len, remote_va, rkey })?;
            self.signals.push_back(signal);
        }
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Ended>, timeout: Duration) -> Result<(), PerfError> {
        match self.endpoint.wait(timeout)? {
            None => {}
            Some(Done::Receive { .. }) => ended.push(Ended { qp: 0, receive: true, count: 1 }),
            Some(Done::Request) => {
                let count = self.signals.pop_front().unwrap_or(0);
                if count > 0 {
                    ended.push(Ended { qp: 0, receive: false, count });
                }
            }
            Some(Done::Failed { status, what }) => {
                return Err(PerfError::Failed(format!("{status}: {what}")));
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PerfError> {
        Ok(self.endpoint.write(offset, bytes)?)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), PerfError> {
        Ok(self.endpoint.read(offset, out)?)
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}
