//! Which limits are decided by one call.

use std::collections::HashMap;
use std::sync::Once;

use redis::cluster_routing::Slot;

use super::item::Item;
use crate::limit::Kind;

/// The most keys that one decision takes.
pub const MOST_KEYS: usize = 64;
/// The most units that one decision adds to sliding logs which are sorted sets.
const MOST_ADDED: u64 = 1000;

/// The items that can be decided together, by their positions: those of one slot, at most 64, and no key twice (two holders of
/// one limit, two ids that reserve).
pub fn batches(items: &[&Item], cluster: bool) -> Vec<Vec<usize>> {
    if items.len() > MOST_KEYS {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            tracing::warn!("a request meets more than {MOST_KEYS} limits, which takes several decisions");
        });
    }
    let mut batches: Vec<Vec<usize>> = Vec::new();
    // Of each slot the batch that still takes some, and of each key the batch that it was last put in.
    let mut open: HashMap<Option<Slot>, usize> = HashMap::new();
    let mut last = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let slot = cluster.then(|| Slot::for_key(&item.key));
        let there = open.get(&slot).copied();
        let again = last.get(item.key.as_slice()).copied();
        let batch = match there {
            Some(batch) if batches[batch].len() < MOST_KEYS && again != there => batch,
            _ => {
                batches.push(Vec::new());
                open.insert(slot, batches.len() - 1);
                batches.len() - 1
            }
        };
        batches[batch].push(index);
        last.insert(item.key.as_slice(), batch);
    }
    batches
}

/// Whether they can be decided together.
pub fn takes_at_once<'a>(items: impl ExactSizeIterator<Item = &'a Item> + Clone, cluster: bool) -> bool {
    // Most are, which is seen without a look at each. Two of one key have holders.
    let plain = !cluster && items.len() <= MOST_KEYS && items.clone().all(|item| item.holder.is_empty());
    let light = || {
        let logs = items.clone().filter(|item| matches!(item.kind, Kind::Sliding(_)));
        logs.map(|item| item.units).fold(0, u64::saturating_add) <= MOST_ADDED
    };
    items.len() <= 1 || light() && (plain || batches(&items.collect::<Vec<_>>(), cluster).len() <= 1)
}

#[cfg(test)]
mod tests {
    use redis_rl_client::Rule;

    use super::*;

    fn item(key: &str, holder: &str) -> Item {
        let kind = Kind::Sliding(Rule::sliding("10/minute").unwrap());
        Item { key: key.into(), kind, units: 1, force: false, holder: holder.to_owned(), hold: None, block: None }
    }

    fn batches_of(items: &[Item], cluster: bool) -> Vec<Vec<usize>> {
        let batches = batches(&items.iter().collect::<Vec<_>>(), cluster);
        assert_eq!(takes_at_once(items.iter(), cluster), batches.len() == 1);
        batches
    }

    #[test]
    fn a_batch_has_one_slot_no_key_twice_and_at_most_64() {
        let keys: Vec<_> = (0..130).map(|number| item(&number.to_string(), "")).collect();
        let lengths = |batches: Vec<Vec<usize>>| batches.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(batches_of(&keys, false)), [64, 64, 2]);
        let holders: Vec<_> = (0..1000).map(|number| item("key", &number.to_string())).collect();
        assert_eq!(lengths(batches_of(&holders, false)), [1; 1000]);
        let mixed = [item("a", "1"), item("b", "1"), item("a", "2"), item("b", "2"), item("a", "2")];
        assert_eq!(batches_of(&mixed, false), [vec![0, 1], vec![2, 3], vec![4]]);
        let tagged = [item("{a}1", ""), item("{b}1", ""), item("{a}2", ""), item("{b}2", "")];
        assert_eq!(batches_of(&tagged, true), [[0, 2], [1, 3]]);
        assert_eq!(batches_of(&tagged, false), [[0, 1, 2, 3]]);
    }

    #[test]
    fn more_units_than_sorted_sets_take_may_need_several_calls() {
        let heavy = |units| Item { units, ..item(&units.to_string(), "") };
        assert!(takes_at_once([heavy(500), heavy(499)].iter(), false));
        assert!(!takes_at_once([heavy(500), heavy(501)].iter(), false));
        assert!(takes_at_once([heavy(1001)].iter(), false));
    }
}
