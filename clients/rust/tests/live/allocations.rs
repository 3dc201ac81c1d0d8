//! What a call allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use redis_rl_client::{Limiter, Rule};

use crate::support::{Has, Server};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// On a connection of the limiter's own; about half of these are the client library's.
#[tokio::test]
async fn a_call_allocates_little() {
    let server = Server::start(Has::Module).await;
    for (protocol, limit) in [("resp2", 1_000_000), ("resp3", 1_000_000), ("resp3", 1)] {
        let limiter = Limiter::open(&format!("{}?protocol={protocol}", server.url())).unwrap();
        let limiter = limiter.with_timeout(Duration::from_secs(60));
        let rate = format!("{limit}/hour");
        let rules: [Rule; 3] = [
            Rule::sliding(&rate).unwrap().name("name").unwrap().into(),
            Rule::fixed(&rate).unwrap().into(),
            Rule::throttle(&rate).unwrap().into(),
        ];
        for (number, rule) in rules.iter().enumerate() {
            let key = format!("{protocol}:{limit}:{number}");
            let _ = limiter.hit(&key, rule).await.unwrap();
            let before = ALLOCATIONS.get();
            for _ in 0..100 {
                assert_eq!(limiter.hit(&key, rule).await.unwrap().allowed, limit > 1);
            }
            let each = (ALLOCATIONS.get() - before) / 100;
            assert!(each <= 12, "{each} for {rule:?} over {protocol}");
        }
    }
}
