//! Nothing is allocated per message: after a warm-up, 10,000 messages of each kind pass between two
//! network interfaces without one call of the allocator, on either face.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

mod ernic;
mod native;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting calls of the thread that makes them.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Fails only while the thread ends, when nobody asks for the number any more.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every method hands its arguments to `System` unchanged and returns what that returns, so
// the contract of `GlobalAlloc` holds as it does there. The counter is a `Cell` without destructor
// and with a constant start, so that touching it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator by this thread so far.
fn calls() -> u64 {
    CALLS.with(Cell::get)
}
