//! Plays random worlds from one seed on, on all cores, and stops at the first that fails: what
//! `rnic run --campaign` does, without all that it needs besides. For `e2e/mutants/campaign`.
//!
//!     cargo run -p softrnic-sim --example worlds -- FIRST COUNT
//!
//! Prints the first seed that fails and what it shows; status 1 then, 2 where the arguments are wrong.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use softrnic_sim::campaign::{random_plan, trial};

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|arg| arg.parse().ok()).collect();
    let Some([first, count]) = numbers.as_deref() else {
        eprintln!("wanted: the first seed, and how many");
        return ExitCode::from(2);
    };
    let (next, end) = (AtomicU64::new(*first), first.saturating_add(*count));
    let failed = Mutex::new(None::<(u64, String)>);
    let play = || {
        // Seeds are taken in order: all below one that fails are played, too.
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end || failed.lock().is_ok_and(|failed| failed.is_some()) {
                return;
            }
            let Some(found) = trial(&random_plan(seed)).violations.into_iter().next() else {
                continue;
            };
            if let Ok(mut failed) = failed.lock()
                && failed.as_ref().is_none_or(|(before, _)| seed < *before)
            {
                *failed = Some((seed, format!("{}: {}", found.invariant, found.text)));
            }
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| {
            scope.spawn(play);
        });
    });
    match failed.into_inner() {
        Ok(None) => {
            println!("{count} worlds from seed {first} on: none fails");
            ExitCode::SUCCESS
        }
        Ok(Some((seed, text))) => {
            println!("seed {seed}: {text}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::from(2),
    }
}
