//! Compact logs: bytes of any kind, and random calls on them.
//!
//! A log that is sound by docs/COMPACT.md, as tests/support/compact.rs reads it, is held to a plain list of its entries. On
//! other bytes no call may panic, and what a call changes stays within bounds.

use super::Input;
use crate::limit::sliding::Span;
use crate::limit::{Time, Window};
use crate::state::compact::{Compact, Compaction, Edit, Flaw, Patch};
use reader::{Entry, Reading};

#[path = "../tests/support/compact.rs"]
#[allow(dead_code)]
mod reader;

/// Stamps and their units, oldest first.
type Entries = Vec<(i64, i64)>;

const NOW: i64 = 1_700_000_000_000;
/// The limits of the format.
const MOST_UNITS: i64 = (1 << 53) - 1;
const LATEST: i64 = (1 << 48) - 1;

pub fn compact(input: &[u8]) {
    let mut input = Input(input);
    let mut bytes = first_bytes(&mut input);
    let mut model = read(&bytes);
    let mut now = NOW;
    while !input.is_empty() {
        now = match input.choice(8) {
            0 => now.saturating_sub(input.integer() as i64),
            1 => input.integer() as i64,
            _ => now.saturating_add(i64::from(input.byte())),
        };
        let window = Window::from_millis(1 + (input.integer() % 2_147_483_647_000) as i64).expect("a window");
        let Some(edit) = call(&mut input, &bytes, model.as_mut(), now, window) else { return };
        apply(edit, &mut bytes);
        if let Some(model) = &model {
            assert_eq!(read(&bytes).as_ref(), Some(model), "the entries that are left");
        }
    }
}

/// No log, a sound one, one that was sound, or anything.
fn first_bytes(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.choice(4);
    if kind == 0 {
        return Vec::new();
    }
    if kind == 1 {
        let length = usize::from(input.byte()) * 4;
        return input.take(length).to_vec();
    }
    let mut stamp = NOW as u64 - 10_000;
    let entries: Vec<Entry> = (0..=input.byte())
        .map(|_| {
            stamp += u64::from(input.byte());
            Entry { stamp, weight: 1 + input.integer() % 1_000_000 }
        })
        .collect();
    let dead = usize::from(input.byte()) % entries.len();
    let mut log = reader::write(&entries, dead, input.integer() % MOST_UNITS as u64, usize::from(input.byte()));
    if kind == 2 {
        return log;
    }
    for _ in 0..input.choice(8) {
        let at = input.integer() as usize % log.len();
        log[at] = input.byte();
    }
    if input.choice(2) == 0 {
        reader::seal(&mut log);
    }
    log
}

/// The entries of a sound log, in one piece each stamp; those of no log.
fn read(bytes: &[u8]) -> Option<Entries> {
    match bytes {
        [] => Some(Entries::new()),
        bytes => match reader::read(bytes) {
            Reading::Sound(entries) => {
                Some(joined(entries.into_iter().map(|entry| (entry.stamp as i64, entry.weight as i64)).collect()))
            }
            _ => None,
        },
    }
}

fn joined(entries: Entries) -> Entries {
    let mut joined = Entries::new();
    for (stamp, units) in entries {
        match joined.last_mut() {
            Some(last) if last.0 == stamp => last.1 += units,
            _ => joined.push((stamp, units)),
        }
    }
    joined.retain(|&(_, units)| units > 0);
    joined
}

fn sum(entries: &Entries) -> i64 {
    entries.iter().map(|&(_, units)| units).sum()
}

