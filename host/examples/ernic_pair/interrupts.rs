//! Completions and messages by interrupt: sleep, take the causes, poll, unmask. What came after the causes were
//! taken has raised the line again, so that an interrupt may also come for what was polled already.

use std::time::{Duration, Instant};

use softrnic_driver::{Completion, Interrupts, Local, Request};
use softrnic_host::assigned::MsixVector;
use softrnic_host::pci::PciError;
use softrnic_host::uio::UioInterrupt;

use crate::{END, Failure, Node, report, say};

/// In the stream: messages for each round, in flight, and to a doorbell. Completions come while others are taken.
const STREAM: u32 = 8;
const WINDOW: u32 = 32;
const BATCH: u32 = 4;
const MESSAGE: &[u8] = b"sixteen bytes ..";
/// How long an interrupt may take. The other side may not be up yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the device tells that something has happened.
pub enum Line {
    /// A level, masked by the kernel when it fires.
    Intx(UioInterrupt),
    /// A message for each rise.
    Msix(MsixVector),
}

impl Line {
    fn unmask(&mut self) -> Result<(), PciError> {
        match self {
            Self::Intx(line) => line.unmask(),
            Self::Msix(_) => Ok(()),
        }
    }

    /// Whether it came in time.
    fn wait(&mut self, timeout: Duration) -> Result<bool, PciError> {
        Ok(match self {
            Self::Intx(line) => line.wait(timeout)?.is_some(),
            Self::Msix(vector) => vector.wait(timeout)?.is_some(),
        })
    }
}

impl Node {
    /// SENDs one by one, then a stream of them, and sleeps until there are completions. The last one ends the other
    /// side, as that of `measure` does.
    pub fn interrupts(&mut self, line: &mut Line, rounds: u32) -> Result<(), Failure> {
        line.unmask()?;
        let mut interrupts = 0;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            self.post(1, MESSAGE)?;
            while self.completions_by_interrupt(line)? == 0 {
                interrupts += 1;
            }
            times.push(start.elapsed());
            interrupts += 1;
        }
        report("SEND of 16 bytes, doorbell to completion by interrupt", &mut times)?;
        let (total, mut posted, mut done) = (rounds * STREAM, 0, 0);
        while done < total {
            while posted < total && posted - done + BATCH <= WINDOW {
                let count = BATCH.min(total - posted);
                self.post(count, MESSAGE)?;
                posted += count;
            }
            done += self.completions_by_interrupt(line)?;
            interrupts += 1;
        }
        self.post(1, END)?;
        while self.completions_by_interrupt(line)? == 0 {
            interrupts += 1;
        }
        interrupts += 1;
        let sent = rounds + total + 1;
        say(&format!("{sent} completions by {interrupts} interrupts, none lost"))
    }

    /// Posts equal SENDs and rings the doorbell.
    fn post(&mut self, count: u32, bytes: &[u8]) -> Result<(), Failure> {
        for _ in 0..count {
            self.ernic.post(self.qp, &Request::send(1, Local::Inline(bytes)))?;
        }
        Ok(self.ernic.ring(self.qp)?)
    }

    /// Sleeps until an interrupt, and takes what there is.
    fn completions_by_interrupt(&mut self, line: &mut Line) -> Result<u32, Failure> {
        self.sleep(line, "completion")?;
        let taken = self.ernic.take_interrupts()?;
        if !taken.completions().any(|qp| qp == self.qp) {
            return Err(format!("an interrupt without completion: {taken:?}").into());
        }
        let count = self.take_completions()?;
        line.unmask()?;
        Ok(count)
    }

    /// Takes what `interrupts` or `measure` sends on the other side, by interrupt.
    pub fn listen(&mut self, line: &mut Line) -> Result<(), Failure> {
        line.unmask()?;
        let (mut fired, mut messages) = (0, 0);
        loop {
            self.sleep(line, "message")?;
            fired += 1;
            let taken = self.ernic.take_interrupts()?;
            if taken.status & Interrupts::RECEIVE == 0 {
                return Err(format!("an interrupt without message: {taken:?}").into());
            }
            while let Some(message) = self.ernic.poll_receive(self.qp)? {
                messages += 1;
                let end = self.get(message.bus, END.len())? == END;
                self.ernic.release_receive(self.qp, 1)?;
                if end {
                    return say(&format!("{messages} messages by {fired} interrupts, none lost"));
                }
            }
            line.unmask()?;
        }
    }

    fn take_completions(&mut self) -> Result<u32, Failure> {
        let mut done = [Completion::default(); WINDOW as usize];
        let mut total = 0;
        loop {
            let count = self.ernic.poll_completions(self.qp, &mut done)?;
            if done[..count].iter().any(|completion| completion.failed) {
                return Err("a SEND failed".into());
            }
            total += count as u32;
            if count < done.len() {
                return Ok(total);
            }
        }
    }

    fn sleep(&mut self, line: &mut Line, what: &str) -> Result<(), Failure> {
        if line.wait(PATIENCE)? {
            return Ok(());
        }
        let there = self.take_completions()? > 0 || self.ernic.poll_receive(self.qp)?.is_some();
        let lost = if there { "it is there: its interrupt is lost" } else { "nothing is there" };
        Err(format!("no interrupt for a {what} in {PATIENCE:?}, and {lost}").into())
    }
}
