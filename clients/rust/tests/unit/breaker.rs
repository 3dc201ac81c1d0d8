use super::*;

fn breakers() -> Breakers {
    Breakers::new("test", "nowhere")
}

fn admits(breakers: &Breakers, slot: u16) -> bool {
    breakers.admit(slot).is_ok()
}

fn silence() -> Error {
    Error::ReplyLost(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
}

fn out_of_memory() -> Error {
    Error::Unavailable(redis::make_extension_error("OOM".to_owned(), None))
}

#[tokio::test(start_paused = true)]
async fn one_call_probes_when_the_pause_is_over() {
    let breakers = breakers();
    assert!(admits(&breakers, 0) && admits(&breakers, 255));
    breakers.failed(0, &silence());
    assert!(!admits(&breakers, 0) && !admits(&breakers, 255));
    // Nothing was sent.
    assert!(matches!(breakers.admit(0), Err(Error::Unavailable(_))));
    tokio::time::advance(PAUSE - Duration::from_millis(1)).await;
    assert!(!admits(&breakers, 0));
    for _ in 0..3 {
        tokio::time::advance(PAUSE).await;
        assert!(admits(&breakers, 0));
        assert!(!admits(&breakers, 0) && !breakers.are_closed());
    }
    breakers.answered(0, true);
    assert!(admits(&breakers, 0) && admits(&breakers, 0) && breakers.are_closed());
}

#[tokio::test(start_paused = true)]
async fn the_ranges_of_a_cluster_fail_one_by_one() {
    let breakers = breakers();
    breakers.failed(16383, &silence());
    assert!(!admits(&breakers, 16383) && !admits(&breakers, 16128));
    assert!(admits(&breakers, 16127) && admits(&breakers, 0));
    // The outage of one range is not over with an answer of another, until nobody asks there any more.
    breakers.answered(0, true);
    assert!(!breakers.are_closed());
    tokio::time::advance(PAUSE + QUIET).await;
    breakers.answered(0, true);
    assert!(breakers.are_closed());
    // The other way round: a range that is asked.
    breakers.failed(0, &silence());
    breakers.answered(0, true);
    assert!(breakers.are_closed());
}

#[tokio::test]
async fn what_the_server_refuses_ends_with_a_decision() {
    let breakers = breakers();
    breakers.failed(0, &out_of_memory());
    breakers.answered(0, false);
    assert!(!admits(&breakers, 0));
    breakers.answered(0, true);
    assert!(admits(&breakers, 0));
    breakers.failed(0, &silence());
    breakers.answered(0, false);
    assert!(admits(&breakers, 0));
}
