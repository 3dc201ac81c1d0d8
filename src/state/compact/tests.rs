//! The compact log against a plain list, and against bytes that nobody wrote.

use std::cell::Cell;

use proptest::prelude::*;

use super::bytes::Bytes;
use super::format::{FILLER, LONGEST_ENTRY, LONGEST_LOG, put_block_head, put_entry, put_long_footer, put_short_footer};
use super::layout::Jump;
use super::*;
use crate::limit::Window;

thread_local! {
    static MOST_REWRITTEN: Cell<usize> = const { Cell::new(1 << 20) };
}

/// What counts as a long log in this test.
pub fn most_rewritten() -> usize {
    MOST_REWRITTEN.get()
}

const NOW: i64 = 1_700_000_000_000;

fn at(millis: i64) -> Time {
    Time::from_millis(millis)
}

fn span(now: i64, window: i64) -> Span {
    Span::at(at(now), Window::from_millis(window).unwrap())
}

/// What the server does with a change. An empty string stands for no key.
fn apply(change: Option<Change>, bytes: &mut Vec<u8>) {
    match change {
        None => {}
        Some(Change::Remove) => bytes.clear(),
        Some(Change::Replace(whole)) => *bytes = whole.to_vec(),
        Some(change) => {
            for Patch { offset, bytes: new } in change.patches() {
                assert!(*offset <= bytes.len(), "a write leaves a hole");
                let end = offset + new.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset..end].copy_from_slice(new);
            }
        }
    }
}

fn open(bytes: &[u8]) -> Compact {
    match bytes {
        [] => Compact::EMPTY,
        bytes => Compact::open(bytes).unwrap(),
    }
}

/// Adds without pruning.
fn append(bytes: &mut Vec<u8>, stamp: i64, weight: u64) {
    let change = open(bytes).commit(bytes, Some((at(stamp), weight))).unwrap();
    apply(change, bytes);
}

/// One call: prunes, and adds.
fn call(bytes: &mut Vec<u8>, now: i64, window: i64, weight: Option<u64>) -> Option<Change> {
    let mut log = open(bytes);
    log.prune(bytes, span(now, window)).unwrap();
    let change = log.commit(bytes, weight.map(|weight| (at(now), weight))).unwrap();
    apply(change.clone(), bytes);
    change
}

/// Reads every byte of a log by the letter of docs/COMPACT.md, and answers its live entries. One that could be written anew
/// wastes little.
fn verify(bytes: &[u8]) -> Vec<(i64, u64)> {
    let Dissected { entries, live, dead } = dissect(bytes);
    if live <= most_rewritten() {
        assert!(dead <= 300 + live, "{dead} dead bytes to {live} live ones");
    }
    entries
}

/// What the bytes of a log are.
struct Dissected {
    entries: Vec<(i64, u64)>,
    live: usize,
    dead: usize,
}

fn dissect(bytes: &[u8]) -> Dissected {
    fn varint(bytes: &[u8], at: &mut usize) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        value
    }
    let fixed = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte))
    };
    let block_head = |at: usize| (fixed(at, 12) as u64 % (1 << 43), (fixed(at, 12) >> 43) as u64);
    assert_eq!(&bytes[..4], b"RLS\x01");
    let is_long = bytes.last().unwrap() >= &128;
    let footer = bytes.len() - usize::from(*bytes.last().unwrap() % 128);
    let mut place = footer;
    let [head, head_units, live_units, age] = std::array::from_fn(|_| varint(bytes, &mut place));
    let [end, at, to, next_at, next_to] = match is_long {
        true => std::array::from_fn(|_| varint(bytes, &mut place) as usize),
        false => [footer, 0, 0, 0, 0],
    };
    let newest = fixed(bytes.len() - 9, 6) as u64;
    assert!(bytes[place..bytes.len() - 9].iter().all(|&byte| byte == 0), "padding is not zero");
    let jumps: Vec<_> = [(at, to), (next_at, next_to)].into_iter().filter(|jump| *jump != (0, 0)).collect();
    assert!(is_long || footer == end);

    // Entries from the head on, at logical offsets.
    let (mut entries, mut used) = (vec![], std::collections::BTreeSet::new());
    let (mut logical, mut stamp, mut units) = (head as usize, newest - age, head_units);
    while logical < end {
        let block = (logical - 4) / 256;
        let jump = jumps.iter().rev().find(|(at, _)| block >= *at);
        let here = jump.map_or(block, |(at, to)| block - at + to);
        assert!(used.insert(here) || (logical - 4) % 256 != 0, "a block is used twice");
        let mut place = 4 + here * 256 + (logical - 4) % 256;
        if (logical - 4) % 256 == 0 {
            assert_eq!(block_head(place), (stamp, units), "a block does not begin where the last one ended");
            place += 12;
            logical += 12;
        }
        let stop = (4 + here * 256 + 256).min(place + (end - logical));
        let rest = &bytes[place..stop];
        assert!(stop <= footer, "entries behind the footer");
        if rest.iter().all(|&byte| byte == FILLER) {
            assert!((stop - 4) % 256 == 0 && rest.len() < LONGEST_ENTRY, "filler within a block");
            logical += rest.len();
            continue;
        }
        let begin = place;
        let packed = varint(bytes, &mut place);
        let weight = if packed & 1 == 1 { varint(bytes, &mut place) + 2 } else { 1 };
        assert!(place <= stop, "an entry straddles a boundary");
        assert!((1..1 << 53).contains(&weight));
        if !entries.is_empty() {
            stamp += packed >> 1;
        }
        logical += place - begin;
        units = (units + weight) % (1 << 53);
        entries.push((stamp as i64, weight));
    }
    assert_eq!((logical, stamp, units), (end, newest, (head_units + live_units) % (1 << 53)), "the end is elsewhere");
    let live = end - head as usize;
    Dissected { entries, live, dead: footer - 4 - (live + 12).min(footer - 4) }
}

