//! The global allocator that lets the virtual device see tensor memory.
//!
//! candle keeps a CPU tensor in a `Vec` of its element type, and a `Vec` asks the global allocator. Only alignments 2
//! and 4 (bf16, f16, f32, u32) are looked at: 16 and more are gemm's packing scratch and hash tables, whose sizes do
//! not follow the batch. The system's allocator does the work; nothing is ever refused, since a null pointer would
//! abort the process and a panic here would be undefined behaviour.
//!
//! The library does not declare it, as a user's binary may have its own: a binary does, by
//! [`declare_allocator!`](crate::declare_allocator).

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

use super::recorder;
use crate::trial::exit_status;

/// Whether the system ever refused memory to this process.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The system's allocator with the virtual device's hook in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorAllocator;

/// Has this process leave with [`exit_status::HOST_OUT_OF_MEMORY`] where it would abort for want of memory.
///
/// What asked in vain may do without, as a decoder does of an image that cannot be; so a refusal alone is no reason to
/// leave. A `Vec` cannot, and aborts: SIGABRT, which others raise too, is taken for it once memory was refused.
pub fn leave_where_memory_is_refused() -> io::Result<()> {
    signal_hook::flag::register_conditional_shutdown(Signal::SIGABRT as i32, exit_status::HOST_OUT_OF_MEMORY, &REFUSED)
        .map(|_| ())
}

/// Notes whether the system refused.
fn noted(pointer: *mut u8) -> *mut u8 {
    if pointer.is_null() {
        REFUSED.store(true, Ordering::SeqCst);
    }
    pointer
}

/// Whether memory of this layout can be a tensor's.
fn is_tensor(layout: Layout) -> bool {
    matches!(layout.align(), 2 | 4)
}

// SAFETY: every call is passed to the system's allocator unchanged, and its answer is returned unchanged. The hook only
// reads the address as a number; it does not unwind, and passes its own allocations through unseen.
unsafe impl GlobalAlloc for TensorAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's.
        let pointer = noted(unsafe { System.alloc(layout) });
        if recorder::is_watching() && is_tensor(layout) && !pointer.is_null() {
            recorder::allocated(pointer.addr(), layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's.
        let pointer = noted(unsafe { System.alloc_zeroed(layout) });
        if recorder::is_watching() && is_tensor(layout) && !pointer.is_null() {
            recorder::allocated(pointer.addr(), layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if recorder::is_watching() && is_tensor(layout) {
            recorder::freed(pointer.addr());
        }
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let watched = recorder::is_watching() && is_tensor(layout);
        // Forgotten before the move: afterwards another thread may own the old address.
        let before = if watched { recorder::reallocating(pointer.addr()) } else { None };
        // SAFETY: the caller's promises are the system allocator's.
        let moved = noted(unsafe { System.realloc(pointer, layout, new_size) });
        if watched {
            if moved.is_null() {
                recorder::not_reallocated(pointer.addr(), before);
            } else {
                recorder::reallocated(moved.addr(), new_size, before);
            }
        }
        moved
    }
}

/// Whether this binary's global allocator is a [`TensorAllocator`], found by making an allocation.
pub fn installed() -> bool {
    recorder::probe(|| drop(black_box(Vec::<u32>::with_capacity(black_box(1)))))
}
