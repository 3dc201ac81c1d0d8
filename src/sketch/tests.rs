use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Everything that holds after any keys, beside exact counts.
fn check<const K: usize>(sketch: &Sketch<K>, keys: &[Vec<u8>]) {
    let mut exact: HashMap<&[u8], u64> = HashMap::new();
    for key in keys {
        *exact.entry(key).or_default() += 1;
    }
    let (total, entries) = (keys.len() as u64, sketch.entries());
    assert_eq!(entries.len(), exact.len().min(K));
    assert_eq!(entries.iter().map(|entry| entry.count).sum::<u64>(), total);
    assert!(entries.is_sorted_by_key(|entry| (Reverse(entry.count), entry.error, entry.key)));
    let lowest = if entries.len() < K { 0 } else { entries.last().expect("a counter").count };
    assert!(lowest <= total / K as u64);
    for entry in &entries {
        let true_count = exact.remove(entry.key).expect("a key that came, and has no second counter");
        assert!(entry.count - entry.error <= true_count && true_count <= entry.count, "{entry:?}: {true_count}");
        assert!(entry.error <= lowest, "{entry:?} with {lowest} as the lowest count");
        assert_eq!(entry.cut, 0);
    }
    for (key, true_count) in exact {
        assert!(true_count <= lowest, "{key:?} came {true_count} times and has no counter, with {lowest}");
    }
    check_links(sketch);
}

/// The chains are whole, and no lower counter is passed over.
fn check_links<const K: usize>(sketch: &Sketch<K>) {
    let counts = sketch.counters.each_ref().map(|counter| counter.count);
    assert!(counts.iter().all(|&count| count >= sketch.lowest), "{counts:?}");
    assert!(counts[..sketch.next].iter().all(|&count| count > sketch.lowest || count == u64::MAX), "{counts:?}");
    let mut in_chains = 0;
    for (chain, &first) in sketch.chains.iter().enumerate() {
        let mut index = first;
        while index != NONE {
            let counter = &sketch.counters[usize::from(index)];
            assert_eq!(chain_of(counter.hash), chain);
            index = counter.next;
            in_chains += 1;
            assert!(in_chains <= K, "a chain without an end");
        }
    }
    assert_eq!(in_chains, counts.iter().filter(|&&count| count > 0).count());
}

fn counted<const K: usize>(keys: &[Vec<u8>]) -> Sketch<K> {
    let mut sketch = Sketch::new();
    for key in keys {
        sketch.count(key);
    }
    sketch
}

fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    numbers.into_iter().map(|number| format!("user:{number}").into_bytes()).collect()
}

#[test]
fn few_keys_are_counted_exactly() {
    let keys = names((0..128).flat_map(|number| std::iter::repeat_n(number, number + 1)));
    let sketch: Sketch = counted(&keys);
    check(&sketch, &keys);
    for (entry, number) in sketch.entries().iter().zip((0..128).rev()) {
        let key = format!("user:{number}").into_bytes();
        assert_eq!(*entry, Counted { key: &key, cut: 0, count: number + 1, error: 0 });
    }
}

#[test]
fn a_key_without_a_counter_takes_over_the_lowest() {
    let keys: Vec<Vec<u8>> = ["a", "a", "a", "b", "b", "c"].map(Into::into).to_vec();
    let sketch: Sketch<2> = counted(&keys);
    let shown: Vec<_> = sketch.entries().iter().map(|entry| (entry.key.to_vec(), entry.count, entry.error)).collect();
    // c may have come twice before it got the counter of b, but did not.
    assert_eq!(shown, [(b"a".to_vec(), 3, 0), (b"c".to_vec(), 3, 2)]);
}

#[test]
fn equal_counts_come_in_a_defined_order() {
    let sketch: Sketch = counted(&["b", "", "a\0", "a"].map(Into::into));
    let keys: Vec<_> = sketch.entries().iter().map(|entry| entry.key).collect();
    assert_eq!(keys, [&b""[..], b"a", b"a\0", b"b"]);
}