fn compare(log: &Compact, bytes: &[u8], model: &[(i64, u64)], random: &mut fastrand::Rng) {
    let units: u64 = model.iter().map(|entry| entry.1).sum();
    assert_eq!(log.units(), units);
    assert_eq!(log.is_empty(), model.is_empty());
    assert_eq!(log.oldest().map(Time::millis), model.first().map(|entry| entry.0));
    assert_eq!(log.newest().map(Time::millis), model.last().map(|entry| entry.0));
    for _ in 0..3 {
        let time = match model {
            [] => NOW,
            model => model[random.usize(..model.len())].0 + random.i64(-2..3),
        };
        let later = model.iter().filter(|entry| entry.0 > time).map(|entry| entry.1).sum::<u64>();
        assert_eq!(log.later_than(bytes, at(time)), Ok(later));
        let rank = random.u64(..units + 2);
        let mut behind = 0;
        let unit = model.iter().rev().find(|entry| {
            behind += entry.1;
            behind > rank
        });
        assert_eq!(log.newest_unit(bytes, rank), Ok(unit.map(|entry| at(entry.0))));
    }
}

#[derive(Debug, Clone)]
struct History {
    seed: u64,
    window: i64,
    limit: u64,
    heaviest: u64,
    /// The usual step of the clock.
    stride: i64,
    /// How much one call may write anew.
    most_rewritten: usize,
    /// One call in so many comes after the clock has jumped, either way.
    jumps: u32,
    calls: usize,
}

impl History {
    fn run(&self) {
        MOST_REWRITTEN.set(self.most_rewritten);
        let mut random = fastrand::Rng::with_seed(self.seed);
        let (mut bytes, mut model, mut now) = (vec![], vec![], NOW);
        for number in 0..self.calls {
            now += random.i64(0..=self.stride);
            if random.u32(..self.jumps) == 0 {
                now += match random.u32(..6) {
                    0 => random.i64(-3..1),
                    1 => random.i64(-self.window..=self.window),
                    2 => -self.window - 1,
                    3 => self.window * 3 / 4,
                    4 => random.i64(-3 * self.window..=3 * self.window),
                    _ => -self.window / 3,
                };
            }
            now = now.clamp(1, LATEST);
            let window = if random.u32(..20) == 0 { random.i64(1..=self.window) } else { self.window };
            let span = span(now, window);
            let mut pruned: Vec<(i64, u64)> = model.clone();
            pruned.retain(|&(stamp, _)| at(stamp) > span.expired_to && at(stamp) <= span.sane_to);

            let mut log = open(&bytes);
            compare(&log, &bytes, &model, &mut random);
            log.prune(&bytes, span).unwrap();
            compare(&log, &bytes, &pruned, &mut random);
            let heaviest = random.u64(1..=self.heaviest);
            let weight = random.u64(1..=heaviest);
            let allowed = log.units() + weight <= self.limit;
            if !allowed && random.bool() {
                // A call that is denied may leave everything as it is.
                continue;
            }
            let moved = pruned != model;
            model = pruned;
            let change = if random.u32(..8) == 0 {
                let time = (random.bool() && !model.is_empty()).then(|| model[random.usize(..model.len())].0);
                let most = match random.u32(..200) {
                    0 => log.units() + 1,
                    1 => log.units() / 2,
                    2 => log.units() / 8,
                    3..20 => 40,
                    _ => weight,
                };
                let (refunded, change) = log.refund(&bytes, most, time.map(at)).unwrap();
                assert_eq!(refunded, take_back(&mut model, most, time, &log, &bytes));
                assert_eq!(change.is_some(), moved || refunded > 0);
                change
            } else {
                if allowed {
                    // Out of reach it counts a little longer.
                    let stamp = match model.last() {
                        Some(newest) if now < newest.0 => {
                            log.reach(&bytes).unwrap().map_or(now, |mark| now.max(mark.stamp))
                        }
                        _ => now,
                    };
                    let place = model.partition_point(|entry| entry.0 <= stamp);
                    model.insert(place, (stamp, weight));
                }
                let change = log.commit(&bytes, allowed.then_some((at(now), weight))).unwrap();
                assert_eq!(change.is_some(), moved || allowed);
                change
            };
            let written = change.as_ref().map_or(0, written);
            assert!(written <= self.most_rewritten * 3 / 2 + 1_000, "{written} bytes written");
            apply(change, &mut bytes);
            match model.is_empty() {
                true => assert!(bytes.is_empty()),
                // A refund at a time may make a log short that was too long to be written anew. The next call does it.
                false if log.live() > most_rewritten() => assert_eq!(dissect(&bytes).entries, model),
                false if model.len() < 100 || number % 16 == 0 => assert_eq!(verify(&bytes), model),
                false => {}
            }
        }
    }
}

/// How many bytes a change writes.
fn written(change: &Change) -> usize {
    match change {
        Change::Replace(bytes) => bytes.len(),
        change => change.patches().iter().map(|patch| patch.bytes.len()).sum(),
    }
}

