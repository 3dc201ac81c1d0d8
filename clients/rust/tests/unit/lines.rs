use std::time::Duration;

use tokio::time::timeout;

use super::*;

fn is_anyone_at(lines: &Lines, key: &[u8]) -> bool {
    lines.with(|lines| lines.contains_key(key))
}

/// In the order in which they came; those that leave or come to their deadline hold nobody up.
#[tokio::test(start_paused = true)]
async fn callers_take_turns() {
    let lines = Arc::new(Lines::default());
    let first = lines.join(b"k", None).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..5 {
        let (lines, told) = (Arc::clone(&lines), Arc::clone(&told));
        // The fourth has no time.
        let deadline = (number == 3).then(|| Instant::now() + Duration::from_secs(1));
        tasks.push(tokio::spawn(async move {
            let turn = lines.join(b"k", deadline).await;
            told.lock().unwrap().push((number, turn.asks.is_some()));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }));
        tokio::task::yield_now().await;
    }
    tasks.remove(1).abort();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_anyone_at(&lines, b"k") && !is_anyone_at(&lines, b"other"));
    drop(first);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*told.lock().unwrap(), [(3, false), (0, true), (2, true), (4, true)]);
    assert!(lines.0.lock().unwrap().is_empty(), "the line is kept though nobody waits");
}

/// A caller that is the last in a line, and goes before its turn comes, leaves nothing.
#[tokio::test(start_paused = true)]
async fn a_line_ends_with_its_last_caller() {
    let lines = Lines::default();
    let first = lines.join(b"k", None).await;
    let mut second = Box::pin(lines.join(b"k", None));
    assert!(timeout(Duration::from_millis(20), second.as_mut()).await.is_err());
    drop(first);
    assert!(is_anyone_at(&lines, b"k"));
    drop(second);
    assert!(!is_anyone_at(&lines, b"k"));
}
