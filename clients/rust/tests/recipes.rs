//! The recipe of docs/OUTBOUND.md in Rust: it compiles as it stands there.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use redis_rl_client::{Limiter, Rule, Sliding};

/// Starts a call, such as `client.get(url).send()` of reqwest, when its turn has come.
async fn limited<T>(limiter: &Limiter, quota: &Sliding, call: impl Future<Output = T>) -> Result<T, Box<dyn Error>> {
    let turn = limiter.wait("calls", quota, Duration::from_secs(60)).await?;
    if !turn.allowed {
        return Err(format!("no turn within a minute, but in {:?}", turn.retry_after).into());
    }
    Ok(call.await)
}

#[tokio::test]
async fn the_page_shows_it() -> Result<(), Box<dyn Error>> {
    let page = include_str!("../../../docs/OUTBOUND.md");
    let recipe = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    assert!(include_str!("recipes.rs").contains(recipe.expect("a recipe")));
    let limiter = Limiter::open("redis://127.0.0.1:1/")?;
    let quota = Rule::sliding("95/second")?;
    drop(limited(&limiter, &quota, async { 5 }));
    Ok(())
}