/// Takes the newest units out of a model, or those at a time that are in reach. Answers how many.
fn take_back(model: &mut Vec<(i64, u64)>, most: u64, time: Option<i64>, log: &Compact, bytes: &[u8]) -> u64 {
    let units = |entries: &[(i64, u64)]| entries.iter().map(|entry| entry.1).sum::<u64>();
    let until = time.map_or(model.len(), |time| model.partition_point(|entry| entry.0 <= time));
    let since = time.map_or(0, |time| model.partition_point(|entry| entry.0 < time));
    let reach = log.reach(bytes).unwrap().filter(|_| time.is_some()).map_or(0, |mark| mark.units - log.ends.head.units);
    let before = units(&model[..since]).max(reach);
    let refunded = units(&model[..until]).saturating_sub(before).min(most);
    let mut left = refunded;
    for entry in model[..until].iter_mut().rev() {
        let taken = left.min(entry.1);
        entry.1 -= taken;
        left -= taken;
    }
    model.retain(|entry| entry.1 > 0);
    refunded
}

fn histories() -> impl Strategy<Value = History> {
    let windows = prop_oneof![1i64..200, 1_000i64..100_000, Just(86_400_000), Just(2_147_483_647_000)];
    let weights = prop_oneof![3 => Just(1u64), 1 => 1u64..5, 1 => 1u64..65_537, 1 => 1u64..=MOST_UNITS];
    let jumps = prop_oneof![Just(5u32), Just(50), Just(100_000)];
    let rewritten = prop_oneof![Just(256usize), Just(1_024), Just(4_096), Just(1 << 20)];
    (any::<u64>(), windows, 1u64..2_000, weights, 1i64..2_000, jumps, rewritten).prop_map(
        |(seed, window, entries, heaviest, pace, jumps, most_rewritten)| History {
            seed,
            window,
            limit: entries.saturating_mul(heaviest.div_ceil(2)).min(MOST_UNITS),
            heaviest,
            stride: (window / (entries as i64 * 500) * pace).max(1),
            most_rewritten,
            jumps,
            calls: 1_500,
        },
    )
}

/// Whatever the bytes are, nothing panics and every answer is within bounds.
fn exercise(bytes: &[u8], random: &mut fastrand::Rng) {
    MOST_REWRITTEN.set([256, 1_024, 1 << 20][random.usize(..3)]);
    let Ok(opened) = Compact::open(bytes) else { return };
    let (oldest, newest) = (opened.oldest().unwrap().millis(), opened.newest().unwrap().millis());
    for _ in 0..4 {
        let mut log = opened;
        let time = |random: &mut fastrand::Rng| match random.u32(..3) {
            0 => random.i64(oldest - 5..=newest.min(oldest + 5)),
            1 => random.i64(oldest - 2..=newest + 2),
            _ => random.i64(..),
        };
        let (expired_to, other) = (time(random), time(random));
        let span = Span { expired_to: at(expired_to.min(other)), sane_to: at(expired_to.max(other)) };
        if random.bool() && log.prune(bytes, span).is_err() {
            continue;
        }
        if let Ok(later) = log.later_than(bytes, at(time(random))) {
            assert!(later <= log.units());
        }
        if let Ok(Some(unit)) = log.newest_unit(bytes, random.u64(..=log.units())) {
            assert!(unit >= log.oldest().unwrap() && unit <= log.newest().unwrap());
        }
        let heaviest = 1 << random.u32(..54);
        let addition = random.bool().then(|| (at(time(random)), random.u64(..=heaviest)));
        let time = random.bool().then(|| at(time(random)));
        let most = random.u64(..=heaviest);
        let change = match random.bool() {
            true => log.commit(bytes, addition),
            false => log.refund(bytes, most, time).map(|(refunded, change)| {
                assert!(refunded <= most.min(log.units()));
                change
            }),
        };
        if let Ok(change) = change {
            let mut after = bytes.to_vec();
            let removed = change == Some(Change::Remove);
            apply(change, &mut after);
            assert!(removed || Compact::open(&after).is_ok());
        }
    }
}

/// A log with dead entries, weights, filler and `entries` entries.
fn sample(entries: u64, random: &mut fastrand::Rng) -> Vec<u8> {
    let (mut bytes, mut now) = (vec![], NOW);
    for _ in 0..entries {
        now += random.i64(0..300);
        let heaviest = 70_000 << random.u32(..27);
        let weight = if random.bool() { 1 } else { random.u64(1..heaviest) };
        append(&mut bytes, now, weight);
    }
    let window = random.i64(1..=now - NOW + 1);
    call(&mut bytes, now, window, None);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn answers_are_those_of_a_plain_list(history in histories()) {
        history.run();
    }

    #[test]
    fn bytes_that_were_changed_never_panic(seed: u64, entries in 1u64..700) {
        let mut random = fastrand::Rng::with_seed(seed);
        let sound = sample(entries, &mut random);
        exercise(&sound, &mut random);
        for _ in 0..40 {
            let mut bytes = sound.clone();
            for _ in 0..random.usize(1..4) {
                let place = random.usize(..bytes.len());
                match random.u32(..6) {
                    0 => bytes[place] ^= 1 << random.u32(..8),
                    1 => bytes[place] = random.u8(..),
                    2 => bytes.truncate(place.max(1)),
                    3 => bytes.push(random.u8(..)),
                    4 => bytes[place..].iter_mut().take(10).for_each(|byte| *byte = FILLER),
                    _ => drop(bytes.remove(if bytes.len() > 1 { place } else { continue })),
                }
            }
            exercise(&bytes, &mut random);
        }
    }

    #[test]
    fn bytes_behind_a_sound_footer_never_panic(seed: u64, len in 0usize..1_200) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = b"RLS\x01".to_vec();
        let calm = random.bool();
        bytes.extend((0..len).map(|_| if calm { random.u8(..4) } else { random.u8(..) }));
        exercise(&bytes, &mut random);
        let most = if calm { len as u64 * 2 } else { MOST_UNITS };
        let latest = most.min(LATEST as u64) as i64;
        let end = Mark { at: bytes.len(), units: random.u64(..=most), stamp: random.i64(0..=latest) };
        for _ in 0..20 {
            let head = Head {
                at: random.usize(..bytes.len() + 2),
                units: random.u64(..=end.units), // The end's own is refused.
                stamp: random.i64(0..=end.stamp),
            };
            let mut signed = bytes.clone();
            let jump = |random: &mut fastrand::Rng| match random.usize(..3) {
                0 => Jump { at: u32::MAX, to: 0 },
                _ => Jump { at: 4 + 256 * random.u32(..6), to: 4 + 256 * random.u32(..6) },
            };
            let mut ends = Ends { head, end, origin: random.u64(..=MOST_UNITS), layout: Layout::STRAIGHT };
            if random.bool() {
                ends.end.at = random.usize(..2 * bytes.len());
                ends.layout.jumps = [jump(&mut random), jump(&mut random)];
            }
            let mut footer = Bytes::with_capacity(0);
            let least = random.usize(..bytes.len() + 40);
            if !ends.layout.is_straight() || ends.end.at != end.at || !put_short_footer(&mut footer, &ends, least) {
                put_long_footer(&mut footer, &ends, bytes.len(), least);
            }
            signed.extend_from_slice(&footer);
            exercise(&signed, &mut random);
        }
    }

    #[test]
    fn every_change_to_a_footer_is_seen(seed: u64, entries in 1u64..300) {
        let mut random = fastrand::Rng::with_seed(seed);
        let sound = sample(entries, &mut random);
        let mut unseen = 0;
        let size = usize::from(*sound.last().unwrap());
        for place in sound.len() - size..sound.len() {
            for bit in 0..8 {
                let mut bytes = sound.clone();
                bytes[place] ^= 1 << bit;
                unseen += u32::from(Compact::open(&bytes).is_ok());
            }
        }
        for len in 0..sound.len() {
            unseen += u32::from(Compact::open(&sound[..len]).is_ok());
        }
        // Sixteen bits let one change in 65,536 pass.
        prop_assert!(unseen <= 1, "{unseen} changes unseen");
    }
}

