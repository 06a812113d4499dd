//! A region of an ERNIC and a queue pair's work on it, by its driver: what endpoints of an ERNIC have in common. It
//! knows neither how the queue pair is connected nor who owns the driver.

use std::collections::VecDeque;
use std::net::IpAddr;

use softrnic_driver::{
    Completion, DmaBuffer, Ernic, Local as LocalBytes, Opcode, Platform, QpConfig, QpNumber,
    QpStatus, Region, RegionAccess, RegionConfig, Request,
};
use softrnic_engine::Qpn;

use super::{Done, EndpointError, Op, Transfer, connection};

/// Protection domain of the region and the queue pair.
const PD: u32 = 1;
/// Requests and receives that can wait.
pub(super) const DEPTH: u16 = 16;
/// Low byte of the region's key.
const KEY: u8 = 0x5A;
/// AETH syndromes of NAKs that end a queue pair (IBTA vol 1, table 47).
const NAK_INVALID_REQUEST: u8 = 0x61;
const NAK_REMOTE_ACCESS: u8 = 0x62;
const NAK_REMOTE_OPERATION: u8 = 0x63;

/// A region and, once there is one, its queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    memory: DmaBuffer,
    region: Region,
    receive_max: u32,
    qp: Option<QpNumber>,
    /// For people.
    pub(super) peer: Option<(IpAddr, Qpn)>,
    /// Where the messages of posted receives go.
    receives: VecDeque<(u64, u32)>,
    posted: u16,
}

impl Pair {
    /// A region of `len` bytes, for receives of at most `receive_max`.
    pub(super) fn new<P: Platform>(
        driver: &mut Ernic<P>,
        len: usize,
        receive_max: u32,
    ) -> Result<Self, EndpointError> {
        let memory = driver.dma_alloc("region", len).map_err(EndpointError::new)?;
        let config = RegionConfig {
            pd: PD,
            va: memory.bus,
            bus: memory.bus,
            len: len as u64,
            access: RegionAccess::ReadWrite,
            key: KEY,
        };
        let region = driver.register_region(&config).map_err(|error| {
            driver.platform_mut().dma_free(memory);
            EndpointError::new(error)
        })?;
        let receives = VecDeque::new();
        Ok(Self { memory, region, receive_max, qp: None, peer: None, receives, posted: 0 })
    }

    /// What a queue pair of this kind is created with.
    pub(super) fn config(&self) -> Result<QpConfig, EndpointError> {
        Ok(QpConfig {
            sq_depth: DEPTH,
            rq_depth: DEPTH,
            rq_element_len: element_len(self.receive_max)?,
            pd: PD,
            rnr_timer: 12,
            ..QpConfig::default()
        })
    }

    /// A new queue pair in the place of the old one.
    pub(super) fn create<P: Platform>(
        &mut self,
        driver: &mut Ernic<P>,
        config: &QpConfig,
    ) -> Result<QpNumber, EndpointError> {
        if let Some(old) = self.qp.take() {
            driver.destroy_qp(old).map_err(EndpointError::new)?;
            self.receives.clear();
        }
        let qp = driver.create_qp(config).map_err(EndpointError::new)?;
        self.qp = Some(qp);
        Ok(qp)
    }

    /// Gives everything back to the device and its platform.
    ///
    /// # Errors
    /// The device does not come to rest; queue pair and memory stay as they are.
    pub(super) fn destroy<P: Platform>(
        &mut self,
        driver: &mut Ernic<P>,
    ) -> Result<(), EndpointError> {
        if let Some(qp) = self.qp {
            driver.destroy_qp(qp).map_err(EndpointError::new)?;
            self.qp = None;
        }
        driver.deregister_region(self.region).map_err(EndpointError::new)?;
        driver.platform_mut().dma_free(self.memory);
        Ok(())
    }

    /// First virtual address of the region, and its key for peers.
    pub(super) const fn region(&self) -> (u64, u32) {
        (self.region.va, self.region.rkey)
    }

    /// Number of the queue pair.
    pub(super) fn qpn(&self) -> Result<Qpn, EndpointError> {
        Ok(Qpn::new(self.qp()?.get().into()))
    }

    fn qp(&self) -> Result<QpNumber, EndpointError> {
        self.qp.ok_or_else(|| EndpointError::new("the queue pair is not connected"))
    }

    /// Both ends, for people.
    pub(super) fn name(&self) -> String {
        match self.qp {
            Some(qp) => connection(qp, self.peer),
            None => "a queue pair that is not connected".to_owned(),
        }
    }

