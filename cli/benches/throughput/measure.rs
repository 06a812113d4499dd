//! Windows of thread CPU time, interleaved between subjects; the minimum counts.

use rustix::time::{ClockId, clock_gettime};

/// Windows per subject.
const WINDOWS: usize = 300;
/// Length of a window that is aimed at, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000;

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// A subject: runs its operation as many times as it is told.
pub(crate) type Subject<'a> = &'a mut dyn FnMut(u64);

/// Nanoseconds per operation of each subject: the minimum over interleaved windows.
pub(crate) fn minimum_ns<const N: usize>(mut subjects: [Subject<'_>; N]) -> [f64; N] {
    let rounds = subjects.each_mut().map(calibrate);
    let mut best = [f64::INFINITY; N];
    for _ in 0..WINDOWS {
        for ((subject, rounds), best) in subjects.iter_mut().zip(rounds).zip(&mut best) {
            let start = thread_cpu_ns();
            subject(rounds);
            let ns = (thread_cpu_ns() - start) as f64 / rounds as f64;
            *best = best.min(ns);
        }
    }
    best
}

/// How many operations fill a window.
fn calibrate(subject: &mut Subject<'_>) -> u64 {
    let mut rounds = 1;
    loop {
        let start = thread_cpu_ns();
        subject(rounds);
        let ns = thread_cpu_ns() - start;
        if ns >= WINDOW_NS / 2 {
            return (rounds * WINDOW_NS / ns.max(1)).max(1);
        }
        rounds *= 2;
    }
}
