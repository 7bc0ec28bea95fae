// SPDX-License-Identifier: Apache-2.0
//! Runs a piece of work on a deep stack that the calling thread keeps from one call to the next.
//!
//! Not a thread of its own, for a chat is rendered in some 10 us: starting a thread takes five times as long, and one
//! that is kept would wait for its turn where all CPUs compute. Here the stack pointer moves, and that is all.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::ptr;

use crate::{Failure, Outcome, guarded};

/// Only what is used of it becomes memory.
const STACK_BYTES: usize = 512 << 20;
/// Of that memory, what a thread keeps; more than ordinary work needs.
const KEPT_BYTES: usize = 256 << 10;
/// At the lower end; whole pages on every kernel.
const GUARD_BYTES: usize = 64 << 10;

thread_local! {
    static KEPT: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// A panic of `body` becomes an error that begins with `what`, as in [`guarded`].
pub fn on_deep_stack<T>(what: &str, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // Taken out while it is in use: a call within a call would get one of its own.
    let stack = match KEPT.take() {
        Some(stack) => stack,
        None => Stack::map()?,
    };
    let outcome = stack.run(|| guarded(what, body));
    stack.give_memory_back();
    KEPT.set(Some(stack));
    outcome
}

struct Stack {
    lowest: *mut c_void,
}

impl Stack {
    fn map() -> Outcome<Stack> {
        let failed = |what: &str| {
            let error = io::Error::last_os_error();
            Failure::Internal(format!("{what} a stack of {} MiB: {error}", STACK_BYTES >> 20))
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a mapping of its own, wherever there is room.
        let lowest = unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, access, kind, -1, 0) };
        if lowest == libc::MAP_FAILED {
            return Err(failed("no address space for"));
        }
        let stack = Stack { lowest };
        // SAFETY: within the mapping, which nothing uses yet.
        unsafe {
            if libc::mprotect(lowest, GUARD_BYTES, libc::PROT_NONE) != 0 {
                return Err(failed("no guard page for"));
            }
            // The first page that is touched should not become 2 MiB. A kernel without huge pages says no, and is right.
            libc::madvise(lowest, STACK_BYTES, libc::MADV_NOHUGEPAGE);
        }
        Ok(stack)
    }

    /// `body` must not panic.
    fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        // SAFETY: a mapping of STACK_BYTES, aligned to pages, that nobody else uses now.
        unsafe { psm::on_stack(self.lowest.cast(), STACK_BYTES, body) }
    }

    fn give_memory_back(&self) {
        // SAFETY: within the mapping, below all that lives: nothing runs on this stack now.
        unsafe {
            let begin = self.lowest.cast::<u8>().add(GUARD_BYTES);
            libc::madvise(begin.cast(), STACK_BYTES - GUARD_BYTES - KEPT_BYTES, libc::MADV_DONTNEED);
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: made by map(), used by nobody any more.
        unsafe { libc::munmap(self.lowest, STACK_BYTES) };
    }
}