#[test]
fn long_histories_hold_too() {
    for (seed, (limit, stride, jumps)) in
        [(5, 20_000, 40), (300, 400, 1_000_000), (3_000, 40, 2_000), (9_000, 12, 4_000), (9_000, 20, 200)]
            .into_iter()
            .enumerate()
    {
        let (seed, heaviest) = (seed as u64, 1);
        for most_rewritten in [512, 2_048, 1 << 20] {
            History { seed, window: 60_000, limit, heaviest, stride, most_rewritten, jumps, calls: 20_000 }.run();
        }
    }
}

/// Every kind of change to a log that grows and shrinks around the length from which on it is not compacted. Answers how
/// often there were so many jumps at a change of each kind.
fn changes_to_a_long_log(seed: u64, seen: &mut std::collections::BTreeMap<(usize, bool, bool, &str), u32>) {
    let mut random = fastrand::Rng::with_seed(seed);
    MOST_REWRITTEN.set([512, 1_024, 1_500][random.usize(..3)]);
    let (mut bytes, mut model): (Vec<u8>, Vec<(i64, u64)>) = (vec![], vec![]);
    let (mut expire, mut expired) = (0, 0);
    for number in 0..12_000 {
        if number % 700 == 0 {
            expire = [0, 1, 1, 2, 3][random.usize(..5)];
        }
        let newest = model.last().map_or(NOW, |entry| entry.0);
        let oldest = model.get(expire * random.usize(..3)).filter(|_| model.len() > 700);
        expired = expired.max(oldest.map_or(0, |entry| entry.0 - 1));
        let cut = random.u32(..150) == 0;
        let sane_to = if cut { newest - random.i64(..400).max(0) } else { i64::MAX };
        let span = Span { expired_to: at(expired), sane_to: at(sane_to.max(expired)) };
        model.retain(|entry| entry.0 > expired && entry.0 <= sane_to.max(expired));
        let mut log = open(&bytes);
        log.prune(&bytes, span).unwrap();
        let place = |random: &mut fastrand::Rng, model: &[(i64, u64)]| {
            let ago = [10, 100, 1_000, 5_000][random.usize(..4)].min(model.len());
            model[model.len() - random.usize(1..=ago)].0
        };
        let weight = if random.bool() { 1 } else { 1 << random.u32(..20) };
        let (kind, change) = match random.u32(..100) {
            _ if model.is_empty() => ("none", log.commit(&bytes, None).unwrap()),
            0..5 => {
                let time = place(&mut random, &model);
                let (refunded, change) = log.refund(&bytes, weight, Some(at(time))).unwrap();
                assert_eq!(refunded, take_back(&mut model, weight, Some(time), &log, &bytes));
                ("refund at", change)
            }
            5..8 => {
                let most = weight.min(40 << random.u32(..6));
                let (refunded, change) = log.refund(&bytes, most, None).unwrap();
                assert_eq!(refunded, take_back(&mut model, most, None, &log, &bytes));
                ("refund", change)
            }
            8..20 => ("none", log.commit(&bytes, None).unwrap()),
            20..26 => {
                let stamp = place(&mut random, &model) - random.i64(0..2);
                let change = log.commit(&bytes, Some((at(stamp), weight))).unwrap();
                let newest = model.last().unwrap().0;
                let reach = log.reach(&bytes).unwrap().filter(|_| stamp < newest).map_or(stamp, |mark| mark.stamp);
                let stamp = stamp.max(reach);
                model.insert(model.partition_point(|entry| entry.0 <= stamp), (stamp, weight));
                ("insert", change)
            }
            _ => {
                let stamp = model.last().unwrap().0 + random.i64(0..8);
                model.push((stamp, weight));
                ("append", log.commit(&bytes, Some((at(stamp), weight))).unwrap())
            }
        };
        *seen
            .entry((
                log.ends.layout.jumps.iter().filter(|jump| jump.exists()).count(),
                cut,
                footer_of(&bytes) == log.ends.end.at,
                kind,
            ))
            .or_default() += 1;
        let written = change.as_ref().map_or(0, written);
        assert!(written <= most_rewritten() * 3 / 2 + 1_000, "{written} bytes written");
        apply(change, &mut bytes);
        if model.is_empty() {
            assert!(bytes.is_empty());
            bytes.clear();
            append(&mut bytes, NOW.max(expired + 1), 1);
            model.push((NOW.max(expired + 1), 1));
        }
        if number % 32 == 0 || kind != "append" && number % 4 == 0 {
            assert_eq!(verify(&bytes), model);
            compare(&open(&bytes), &bytes, &model, &mut random);
        }
    }
}

