use super::*;

fn counting() -> OnDemand<u64> {
    let made = AtomicU64::new(0);
    OnDemand::new(move |_| {
        let number = made.fetch_add(1, Relaxed);
        async move { Ok(number) }
    })
}

#[test]
fn each_runtime_has_its_own() {
    let connections = counting();
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let get = |runtime: &tokio::runtime::Runtime| runtime.block_on(connections.get()).unwrap();
    let (first, alive) = get(&one);
    assert_eq!((first, get(&other).0, get(&one).0), (0, 1, 0));
    drop(one);
    assert!(!alive.load(Relaxed), "it ends with its runtime");
    assert_eq!((get(&runtime()).0, get(&other).0), (2, 1));
    assert!(connections.current.lock().unwrap().len() <= 2, "those of runtimes that have ended are kept");
}

#[tokio::test]
async fn what_has_broken_is_made_anew() {
    let connections = counting();
    let (_, alive) = connections.get().await.unwrap();
    assert_eq!(connections.get().await.unwrap().0, 0);
    alive.store(false, Relaxed);
    assert_eq!((connections.get().await.unwrap().0, connections.made()), (1, 2));
}

#[tokio::test]
async fn a_panic_while_connecting_is_permanent() {
    let connections = OnDemand::<u64>::new(|_| async { panic!("no crypto provider") });
    let error = connections.get().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidClientConfig);
}
