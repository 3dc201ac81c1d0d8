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
mod tests;