#[test]
fn a_long_log_takes_every_change() {
    let mut seen = std::collections::BTreeMap::new();
    (0..10).for_each(|seed| changes_to_a_long_log(seed, &mut seen));
    // Each kind has met each layout.
    for jumps in 0..=2 {
        for kind in ["append", "insert", "none", "refund", "refund at"] {
            let times: u32 =
                seen.iter().filter(|(key, _)| (key.0, key.3) == (jumps, kind)).map(|(_, times)| times).sum();
            assert!(times > 100, "{kind}, {jumps} jumps: {times} times");
        }
        assert!(
            seen.iter().any(|(key, times)| (key.0, key.1) == (jumps, true) && *times > 30),
            "no cut at {jumps} jumps"
        );
    }
}

/// A log whose entries come at a pace that changes again and again, in a window of a minute. Reports on the log after each
/// call.
fn changing_pace(calls: usize, seed: u64, mut report: impl FnMut(&Compact, &[u8], Option<Change>)) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut bytes, mut model, mut now, mut stride) = (vec![], std::collections::VecDeque::new(), NOW, 40);
    for number in 0..calls {
        if random.u32(..1_000) == 0 {
            stride = [1, 3, 10, 40, 100][random.usize(..5)];
        }
        now += random.i64(0..=2 * stride);
        let weight = random.bool().then_some(random.u64(1..3));
        let change = call(&mut bytes, now, 60_000, weight);
        while model.front().is_some_and(|(stamp, _)| *stamp <= now - 60_000) {
            model.pop_front();
        }
        model.extend(weight.map(|weight| (now, weight)));
        if bytes.is_empty() {
            continue;
        }
        if number % 128 == 0
            || change.as_ref().is_some_and(|change| matches!(change, Change::WriteTwo(_))) && number % 16 == 0
        {
            assert_eq!(verify(&bytes), model.make_contiguous());
            compare(&open(&bytes), &bytes, model.make_contiguous(), &mut random);
        }
        report(&open(&bytes), &bytes, change);
    }
}

#[test]
fn a_long_log_goes_on_in_its_dead_blocks() {
    MOST_REWRITTEN.set(1_024);
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..8 {
        let (mut longest, mut peak) = (0, 0);
        changing_pace(60_000, seed, |log, bytes, change| {
            let jumps = log.ends.layout.jumps.iter().filter(|jump| jump.exists()).count();
            let is_wrapped = log.ends.layout.jumps[0].to == 4;
            let is_replaced = matches!(change, Some(Change::Replace(_)));
            *seen.entry((jumps, is_wrapped, footer_of(bytes) == log.ends.end.at, is_replaced)).or_insert(0) += 1;
            let written = change.as_ref().map_or(0, written);
            if is_replaced {
                assert!(log.live() <= 1_024 + 64);
            } else {
                assert!(written <= 160, "{written} bytes written");
            }
            peak = peak.max(log.live());
            longest = longest.max(bytes.len());
        });
        assert!(longest <= peak * 2 + 512, "{longest} bytes for {peak} live ones");
    }
    // Straight, at its front before and after it was in the way of itself, and on the way back.
    for (jumps, is_wrapped) in [(0, false), (1, true), (2, true), (1, false)] {
        let times: u32 =
            seen.iter().filter(|(key, _)| (key.0, key.1) == (jumps, is_wrapped)).map(|(_, times)| times).sum();
        assert!(times > 1_000, "{jumps} jumps, {is_wrapped}: {times} times");
    }
}

/// With the real bound: two million entries that count, a hundred a millisecond.
#[test]
fn however_long_a_log_is_a_call_writes_little() {
    let (mut bytes, mut most, mut replaced, mut at_the_front) = (vec![], 0, 0, 0);
    for number in 0..6_000_000 {
        let weight = (number / 500_000 % 4 != 2 || number % 2 == 0).then_some(1);
        match call(&mut bytes, NOW + number / 100, 20_000, weight) {
            Some(Change::Replace(whole)) => replaced = replaced.max(whole.len()),
            Some(change) => {
                most = most.max(written(&change));
                at_the_front += u32::from(matches!(change, Change::WriteTwo(_)));
            }
            None => {}
        }
    }
    assert!(most <= 160, "{most} bytes written");
    assert!(replaced < 1 << 10, "a string of {replaced} bytes replaced another");
    assert!(at_the_front > 1_000_000, "{at_the_front}");
    assert!(bytes.len() < 3_500_000, "{} bytes", bytes.len());
    verify(&bytes);
}