/// One call. `None` where it is refused and nothing more can be said of the bytes.
fn call(
    input: &mut Input<'_>,
    bytes: &[u8],
    model: Option<&mut Entries>,
    now: i64,
    window: Window,
) -> Option<Option<Edit>> {
    let opened = if bytes.is_empty() { Ok(Compact::EMPTY) } else { Compact::open(bytes) };
    let Ok(mut log) = opened else {
        assert!(model.is_none(), "{opened:?} of a sound log");
        return None;
    };
    let span = Span::at(Time::from_millis(now), window);
    let pruned = log.prune(bytes, span);
    let (time, units) = (Time::from_millis(now.saturating_sub(input.integer() as i64)), (input.integer() >> 1) as i64);
    let Some(model) = model else {
        pruned.ok()?;
        if let Ok(later) = log.later_than(bytes, time) {
            assert!(later <= log.units(), "more units than there are");
        }
        let _ = log.newest_unit(bytes, units);
        let edit = match input.choice(2) {
            0 => log.commit(bytes, Some((time, units)), compaction(input)),
            _ => log
                .refund(bytes, units, Some(time).filter(|_| units % 2 == 0), Time::from_millis(now), compaction(input))
                .map(|(refunded, edit)| {
                    assert!(refunded <= units.min(log.units()), "more given back than there was");
                    edit
                }),
        };
        return edit.ok();
    };

    assert_eq!(pruned, Ok(()));
    let mut left = model.clone();
    left.retain(|&(stamp, _)| stamp > span.expired.millis() && stamp <= span.kept.millis());
    assert_eq!(log.units(), sum(&left));
    let later = left.iter().filter(|&&(stamp, _)| stamp > time.millis()).map(|&(_, units)| units).sum();
    assert_eq!(log.later_than(bytes, time), Ok(later));
    let mut newer = 0;
    let unit = left.iter().rev().find(|&&(_, here)| {
        newer += here;
        newer > units
    });
    assert_eq!(log.newest_unit(bytes, units), Ok(unit.map(|&(stamp, _)| Time::from_millis(stamp))));
    let edit = match input.choice(3) {
        0 => log.commit(bytes, None, compaction(input)),
        1 => {
            let edit = log.commit(bytes, Some((Time::from_millis(now), units)), compaction(input));
            if edit.is_ok() {
                let place = left.partition_point(|&(stamp, _)| stamp <= now);
                left.insert(place, (now, units));
            } else {
                let fits = sum(&left).checked_add(units).is_some_and(|units| units <= MOST_UNITS);
                let can_be_stored = (0..=LATEST).contains(&now) && (1..=MOST_UNITS).contains(&units);
                assert!(!fits || !can_be_stored, "{edit:?}");
            }
            edit
        }
        _ => {
            let at = Some(time).filter(|_| input.choice(2) == 0);
            let refund = log.refund(bytes, units, at, Time::from_millis(now), compaction(input));
            refund.map(|(refunded, edit)| {
                assert_eq!(refunded, take_back(&mut left, units, at.map(Time::millis), now));
                edit
            })
        }
    };
    match edit {
        Ok(edit) => {
            *model = joined(left);
            Some(edit)
        }
        Err(Flaw::Full | Flaw::OutOfRange) => Some(None),
        Err(flaw) => panic!("{flaw:?} of a sound log"),
    }
}

fn compaction(input: &mut Input<'_>) -> Compaction {
    [Compaction::IfDue, Compaction::IfFull, Compaction::Never][usize::from(input.choice(3))]
}

/// Takes the newest units that are not later than now, or those with a stamp, and answers how many.
fn take_back(entries: &mut Entries, most: i64, at: Option<i64>, now: i64) -> i64 {
    let mut left = most;
    for (stamp, units) in entries.iter_mut().rev() {
        if at.map_or(*stamp <= now, |at| at == *stamp) {
            let taken = left.min(*units);
            *units -= taken;
            left -= taken;
        }
    }
    most - left
}

/// What the server does with a change.
fn apply(edit: Option<Edit>, bytes: &mut Vec<u8>) {
    match edit {
        None => {}
        Some(Edit::Remove) => bytes.clear(),
        Some(Edit::Replace(whole)) => *bytes = whole,
        Some(Edit::Write(first, second)) => {
            for Patch { offset, bytes: new } in std::iter::once(first).chain(second) {
                assert!(offset <= bytes.len(), "a write leaves a hole");
                let end = offset + new.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset..end].copy_from_slice(&new);
            }
        }
    }
}