#[test]
fn ever_new_keys_do_not_drive_out_a_frequent_one() {
    let mut keys = names((0..100_000).map(|number| if number % 100 == 7 { 7 } else { number }));
    let sketch: Sketch = counted(&keys);
    check(&sketch, &keys);
    assert_eq!(sketch.entries()[0].key, b"user:7");
    // Nor do keys that come twice in a row, or in turn.
    keys = names((0..50_000).flat_map(|number| [number, number, 7]));
    check::<128>(&counted(&keys), &keys);
    keys = names((0..50_000).map(|number| number % 129));
    check::<128>(&counted(&keys), &keys);
}

#[test]
fn long_keys_are_cut_and_still_distinguished() {
    let long = |length: usize, end: u8| {
        let mut key = vec![b'k'; length];
        key.push(end);
        key
    };
    let mut sketch: Sketch = Sketch::new();
    let keys = [long(KEPT - 2, 1), long(KEPT - 1, 1), long(KEPT, 1), long(KEPT, 2), long(KEPT + 1, 1), long(70_000, 1)];
    for (times, key) in (1..).zip(&keys) {
        (0..times).for_each(|_| sketch.count(key));
    }
    let entries = sketch.entries();
    assert_eq!(entries.len(), keys.len());
    for (entry, (count, key)) in entries.iter().rev().zip((1..).zip(&keys)) {
        assert_eq!((entry.key, entry.cut), (kept_of(key), key.len().saturating_sub(KEPT)));
        assert_eq!((entry.count, entry.error), (count, 0));
    }
    check_links(&sketch);
}

#[test]
fn a_count_that_is_full_stays() {
    let mut sketch: Sketch<2> = counted(&["a", "a", "b"].map(Into::into));
    for index in 0..2 {
        sketch.counters[index].count = u64::MAX;
    }
    for key in ["a", "b", "c", "a"] {
        sketch.count(key.as_bytes());
        check_links(&sketch);
        assert!(sketch.entries().iter().all(|entry| entry.count == u64::MAX));
    }
}

#[test]
fn the_memory_is_what_the_documentation_says() {
    assert!(size_of::<Sketch>() < 40 * 1024, "{}", size_of::<Sketch>());
}

#[test]
fn each_sketch_hashes_with_a_seed_of_its_own() {
    let hashes = |sketch: Sketch<2>| sketch.counters.map(|counter| counter.hash);
    let keys: [Vec<u8>; 2] = ["a", "b"].map(Into::into);
    assert_ne!(hashes(counted(&keys)), hashes(counted(&keys)));
}

/// Keys of which some are frequent and most are not, of all lengths.
fn stream() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let key = prop_oneof![
        (0..3_usize).prop_map(|number| format!("hot:{number}").into_bytes()),
        (0..40_usize).prop_map(|number| format!("warm:{number}").into_bytes()),
        (0..2_000_usize).prop_map(|number| format!("a much longer name for a key that is rare:{number}").into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..3),
        (KEPT - 3..=KEPT).prop_map(|length| vec![b'x'; length]),
    ];
    // Bursts: each key one to four times in a row.
    let bursts = proptest::collection::vec((key, 1..5_usize), 0..600);
    bursts.prop_map(|bursts| bursts.into_iter().flat_map(|(key, times)| std::iter::repeat_n(key, times)).collect())
}

proptest! {
    #[test]
    fn the_bounds_hold_with_one_counter(keys in stream()) {
        check::<1>(&counted(&keys), &keys);
    }

    #[test]
    fn the_bounds_hold_with_few_counters(keys in stream()) {
        check::<5>(&counted(&keys), &keys);
    }

    #[test]
    fn the_bounds_hold(keys in stream()) {
        check::<128>(&counted(&keys), &keys);
    }

    #[test]
    fn the_bounds_hold_after_each_key(keys in proptest::collection::vec(0..12_u8, 0..120)) {
        let keys: Vec<Vec<u8>> = keys.into_iter().map(|key| vec![key]).collect();
        let mut sketch: Sketch<7> = Sketch::new();
        for (index, key) in keys.iter().enumerate() {
            sketch.count(key);
            check(&sketch, &keys[..=index]);
        }
    }
}
