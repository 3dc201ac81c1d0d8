//! State of a module that is more than a number, for one step of a call at a time.
//!
//! Commands run one at a time, so nobody ever waits for anybody. That is not taken for granted: who comes while the state
//! is in use goes without. It costs a fraction of what a lock does that others could wait for.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value for one user at a time.
pub struct Exclusive<T> {
    in_use: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` hands the value to one user at a time, whatever thread it is on.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub const fn new(value: T) -> Self {
        Self { in_use: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Does something with the value; `None` if it is in use. A panic gives it back as it is then.
    #[inline(always)]
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.in_use.swap(true, Ordering::Acquire) {
            return None;
        }
        let _back = GiveBack(&self.in_use);
        // SAFETY: the flag was not set and is until the body is done, so there is no other reference.
        Some(body(unsafe { &mut *self.value.get() }))
    }
}

/// Says that a value is not in use any more, also when a panic takes this.
struct GiveBack<'a>(&'a AtomicBool);

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::Exclusive;

    #[test]
    fn one_at_a_time_has_the_value() {
        let value = Exclusive::new(1);
        assert_eq!(value.with(|inner| value.with(|_| ()).is_none() && *inner == 1), Some(true));
        assert_eq!(value.with(|inner| *inner += 1), Some(()));
        assert!(catch_unwind(AssertUnwindSafe(|| value.with(|_| panic!("in use")))).is_err());
        assert_eq!(value.with(|inner| *inner), Some(2), "a panic gives it back");
    }
}
