use super::*;

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_is_refused_for_a_moment_and_then_has_little_time() {
    assert_eq!(time_to_connect("a").unwrap(), None);
    hangs("a");
    assert!(time_to_connect("a").is_err());
    assert_eq!(time_to_connect("b").unwrap(), None, "another node");
    tokio::time::advance(PATIENCE).await;
    assert_eq!(time_to_connect("a").unwrap(), Some(OWN_TIMEOUT));
    hangs("a");
    assert!(time_to_connect("a").is_err());
    tokio::time::advance(WHOLE_TIME_EVERY).await;
    assert_eq!(time_to_connect("a").unwrap(), None);
    hangs("b");
    assert_eq!(hung().keys().collect::<Vec<_>>(), ["b"], "nodes are kept for good");
}