    fn at(&self, offset: u64, len: u64) -> Result<u64, EndpointError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.memory.len as u64 => Ok(self.memory.bus + offset),
            _ => Err(EndpointError::new(format!(
                "{len} bytes at {offset} are not in the region of {} bytes",
                self.memory.len
            ))),
        }
    }

    pub(super) fn write<P: Platform>(
        &self,
        driver: &mut Ernic<P>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), EndpointError> {
        let at = self.at(offset, bytes.len() as u64)?;
        driver.platform_mut().dma_write(at, bytes).map_err(EndpointError::new)
    }

    pub(super) fn read<P: Platform>(
        &self,
        driver: &mut Ernic<P>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), EndpointError> {
        let at = self.at(offset, out.len() as u64)?;
        driver.platform_mut().dma_read(at, out).map_err(EndpointError::new)
    }

    pub(super) fn post_receive(&mut self, offset: u64, len: u32) -> Result<(), EndpointError> {
        self.at(offset, len.into())?;
        if len > self.receive_max {
            return Err(EndpointError::new(format!(
                "a receive of {len} bytes; this endpoint was made for {}",
                self.receive_max
            )));
        }
        self.receives.push_back((offset, len));
        Ok(())
    }

    pub(super) fn post<P: Platform>(
        &mut self,
        driver: &mut Ernic<P>,
        transfer: &Transfer,
    ) -> Result<(), EndpointError> {
        let qp = self.qp()?;
        let address = self.at(transfer.offset, transfer.len.into())?;
        let local = LocalBytes::Bus { address, len: transfer.len };
        let (opcode, immediate) = match transfer.op {
            Op::Send => (Opcode::Send, 0),
            Op::Write => (Opcode::Write, 0),
            Op::WriteImm(immediate) => (Opcode::WriteImm, immediate),
            Op::Read => (Opcode::Read, 0),
            Op::FetchAdd(_) | Op::CompareSwap { .. } => {
                return Err(EndpointError::new("ERNIC has no atomics"));
            }
        };
        let request = Request {
            wrid: self.posted,
            opcode,
            local,
            remote_va: transfer.remote_va,
            rkey: transfer.rkey,
            immediate,
        };
        self.posted = self.posted.wrapping_add(1);
        driver.post(qp, &request).map_err(EndpointError::new)?;
        driver.ring(qp).map_err(EndpointError::new)
    }

    /// What ended, if something did. A message waits in the queue until a receive is posted for it.
    pub(super) fn poll<P: Platform>(
        &mut self,
        driver: &mut Ernic<P>,
    ) -> Result<Option<Done>, EndpointError> {
        let qp = self.qp()?;
        let mut done = [Completion::default()];
        if driver.poll_completions(qp, &mut done).map_err(EndpointError::new)? == 1 {
            return if done[0].failed {
                self.failed(driver).map(Some)
            } else {
                Ok(Some(Done::Request))
            };
        }
        let Some(&(offset, len)) = self.receives.front() else { return Ok(None) };
        let Some(received) = driver.poll_receive(qp).map_err(EndpointError::new)? else {
            return Ok(None);
        };
        self.receives.pop_front();
        let mut bytes = vec![0; len.min(received.len_max) as usize];
        let platform = driver.platform_mut();
        platform.dma_read(received.bus, &mut bytes).map_err(EndpointError::new)?;
        platform.dma_write(self.memory.bus + offset, &bytes).map_err(EndpointError::new)?;
        driver.release_receive(qp, 1).map_err(EndpointError::new)?;
        Ok(Some(Done::Receive { len: None, immediate: None }))
    }

    /// What made the queue pair fatal, if it is: a peer's bad request does so without a completion.
    pub(super) fn fatal<P: Platform>(
        &self,
        driver: &mut Ernic<P>,
    ) -> Result<Option<Done>, EndpointError> {
        let status = driver.status(self.qp()?).map_err(EndpointError::new)?;
        if status.is_fatal() { self.failed(driver).map(Some) } else { Ok(None) }
    }

    /// In words, from the queue pair's status registers.
    fn failed<P: Platform>(&self, driver: &mut Ernic<P>) -> Result<Done, EndpointError> {
        let qp = self.qp()?;
        let status = driver.status(qp).map_err(EndpointError::new)?;
        let what = format!(
            "{}: STATQP is {:#010x} (`rnic explain STATQP={:#x}` says what that means)",
            self.name(),
            status.statqp,
            status.statqp
        );
        Ok(Done::Failed { status: name_of(&status), what })
    }
}

/// A status as the native face names it, as far as registers tell.
const fn name_of(status: &QpStatus) -> &'static str {
    match status.nak_syndrome() {
        _ if !status.is_fatal() => "flushed",
        NAK_INVALID_REQUEST => "remote-invalid-request",
        NAK_REMOTE_ACCESS => "remote-access-error",
        NAK_REMOTE_OPERATION => "remote-operation-error",
        _ if status.rnr_retry_count() > 0 => "rnr-retry-exceeded",
        _ if status.retry_count() > 0 || status.was_retried() => "retry-exceeded",
        _ => "general-error",
    }
}

/// Bytes of a receive element for messages of this length.
pub(super) fn element_len(receive_max: u32) -> Result<u32, EndpointError> {
    let len = receive_max.max(256).checked_next_power_of_two();
    len.filter(|len| *len <= 8 << 20).ok_or_else(|| {
        EndpointError::new(format!("ERNIC receives at most 8 MiB, not {receive_max} bytes"))
    })
}