#[test]
fn units_are_taken_back() {
    let mut bytes = vec![];
    let model = [(NOW, 3), (NOW + 5, 1), (NOW + 5, 7), (NOW + 9, 2), (NOW + 30, 100)];
    model.into_iter().for_each(|(stamp, weight)| append(&mut bytes, stamp, weight));
    let refund = |units, time: Option<i64>| {
        let mut after = bytes.clone();
        let (refunded, change) = open(&bytes).refund(&bytes, units, time.map(at)).unwrap();
        apply(change.clone(), &mut after);
        (refunded, if after.is_empty() { vec![] } else { verify(&after) }, change)
    };
    let [a, b, c, d, e] = model;
    // The newest: of the last entry something is left, nothing, and of others too.
    assert_eq!(refund(1, None).1, [a, b, c, d, (NOW + 30, 99)]);
    assert_eq!(refund(100, None).1, [a, b, c, d]);
    assert_eq!(refund(105, None).1, [a, b, (NOW + 5, 4)]);
    assert_eq!((refund(113, None).0, refund(113, None).2), (113, Some(Change::Remove)));
    assert_eq!((refund(1 << 60, None).0, refund(0, None).2), (113, None));
    // At a time.
    assert_eq!(refund(8, Some(NOW + 5)).1, [a, d, e]);
    assert_eq!(refund(7, Some(NOW + 5)).1, [a, b, d, e]);
    assert_eq!((refund(9, Some(NOW + 5)).0, refund(9, Some(NOW + 5)).1), (8, vec![a, d, e]));
    assert_eq!(refund(2, Some(NOW)).1, [(NOW, 1), b, c, d, e]);
    assert_eq!(refund(3, Some(NOW)).1, [b, c, d, e]);
    for time in [NOW - 1, NOW + 1, NOW + 29, NOW + 31, i64::MIN, i64::MAX] {
        assert_eq!((refund(1, Some(time)).0, refund(1, Some(time)).2), (0, None));
    }
    // What has expired in the same call is written down with it, and is not given back.
    let mut log = open(&bytes);
    log.prune(&bytes, span(NOW + 105, 100)).unwrap();
    assert_eq!(log.refund(&bytes, 1, Some(at(NOW + 5))).unwrap().0, 0);
    let (refunded, change) = log.refund(&bytes, 1, Some(at(NOW + 9))).unwrap();
    assert!(matches!(change, Some(Change::Write(_) | Change::Replace(_))));
    apply(change, &mut bytes);
    assert_eq!((refunded, verify(&bytes)), (1, vec![(NOW + 9, 1), e]));
}

#[test]
fn a_refund_near_the_end_writes_the_end() {
    let mut bytes = vec![];
    (0..5_000).for_each(|number| append(&mut bytes, NOW + number, 3));
    for (units, time) in [(1, None), (5, None), (300, None), (3, Some(NOW + 4_999)), (2, Some(NOW + 4_990))] {
        let (refunded, change) = open(&bytes).refund(&bytes, units, time.map(at)).unwrap();
        assert_eq!(refunded, units);
        assert!(change.as_ref().is_some_and(|change| written(change) < 120), "{units} at {time:?}: {change:?}");
        let mut after = bytes.clone();
        apply(change, &mut after);
        assert_eq!(open(&after).units(), 15_000 - units);
        verify(&after);
    }
}

#[test]
fn the_example_in_the_documentation_is_true() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    let document = include_str!("../../../docs/COMPACT.md");
    let mut bytes = vec![];
    let shown = |bytes: &[u8]| {
        let hex = hex(bytes);
        assert!(document.contains(&hex), "docs/COMPACT.md lacks {hex}");
    };
    call(&mut bytes, NOW, 60_000, Some(1));
    shown(&bytes);
    call(&mut bytes, NOW + 40, 60_000, Some(1));
    call(&mut bytes, NOW + 1_040, 60_000, Some(5));
    shown(&bytes);
    let Some(Change::Write(Patch { offset: 21, bytes: end })) = call(&mut bytes, NOW + 60_000, 60_000, Some(1)) else {
        panic!("an ordinary call does not write at the end");
    };
    shown(&end);
    assert_eq!(verify(&bytes), [(NOW + 40, 1), (NOW + 1_040, 5), (NOW + 60_000, 1)]);
}

#[test]
fn a_log_is_as_small_as_promised() {
    let mut bytes = vec![];
    append(&mut bytes, NOW, 1);
    assert_eq!(bytes.len(), 30);

    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..1_000 {
        let (mut bytes, mut stamps) = (vec![], [0; 5].map(|_| random.i64(0..60_000)));
        stamps.sort_unstable();
        stamps.into_iter().for_each(|stamp| append(&mut bytes, NOW + stamp, 1));
        assert!(bytes.len() <= 50, "{} bytes for 5 entries", bytes.len());
    }

    let mut stamps = [0; 10_000].map(|_| random.i64(0..60_000));
    stamps.sort_unstable();
    let mut bytes = vec![];
    stamps.into_iter().for_each(|stamp| append(&mut bytes, NOW + stamp, 1));
    assert!(bytes.len() <= 11_000, "{} bytes for 10,000 entries", bytes.len());
}

#[test]
fn a_log_in_steady_motion_keeps_its_size() {
    let longest = |limit: i64, step: i64| {
        let (mut bytes, mut longest) = (vec![], 0);
        for number in 0..20 * limit.max(100) {
            call(&mut bytes, NOW + number * step, limit * step, Some(1));
            longest = longest.max(bytes.len());
        }
        longest
    };
    for step in [1, 60, 1_000, 12_000, 1_000_000] {
        assert!(longest(5, step) <= 64, "limit 5, {} bytes", longest(5, step));
    }
    assert!(longest(10_000, 6) <= 13_500, "limit 10,000: {} bytes", longest(10_000, 6));
}

