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

use super::recorder;

/// The system's allocator with the virtual device's hook in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorAllocator;

/// Whether memory of this layout can be a tensor's.
fn is_tensor(layout: Layout) -> bool {
    matches!(layout.align(), 2 | 4)
}

// SAFETY: every call is passed to the system's allocator unchanged, and its answer is returned unchanged. The hook only
// reads the address as a number; it does not unwind, and passes its own allocations through unseen.
unsafe impl GlobalAlloc for TensorAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's.
        let pointer = unsafe { System.alloc(layout) };
        if recorder::is_watching() && is_tensor(layout) && !pointer.is_null() {
            recorder::allocated(pointer.addr(), layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's.
        let pointer = unsafe { System.alloc_zeroed(layout) };
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
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
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
