//! Memory aligned to at least 16 bytes, from an allocator that aligns to 8.
//!
//! A server that is built against musl without jemalloc notes the length of each piece of memory in the 8 bytes in front of
//! it. The unwinder takes the exception that a panic throws to be aligned to 16, as what other allocators give is, and the
//! processor stops it where that is not so. Each piece is larger by its alignment here, and remembers where it begins.

use std::alloc::{GlobalAlloc, Layout};

const LEAST: usize = 16;

/// An allocator over one whose memory is aligned to 8 bytes.
pub struct Aligned<A>(pub A);

/// What is requested of the allocator below. `None` if the size would overflow.
fn whole(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(alignment(layout))?;
    Layout::from_size_align(size, align_of::<*mut u8>()).ok()
}

fn alignment(layout: Layout) -> usize {
    layout.align().max(LEAST)
}

// SAFETY: what `alloc` returns lies within a piece of the allocator below, has the alignment and the size of the layout, and no
// two such places overlap; `dealloc` gives the piece back with the layout of its allocation.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Aligned<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = whole(layout) else { return std::ptr::null_mut() };
        // SAFETY: the size is at least that of an alignment, so not 0.
        let piece = unsafe { self.0.alloc(whole) };
        if piece.is_null() {
            return piece;
        }
        // At least a pointer, since the piece is aligned to one; at most the alignment, so that the size fits after it.
        let gap = alignment(layout) - piece.addr() % alignment(layout);
        // SAFETY: see above.
        unsafe {
            let place = piece.add(gap);
            place.cast::<*mut u8>().sub(1).write(piece);
            place
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // `alloc` has succeeded with this layout, so there is one.
        let Some(whole) = whole(layout) else { return };
        // SAFETY: `alloc` has handed out the place, with the beginning of its piece in front of it.
        unsafe { self.0.dealloc(place.cast::<*mut u8>().sub(1).read(), whole) }
    }
}

#[cfg(test)]
mod tests {
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
}