#[test]
fn an_ordinary_call_writes_a_few_bytes_at_the_end() {
    let (mut bytes, mut writes) = (vec![], 0);
    for number in 0..50_000 {
        let weight = (number % 3 != 0).then_some(number as u64 % 2 * ((1 << 38) - 1) + 1);
        match call(&mut bytes, NOW + number * 7, 70_000, weight) {
            Some(Change::Write(Patch { bytes, .. })) => {
                assert!(matches!(bytes, Bytes::Short { .. }), "{} bytes", bytes.len());
                writes += 1;
            }
            Some(Change::Replace(_)) | None => {}
            Some(change) => panic!("{change:?}"),
        }
    }
    assert!(writes > 46_000, "{writes} writes");
    verify(&bytes);
}

#[test]
fn a_million_expire_at_once() {
    let mut bytes = vec![];
    for number in 0..1_000_000 {
        append(&mut bytes, NOW + number / 20, 1);
    }
    assert_eq!(verify(&bytes).len(), 1_000_000);
    let mut log = open(&bytes);
    log.prune(&bytes, span(NOW + 49_999, 3)).unwrap();
    assert_eq!(log.units(), 60);
    let change = log.commit(&bytes, Some((at(NOW + 49_999), 1))).unwrap();
    apply(change, &mut bytes);
    assert_eq!(verify(&bytes).len(), 61);
    assert!(bytes.len() < 400, "{} bytes", bytes.len());

    let mut log = open(&bytes);
    log.prune(&bytes, span(NOW + 60_000, 10_001)).unwrap();
    assert!(log.is_empty());
    assert_eq!(log.commit(&bytes, None), Ok(Some(Change::Remove)));
}

/// A log of one entry of 4 units, as many units before the end of what is counted.
fn at_the_end_of_counting(units: u64) -> Vec<u8> {
    let start = Mark { at: 4, units: 0, stamp: NOW };
    let origin = MOST_UNITS + 1 - units;
    let mut log = Bytes::with_capacity(0);
    log.extend(b"RLS\x01");
    put_block_head(&mut log, start, origin);
    put_entry(&mut log, 0, 4);
    let end = Mark { at: log.len(), units: 4, stamp: NOW };
    let ends = Ends { head: Head { at: 16, units: 0, stamp: NOW }, end, origin, layout: Layout::STRAIGHT };
    put_short_footer(&mut log, &ends, 0);
    log.to_vec()
}

#[test]
fn units_are_counted_on_from_zero() {
    for units in 1..700 {
        let (mut bytes, mut model) = (at_the_end_of_counting(units), vec![(NOW, 4)]);
        assert_eq!(verify(&bytes), model);
        for step in 1..400 {
            append(&mut bytes, NOW + step, 2);
            model.push((NOW + step, 2));
        }
        append(&mut bytes, NOW, 7);
        model.insert(1, (NOW, 7));
        assert_eq!(verify(&bytes), model);
        compare(&open(&bytes), &bytes, &model, &mut fastrand::Rng::with_seed(units));
    }
}

#[test]
fn an_entry_of_any_weight_is_one_entry() {
    for weight in [1, 2, 65_536, 65_537, 1 << 32, 1 << 48, (1 << 53) - 2, (1 << 53) - 1] {
        let mut bytes = vec![];
        append(&mut bytes, NOW, weight);
        assert_eq!(verify(&bytes), [(NOW, weight)]);
        let log = open(&bytes);
        assert_eq!(log.units(), weight);
        assert_eq!(log.later_than(&bytes, at(NOW - 1)), Ok(weight));
        assert_eq!(log.newest_unit(&bytes, weight - 1), Ok(Some(at(NOW))));
        assert_eq!(log.newest_unit(&bytes, weight), Ok(None));
        // One call after the other, each as heavy as can be.
        for step in 1..300 {
            call(&mut bytes, NOW + step * 1_000, 1_000, Some(weight));
            assert_eq!(verify(&bytes), [(NOW + step * 1_000, weight)]);
            let mut late = bytes.clone();
            let rest = (MOST_UNITS - weight).max(1);
            let full = open(&late).commit(&late, Some((at(NOW + step * 1_000), rest + 1)));
            assert_eq!(full, Err(if rest == MOST_UNITS { Flaw::OutOfRange } else { Flaw::Full }));
            if weight < MOST_UNITS {
                append(&mut late, NOW + step * 1_000, rest);
                assert_eq!(open(&late).units(), MOST_UNITS);
            }
        }
    }
}

#[test]
fn units_that_cannot_be_counted_are_refused() {
    let mut bytes = vec![];
    append(&mut bytes, NOW, MOST_UNITS - 10);
    for stamp in [NOW - 1, NOW, NOW + 1] {
        let commit = |weight| open(&bytes).commit(&bytes, Some((at(stamp), weight)));
        assert!(commit(10).is_ok());
        for weight in [11, 1 << 32, MOST_UNITS] {
            assert_eq!(commit(weight), Err(Flaw::Full));
        }
    }
    // What has expired makes room.
    call(&mut bytes, NOW + 500, 1_000, Some(10));
    call(&mut bytes, NOW + 1_000, 1_000, Some(MOST_UNITS - 10));
    assert_eq!(verify(&bytes), [(NOW + 500, 10), (NOW + 1_000, MOST_UNITS - 10)]);
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let mut bytes = vec![];
    append(&mut bytes, NOW, 1);
    for log in [&[][..], &bytes] {
        for (stamp, weight) in
            [(-1, 1), (i64::MIN, 1), (LATEST + 1, 1), (i64::MAX, 1), (NOW, 0), (NOW, 1 << 53), (NOW, u64::MAX)]
        {
            assert_eq!(open(log).commit(log, Some((at(stamp), weight))), Err(Flaw::OutOfRange));
        }
        for stamp in [0, NOW, LATEST] {
            let mut bytes = log.to_vec();
            append(&mut bytes, stamp, 1);
            assert!(verify(&bytes).contains(&(stamp, 1)));
        }
    }
}

