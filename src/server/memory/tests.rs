use std::alloc::System;

use super::*;

/// Gives memory that is aligned to 8 bytes and never to 16.
struct Odd;

// SAFETY: a piece is 8 bytes into one of the system's that is 16 bytes larger.
unsafe impl GlobalAlloc for Odd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not 0, and the place lies within.
        unsafe { System.alloc(Layout::from_size_align(layout.size() + 16, 16).unwrap()).add(8) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as `alloc` has asked for it.
        unsafe { System.dealloc(place.sub(8), Layout::from_size_align(layout.size() + 16, 16).unwrap()) }
    }
}

#[test]
fn every_piece_is_aligned_and_whole() {
    let memory = Aligned(Odd);
    let mut pieces = Vec::new();
    for align in [1, 2, 8, 16, 32, 4096] {
        for size in [1, 7, 8, 16, 24, 100, 5_000] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the size is not 0.
            let place = unsafe { memory.alloc(layout) };
            assert_eq!(place.addr() % align.max(16), 0);
            // SAFETY: the piece has this size.
            unsafe { place.write_bytes(pieces.len() as u8, size) };
            pieces.push((place, layout));
        }
    }
    for (number, (place, layout)) in pieces.into_iter().enumerate() {
        // SAFETY: the piece is ours, and larger by its own size from then on.
        unsafe {
            let larger = memory.realloc(place, layout, 2 * layout.size());
            let bytes = std::slice::from_raw_parts(larger, layout.size());
            assert!(bytes.iter().all(|&byte| byte == number as u8), "another piece lies over it");
            memory.dealloc(larger, Layout::from_size_align(2 * layout.size(), layout.align()).unwrap());
        }
    }
}

#[test]
fn a_size_that_overflows_is_refused() {
    let layout = Layout::from_size_align(isize::MAX as usize - 15, 16).unwrap();
    // SAFETY: the size is not 0.
    assert!(unsafe { Aligned(System).alloc(layout) }.is_null());
}
