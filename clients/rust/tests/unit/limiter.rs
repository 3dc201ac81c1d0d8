use super::*;

#[tokio::test(start_paused = true)]
async fn what_has_arrived_is_read_before_a_call_is_given_up() {
    let deadline = Instant::now() + Duration::from_secs(1);
    let (reply, arrived) = tokio::sync::oneshot::channel();
    // As the task that reads replies, which gets its turn late.
    tokio::spawn(async move {
        tokio::time::sleep_until(deadline).await;
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        reply.send(7)
    });
    assert_eq!(within(Some(deadline), arrived).await, Some(Ok(7)));
    let started = Instant::now();
    let deadline = started + Duration::from_secs(1);
    assert_eq!(within(Some(deadline), std::future::pending::<()>()).await, None);
    assert_eq!(started.elapsed().as_secs(), 1);
}