#[test]
fn a_string_that_would_get_too_long_is_refused() {
    let write = |at| {
        let end = Mark { at, units: 1, stamp: NOW };
        let mut writer = Writer::at(end, 0, Space::NEW);
        writer.push(NOW, 1).unwrap();
        writer.write(Head { at: 16, units: 0, stamp: NOW }, 0)
    };
    assert!(write(LONGEST_LOG - 100).is_ok());
    assert_eq!(write(LONGEST_LOG - 10), Err(Flaw::Full));
}

#[test]
fn what_is_no_log_is_told_apart() {
    let flaw = |bytes: &[u8]| Compact::open(bytes).err();
    for other in [&b""[..], b"RLS", b"hello, world", b"\x01RLS", b"HYLL\x01"] {
        assert_eq!(flaw(other), Some(Flaw::NotALog));
    }
    assert_eq!(flaw(b"RLS\x02 whatever it may hold"), Some(Flaw::OtherVersion));
    assert_eq!(flaw(b"RLS\x01"), Some(Flaw::Damaged));
    assert_eq!(flaw(&[b"RLS\x01", &[0; 60][..]].concat()), Some(Flaw::Damaged));
}

#[test]
fn a_log_that_contradicts_itself_is_told() {
    let mut bytes = vec![];
    (0..1_000).for_each(|number| append(&mut bytes, NOW + number, 1));
    // The checkpoint of the third block, in time and in units.
    for place in [516, 524] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        let mut log = open(&damaged);
        let in_second = span(NOW + 1_000, 750);
        assert_eq!(
            log.prune(&damaged, in_second).and(log.commit(&damaged, Some((at(NOW + 100), 1)))),
            Err(Flaw::Damaged)
        );
    }
    // An entry that never ends.
    let mut damaged = bytes.clone();
    damaged[20..40].fill(FILLER);
    assert_eq!(open(&damaged).prune(&damaged, span(NOW + 1_000, 950)), Err(Flaw::Damaged));
}

#[test]
fn an_entry_before_the_head_may_open_a_block() {
    let mut bytes = vec![];
    (0..243).for_each(|_| append(&mut bytes, NOW, 1));
    (0..400).for_each(|_| append(&mut bytes, NOW + 10, 1));
    let mut log = open(&bytes);
    log.prune(&bytes, Span { expired_to: at(NOW), sane_to: at(NOW + 10) }).unwrap();
    assert_eq!(log.ends.head.at, 259, "the head should be the last byte of its block");
    let change = log.commit(&bytes, Some((at(NOW + 5), 1_000))).unwrap();
    assert!(matches!(change, Some(Change::Write(Patch { offset: 259, .. }))));
    apply(change, &mut bytes);
    let model = [vec![(NOW + 5, 1_000)], vec![(NOW + 10, 1); 400]].concat();
    assert_eq!(verify(&bytes), model);
    compare(&open(&bytes), &bytes, &model, &mut fastrand::Rng::with_seed(1));
}

#[test]
fn a_call_that_only_prunes_keeps_the_length() {
    let mut bytes = vec![];
    append(&mut bytes, NOW, 1);
    (0..100).for_each(|number| append(&mut bytes, NOW + 10_000_000 + number % 2, 1));
    let len = bytes.len();
    let change = call(&mut bytes, NOW + 10_000_001, 60_000, None);
    assert!(matches!(change, Some(Change::Write(_))));
    assert_eq!(bytes.len(), len);
    assert_eq!(verify(&bytes).len(), 100);
    // The padding goes with the next entry.
    append(&mut bytes, NOW + 10_000_001, 1);
    assert_eq!(bytes.len(), len);
}

/// A full block with dead entries and a byte of filler, and an entry far ahead in the next one.
fn filled() -> Vec<u8> {
    let mut bytes = vec![];
    (0..60).for_each(|_| append(&mut bytes, NOW, 1));
    (0..183).for_each(|_| append(&mut bytes, NOW + 10, 1));
    append(&mut bytes, NOW + 100_000, 1);
    assert_eq!(bytes[259], FILLER);
    bytes
}

#[test]
fn filler_does_not_stay_where_the_log_was_cut() {
    let mut bytes = filled();
    let mut log = open(&bytes);
    log.prune(&bytes, Span { expired_to: at(NOW), sane_to: at(NOW + 50) }).unwrap();
    let change = log.commit(&bytes, Some((at(NOW + 20), 1))).unwrap();
    apply(change, &mut bytes);
    assert_eq!(verify(&bytes), [vec![(NOW + 10, 1); 183], vec![(NOW + 20, 1)]].concat());
}

#[test]
fn filler_is_nothing_but_filler() {
    let mut bytes = filled();
    let far = |bytes: &[u8]| open(bytes).prune(bytes, Span { expired_to: at(NOW + 20), sane_to: at(NOW + 200_000) });
    assert_eq!(far(&bytes), Ok(()));
    bytes[259] = 0x81;
    let mut log = open(&bytes);
    let from = log.head_mark(&bytes).unwrap();
    assert_eq!(log.walk(&bytes, from, |_| true).err(), Some(Flaw::Damaged));
    assert_eq!(log.prune(&bytes, Span { expired_to: at(NOW), sane_to: at(NOW + 200_000) }), Ok(()));
    assert_eq!(log.copy(&bytes, from, &mut Writer::new(0)), Err(Flaw::Damaged));
}
