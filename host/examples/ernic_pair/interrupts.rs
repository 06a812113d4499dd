//! Completions and messages by interrupt: sleep, take the causes, poll, unmask. What came after the causes were
//! taken has raised the line again, so that an interrupt may also come for what was polled already.

use std::time::{Duration, Instant};

use softrnic_driver::{Completion, Interrupts, Local, Request};
use softrnic_host::assigned::MsixVector;
use softrnic_host::pci::PciError;
use softrnic_host::uio::UioInterrupt;

use crate::{END, Failure, Node, report, say};

/// Every so many rounds have more than one message, so that completions and their interrupt cross.
const BATCH_EVERY: u32 = 4;
const BATCH: u32 = 16;
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
    /// SENDs, and sleeps until each is complete. The last of `measure` ends the other side here too.
    pub fn interrupts(&mut self, line: &mut Line, rounds: u32) -> Result<(), Failure> {
        line.unmask()?;
        let (mut fired, mut sent, mut early) = (0, 0, 0);
        let mut times = Vec::new();
        for round in 0..=rounds {
            let last = round == rounds;
            let batch = if round % BATCH_EVERY == BATCH_EVERY - 1 && !last { BATCH } else { 1 };
            let bytes = if last { END } else { b"sixteen bytes .." };
            for _ in 0..batch {
                self.ernic.post(self.qp, &Request::send(1, Local::Inline(bytes)))?;
            }
            let start = Instant::now();
            self.ernic.ring(self.qp)?;
            let mut done = 0;
            while done < batch {
                self.sleep(line, "completion")?;
                let time = start.elapsed();
                fired += 1;
                let taken = self.ernic.take_interrupts()?;
                if !taken.completions().any(|qp| qp == self.qp) {
                    return Err(format!("an interrupt without completion: {taken:?}").into());
                }
                let count = self.take_completions()?;
                line.unmask()?;
                if count == 0 {
                    early += 1;
                } else if batch == 1 {
                    times.push(time);
                }
                done += count;
            }
            sent += batch;
        }
        report("SEND of 16 bytes, doorbell to woken by its interrupt", &mut times)?;
        say(&format!(
            "{sent} completions by {fired} interrupts, {early} of them for what was taken before, none lost"
        ))
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
        let mut done = [Completion::default(); BATCH as usize];
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
