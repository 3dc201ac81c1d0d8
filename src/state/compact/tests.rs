//! The compact log against a plain list, and against bytes that nobody wrote.

use std::iter;

use proptest::prelude::*;

use self::reader::{Entry as Read, Reading};
use super::format::{FILLER, LAST_END, LONGEST_LOG};
use super::*;
use crate::limit::Window;

/// Reads and writes logs by the words of docs/COMPACT.md.
#[path = "../../../tests/support/compact.rs"]
#[allow(dead_code)]
mod reader;

const NOW: i64 = 1_700_000_000_000;

impl Compact {
    fn oldest(&self) -> Option<Time> {
        (!self.is_empty()).then_some(Time::from_millis(self.ends.head.stamp))
    }

    fn newest(&self) -> Option<Time> {
        (!self.is_empty()).then_some(Time::from_millis(self.ends.end.stamp))
    }
}

fn at(millis: i64) -> Time {
    Time::from_millis(millis)
}

/// What is further ahead than the window is not kept here, so that it is dropped in short histories, too.
fn span(now: i64, window: i64) -> Span {
    let window = Window::from_millis(window).unwrap();
    between(at(now).minus(window), at(now).plus(window))
}

fn between(expired: Time, latest: Time) -> Span {
    Span { expired, latest, kept: latest }
}

/// What the server does with a change. An empty string stands for no key.
fn apply(edit: Option<Edit>, bytes: &mut Vec<u8>) {
    match edit {
        None => {}
        Some(Edit::Remove) => bytes.clear(),
        Some(Edit::Replace(whole)) => *bytes = whole,
        Some(Edit::Write(first, second)) => {
            for Patch { offset, bytes: new } in iter::once(first).chain(second) {
                assert!(offset <= bytes.len(), "a write leaves a hole");
                let end = offset + new.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset..end].copy_from_slice(&new);
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

fn commit(log: &Compact, bytes: &[u8], addition: Option<(i64, i64)>) -> Result<Option<Edit>, Flaw> {
    log.commit(bytes, addition.map(|(stamp, weight)| (at(stamp), weight)), Compaction::IfDue)
}

/// Adds without pruning.
fn append(bytes: &mut Vec<u8>, stamp: i64, weight: i64) {
    let edit = commit(&open(bytes), bytes, Some((stamp, weight))).unwrap();
    apply(edit, bytes);
}

/// One call: prunes, and adds.
fn call(bytes: &mut Vec<u8>, now: i64, window: i64, weight: Option<i64>) -> Option<Edit> {
    let mut log = open(bytes);
    log.prune(bytes, span(now, window)).unwrap();
    let edit = commit(&log, bytes, weight.map(|weight| (now, weight))).unwrap();
    apply(edit.clone(), bytes);
    edit
}

/// The live entries of a log, by the letter of the page.
fn verify(bytes: &[u8]) -> Vec<(i64, i64)> {
    let Reading::Sound(entries) = reader::read(bytes) else { panic!("{:?}", reader::read(bytes)) };
    entries.into_iter().map(|Read { stamp, weight }| (stamp as i64, weight as i64)).collect()
}

fn compare(log: &Compact, bytes: &[u8], model: &[(i64, i64)], random: &mut fastrand::Rng) {
    let units: i64 = model.iter().map(|entry| entry.1).sum();
    assert_eq!(log.units(), units);
    assert_eq!(log.is_empty(), model.is_empty());
    assert_eq!(log.oldest().map(Time::millis), model.first().map(|entry| entry.0));
    assert_eq!(log.newest().map(Time::millis), model.last().map(|entry| entry.0));
    for _ in 0..3 {
        let time = match model {
            [] => NOW,
            model => model[random.usize(..model.len())].0 + random.i64(-2..3),
        };
        let later = model.iter().filter(|entry| entry.0 > time).map(|entry| entry.1).sum::<i64>();
        assert_eq!(log.later_than(bytes, at(time)), Ok(later));
        let rank = random.i64(0..units + 2);
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
    limit: i64,
    heaviest: i64,
    /// The usual step of the clock.
    stride: i64,
    /// One call in this many comes after the clock was stepped, either way.
    steps: u32,
    calls: usize,
}

impl History {
    fn run(&self) {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let (mut bytes, mut model, mut now) = (vec![], vec![], NOW);
        for number in 0..self.calls {
            now += random.i64(0..=self.stride);
            if random.u32(..self.steps) == 0 {
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
            let mut pruned: Vec<(i64, i64)> = model.clone();
            pruned.retain(|&(stamp, _)| at(stamp) > span.expired && at(stamp) <= span.latest);

            let mut log = open(&bytes);
            compare(&log, &bytes, &model, &mut random);
            log.prune(&bytes, span).unwrap();
            compare(&log, &bytes, &pruned, &mut random);
            let heaviest = random.i64(1..=self.heaviest);
            let weight = random.i64(1..=heaviest);
            let allowed = log.units() + weight <= self.limit;
            if !allowed && random.bool() {
                // A call that is denied may leave everything as it is.
                continue;
            }
            let has_expired = pruned != model;
            model = pruned;
            let edit = if random.u32(..8) == 0 {
                let time = (random.bool() && !model.is_empty()).then(|| model[random.usize(..model.len())].0);
                let most = match random.u32(..200) {
                    0 => log.units() + 1,
                    1 => log.units() / 2,
                    2 => log.units() / 8,
                    3..20 => 40,
                    _ => weight,
                };
                let (refunded, edit) = log.refund(&bytes, most, time.map(at), at(now), Compaction::IfDue).unwrap();
                assert_eq!(refunded, take_back(&mut model, most, time, now, &log, &bytes));
                assert_eq!(edit.is_some(), has_expired || refunded > 0);
                edit
            } else {
                if allowed {
                    add(&mut model, now, weight, &log, &bytes);
                }
                let edit = commit(&log, &bytes, allowed.then_some((now, weight))).unwrap();
                assert_eq!(edit.is_some(), has_expired || allowed);
                edit
            };
            check_size(&log, &bytes, edit.as_ref());
            apply(edit, &mut bytes);
            match model.is_empty() {
                true => assert!(bytes.is_empty()),
                false if model.len() < 100 || number % 16 == 0 => assert_eq!(verify(&bytes), model),
                false => {}
            }
        }
    }
}

/// Adds to a model what a log takes: what belongs before the last 32 KiB counts a little longer.
fn add(model: &mut Vec<(i64, i64)>, now: i64, weight: i64, log: &Compact, bytes: &[u8]) {
    let stamp = match model.last() {
        Some(newest) if now < newest.0 => log.first_rewritable(bytes).unwrap().map_or(now, |mark| now.max(mark.stamp)),
        _ => now,
    };
    let place = model.partition_point(|entry| entry.0 <= stamp);
    model.insert(place, (stamp, weight));
}

/// The patches, if the string is not replaced or removed as a whole.
fn patches(edit: &Edit) -> Vec<&Patch> {
    if let Edit::Write(first, second) = edit { iter::once(first).chain(second).collect() } else { vec![] }
}

fn written(edit: &Edit) -> usize {
    patches(edit).into_iter().map(|patch| patch.bytes.len()).sum()
}

/// A change moves the log only where that is due, and writes little otherwise.
fn check_size(log: &Compact, bytes: &[u8], edit: Option<&Edit>) {
    match edit {
        Some(Edit::Replace(whole)) if !bytes.is_empty() && !log.is_empty() => {
            assert!(whole.len() < bytes.len() + 128, "a longer string");
        }
        Some(edit) => {
            // Filler may make what is written again a little longer.
            let written = written(edit);
            assert!(written <= MOST_REWRITTEN + MOST_REWRITTEN / 16 + 200, "{written} bytes written");
        }
        None => {}
    }
}

/// Takes the newest units out of a model, or those at a time that can be rewritten. Returns how many.
fn take_back(model: &mut Vec<(i64, i64)>, most: i64, time: Option<i64>, now: i64, log: &Compact, bytes: &[u8]) -> i64 {
    let units = |entries: &[(i64, i64)]| entries.iter().map(|entry| entry.1).sum::<i64>();
    let until = model.partition_point(|entry| entry.0 <= time.unwrap_or(now));
    let since = time.map_or(0, |time| model.partition_point(|entry| entry.0 < time));
    let first = log.first_rewritable(bytes).unwrap().filter(|_| time.is_some() || until < model.len());
    let first = first.map_or(0, |mark| mark.units - log.ends.head.units);
    let before = units(&model[..since]).max(first);
    let refunded = (units(&model[..until]) - before).max(0).min(most);
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
    let weights = prop_oneof![3 => Just(1i64), 1 => 1i64..5, 1 => 1i64..65_537, 1 => 1i64..=MOST_UNITS];
    let steps = prop_oneof![Just(5u32), Just(50), Just(100_000)];
    (any::<u64>(), windows, 1i64..2_000, weights, 1i64..2_000, steps).prop_map(
        |(seed, window, entries, heaviest, pace, steps)| History {
            seed,
            window,
            limit: entries.saturating_mul((heaviest + 1) / 2).min(MOST_UNITS),
            heaviest,
            stride: (window / (entries * 500) * pace).max(1),
            steps,
            calls: 1_500,
        },
    )
}

/// Whatever the bytes are, nothing panics and every result is within bounds.
fn exercise(bytes: &[u8], random: &mut fastrand::Rng) {
    let Ok(opened) = Compact::open(bytes) else { return };
    let (oldest, newest) = (opened.oldest().unwrap().millis(), opened.newest().unwrap().millis());
    for _ in 0..4 {
        let mut log = opened;
        let time = |random: &mut fastrand::Rng| match random.u32(..3) {
            0 => random.i64(oldest - 5..=newest.min(oldest + 5)),
            1 => random.i64(oldest - 2..=newest + 2),
            _ => random.i64(..),
        };
        let (expired, other) = (time(random), time(random));
        let span = between(at(expired.min(other)), at(expired.max(other)));
        if random.bool() && log.prune(bytes, span).is_err() {
            continue;
        }
        if let Ok(later) = log.later_than(bytes, at(time(random))) {
            assert!(later <= log.units());
        }
        if let Ok(Some(unit)) = log.newest_unit(bytes, random.i64(0..=log.units())) {
            assert!(unit >= log.oldest().unwrap() && unit <= log.newest().unwrap());
        }
        let heaviest = 1_i64 << random.u32(..54);
        let addition = random.bool().then(|| (at(time(random)), random.i64(0..=heaviest)));
        let time = random.bool().then(|| at(time(random)));
        let most = random.i64(0..=heaviest);
        let edit = match random.bool() {
            true => log.commit(bytes, addition, [Compaction::IfDue, Compaction::Never][random.usize(..2)]),
            false => log.refund(bytes, most, time, at(random.i64(oldest - 2..=newest + 2)), Compaction::IfDue).map(
                |(refunded, edit)| {
                    assert!(refunded <= most.min(log.units()));
                    edit
                },
            ),
        };
        if let Ok(edit) = edit {
            let mut after = bytes.to_vec();
            let removed = edit == Some(Edit::Remove);
            apply(edit, &mut after);
            assert!(removed || Compact::open(&after).is_ok());
        }
    }
}

/// A log with dead entries, weights, filler and `entries` entries.
fn sample(entries: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let (mut bytes, mut now) = (vec![], NOW);
    for _ in 0..entries {
        now += random.i64(0..300);
        let heaviest = 70_000 << random.u32(..27);
        let weight = if random.bool() { 1 } else { random.i64(1..heaviest) };
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
    fn bytes_that_were_changed_never_panic(seed: u64, entries in 1usize..700) {
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
    fn bytes_before_a_sound_footer_never_panic(seed: u64, len in 0usize..1_200) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = b"RLS\x01".to_vec();
        let calm = random.bool();
        bytes.extend((0..len).map(|_| if calm { random.u8(..4) } else { random.u8(..) }));
        exercise(&bytes, &mut random);
        let most = if calm { len as i64 * 2 } else { MOST_UNITS };
        let latest = most.min(LATEST);
        for _ in 0..20 {
            let end = Mark {
                at: if random.bool() { bytes.len() } else { random.usize(..bytes.len() + 2) },
                units: random.i64(0..=most),
                stamp: random.i64(0..=latest),
            };
            let head = Head {
                at: random.usize(..bytes.len() + 2),
                units: random.i64(0..=end.units), // The end's own is refused.
                stamp: random.i64(0..=end.stamp),
            };
            let ends = Ends { head, end, origin: random.i64(0..=MOST_UNITS) };
            let mut footer = Vec::new();
            ends.put_footer(&mut footer, 0);
            let mut bytes = [&bytes[..], &footer].concat();
            reader::seal(&mut bytes);
            exercise(&bytes, &mut random);
        }
    }

    #[test]
    fn every_change_to_a_footer_is_seen(seed: u64, entries in 1usize..300) {
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
        // The check lets one change in 65,521 pass.
        prop_assert!(unseen <= 1, "{unseen} changes unseen");
    }
}

#[test]
fn long_histories_hold_too() {
    for (seed, (limit, heaviest, stride, steps)) in [
        (5, 1, 20_000, 40),
        (300, 1, 400, 1_000_000),
        (9_000, 1, 12, 4_000),
        (9_000, 1, 20, 200),
        // 12 bytes an entry: more than one call rewrites.
        (6_000 << 40, 1 << 41, 20, 500),
    ]
    .into_iter()
    .enumerate()
    {
        History { seed: seed as u64, window: 60_000, limit, heaviest, stride, steps, calls: 20_000 }.run();
    }
}

/// A sound log with these entries, the first `dead` of which are dead, and a gap.
fn planted(entries: impl IntoIterator<Item = (i64, i64)>, dead: usize, gap: usize) -> Vec<u8> {
    let entries: Vec<Read> =
        entries.into_iter().map(|(stamp, weight)| Read { stamp: stamp as u64, weight: weight as u64 }).collect();
    reader::write(&entries, dead, 0, gap)
}

/// Each kind of change to a log of more than 32 KiB, with and without a gap, with dead bytes that stay and that can go.
#[test]
fn a_long_log_takes_every_change() {
    let mut random = fastrand::Rng::with_seed(1);
    for gap in [0, 1, 63, 64, 65, 3_000] {
        for dead in [0, 100, 9_000] {
            let mut model: Vec<(i64, i64)> =
                (0..50_000).map(|number| (NOW + number / 3, if number % 50 == 0 { 1 << 40 } else { 1 })).collect();
            let mut bytes = planted(model.clone(), dead, gap);
            model.drain(..dead);
            assert_eq!(verify(&bytes), model);
            for number in 0..200 {
                let mut log = open(&bytes);
                let (oldest, newest) = (model[0].0, model[model.len() - 1].0);
                let ago = [0, 3, 100, 9_000, 16_000][random.usize(..5)];
                let stamp = (newest - random.i64(0..=ago)).max(oldest);
                let weight = [1, 2, 1 << 30][random.usize(..3)];
                let edit = match number % 6 {
                    0 => {
                        // Some expire, and some are ahead of the clock.
                        let (expired, latest) = (at(oldest + random.i64(0..40)), at(newest - random.i64(0..40)));
                        log.prune(&bytes, between(expired, latest)).unwrap();
                        model.retain(|entry| entry.0 > expired.millis() && entry.0 <= latest.millis());
                        commit(&log, &bytes, None)
                    }
                    1 => {
                        let (refunded, edit) =
                            log.refund(&bytes, weight, Some(at(stamp)), at(newest), Compaction::IfDue).unwrap();
                        assert_eq!(refunded, take_back(&mut model, weight, Some(stamp), newest, &log, &bytes));
                        Ok(edit)
                    }
                    2 => {
                        let most = weight.min(100);
                        let (refunded, edit) = log.refund(&bytes, most, None, at(stamp), Compaction::IfDue).unwrap();
                        assert_eq!(refunded, take_back(&mut model, most, None, stamp, &log, &bytes));
                        Ok(edit)
                    }
                    3 => {
                        add(&mut model, stamp, weight, &log, &bytes);
                        commit(&log, &bytes, Some((stamp, weight)))
                    }
                    _ => {
                        model.push((newest + 1, weight));
                        commit(&log, &bytes, Some((newest + 1, weight)))
                    }
                };
                let edit = edit.unwrap();
                check_size(&log, &bytes, edit.as_ref());
                apply(edit, &mut bytes);
                if number % 8 < 2 {
                    assert_eq!(verify(&bytes), model, "gap {gap}, dead {dead}, edit {number}");
                    compare(&open(&bytes), &bytes, &model, &mut random);
                }
            }
        }
    }
}

#[test]
fn a_gap_is_written_along_or_stepped_over_and_goes() {
    for gap in [0, 1, 40, 64, 65, 500] {
        let mut bytes = planted((0..3_000).map(|number| (NOW + number, 1)), 0, gap);
        let (length, end) = (bytes.len(), open(&bytes).ends.end.at);
        let edit = commit(&open(&bytes), &bytes, Some((NOW + 3_000, 1))).unwrap().unwrap();
        let offsets: Vec<usize> = patches(&edit).into_iter().map(|patch| patch.offset).collect();
        match gap {
            // The footer keeps its length.
            ..=65 => assert_eq!(offsets, [end]),
            _ => assert_eq!(offsets, [end, length - usize::from(bytes[length - 1])]),
        }
        apply(Some(edit), &mut bytes);
        assert_eq!(bytes.len(), length.max(length + 1 - gap.min(1)));
        for number in 1..gap as i64 + 20 {
            append(&mut bytes, NOW + 3_000 + number, 1);
        }
        assert_eq!(verify(&bytes).len(), 3_000 + gap + 20);
        assert_eq!(footer_of(&bytes), open(&bytes).ends.end.at);
    }
}

/// With a footer at the end of the longest string.
fn full(dead: usize) -> Vec<u8> {
    // Of entries of a byte the first block holds 256, and each other one 243.
    let last = block_of(LAST_END);
    let entries = BLOCK + (last - 1) * (BLOCK - BLOCK_HEAD) + (LAST_END - block_start(last) - BLOCK_HEAD);
    let log = planted((0..entries as i64).map(|number| (NOW + number / 100, 1)), dead, 0);
    assert_eq!(open(&log).ends.end.at, LAST_END);
    log
}

#[test]
fn a_log_that_is_full_says_so_and_is_moved_where_that_helps() {
    let entries = full(0).len() * 243 / BLOCK;
    let newest = verify(&full(entries / 2)).last().unwrap().0;
    let changed = |bytes: &[u8], compaction| open(bytes).commit(bytes, Some((at(newest), 1)), compaction);
    for (dead, moves) in [(0, false), (60_000, false), (64_000, true), (1 << 20, true)] {
        let mut bytes = full(dead);
        assert!(!open(&bytes).is_compaction_due(&bytes));
        assert_eq!(changed(&bytes, Compaction::Never), Err(Flaw::Full));
        match changed(&bytes, Compaction::IfDue) {
            Ok(edit) => {
                assert!(moves && matches!(edit, Some(Edit::Replace(_))), "{dead} dead entries");
                let before = verify(&bytes);
                apply(edit, &mut bytes);
                assert_eq!(verify(&bytes), [before, vec![(newest, 1)]].concat());
                // And then not again for long.
                for _ in 0..1_000 {
                    assert!(matches!(changed(&bytes, Compaction::Never), Ok(Some(Edit::Write(_, None)))));
                    append(&mut bytes, newest, 1);
                }
            }
            Err(flaw) => assert_eq!((flaw, moves), (Flaw::Full, false), "{dead} dead entries"),
        }
        // What needs no room goes on.
        let bytes = full(dead);
        let mut log = open(&bytes);
        let expired = at(log.oldest().unwrap().millis() + 20);
        log.prune(&bytes, between(expired, at(newest))).unwrap();
        assert!(matches!(log.commit(&bytes, None, Compaction::Never), Ok(Some(Edit::Write(_, None)))));
        assert!(matches!(log.refund(&bytes, 1_000, None, at(newest), Compaction::IfDue), Ok((1_000, Some(_)))));
    }
    let mut bytes = full(entries / 4);
    assert!(open(&bytes).is_compaction_due(&bytes));
    append(&mut bytes, newest, 1);
    assert!(bytes.len() < LONGEST_LOG / 5 * 4);
}

/// What moving costs a log of two million entries while it grows, keeps its size and shrinks.
#[test]
fn about_four_bytes_are_moved_for_each_that_expires() {
    let (mut bytes, mut most, mut moved, mut dropped) = (vec![], 0, 0, 0);
    for number in 0..4_000_000 {
        let weight = (number / 500_000 % 4 != 2 || number % 2 == 0).then_some(1);
        let length = bytes.len();
        match call(&mut bytes, NOW + number / 100, 10_000, weight) {
            Some(Edit::Replace(whole)) => {
                moved += whole.len();
                dropped += length.saturating_sub(whole.len());
            }
            Some(edit) => most = most.max(written(&edit)),
            None => {}
        }
    }
    assert!(most <= 128, "{most} bytes written");
    assert!(moved < dropped * 5, "{moved} bytes moved, {dropped} dropped");
    verify(&bytes);
}

#[test]
fn units_are_taken_back() {
    let mut bytes = vec![];
    let model = [(NOW, 3), (NOW + 5, 1), (NOW + 5, 7), (NOW + 9, 2), (NOW + 30, 100)];
    model.into_iter().for_each(|(stamp, weight)| append(&mut bytes, stamp, weight));
    let refund = |units, time: Option<i64>| {
        let mut after = bytes.clone();
        let (refunded, edit) = open(&bytes).refund(&bytes, units, time.map(at), at(LATEST), Compaction::IfDue).unwrap();
        apply(edit.clone(), &mut after);
        (refunded, if after.is_empty() { vec![] } else { verify(&after) }, edit)
    };
    let [a, b, c, d, e] = model;
    // The newest: of the last entry something is left, nothing, and of others too.
    assert_eq!(refund(1, None).1, [a, b, c, d, (NOW + 30, 99)]);
    assert_eq!(refund(100, None).1, [a, b, c, d]);
    assert_eq!(refund(105, None).1, [a, b, (NOW + 5, 4)]);
    assert_eq!((refund(113, None).0, refund(113, None).2), (113, Some(Edit::Remove)));
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
    assert_eq!(log.refund(&bytes, 1, Some(at(NOW + 5)), at(NOW), Compaction::IfDue).unwrap().0, 0);
    let (refunded, edit) = log.refund(&bytes, 1, Some(at(NOW + 9)), at(NOW), Compaction::IfDue).unwrap();
    assert!(matches!(edit, Some(Edit::Write(_, None) | Edit::Replace(_))));
    apply(edit, &mut bytes);
    assert_eq!((refunded, verify(&bytes)), (1, vec![(NOW + 9, 1), e]));
}

#[test]
fn a_refund_near_the_end_writes_the_end() {
    let mut bytes = vec![];
    (0..5_000).for_each(|number| append(&mut bytes, NOW + number, 3));
    for (units, time) in [(1, None), (5, None), (300, None), (3, Some(NOW + 4_999)), (2, Some(NOW + 4_990))] {
        let (refunded, edit) = open(&bytes).refund(&bytes, units, time.map(at), at(LATEST), Compaction::IfDue).unwrap();
        assert_eq!(refunded, units);
        assert!(edit.as_ref().is_some_and(|edit| written(edit) < 120), "{units} at {time:?}: {edit:?}");
        let mut after = bytes.clone();
        apply(edit, &mut after);
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
    let edit = call(&mut bytes, NOW + 60_000, 60_000, Some(1)).unwrap();
    let Edit::Write(Patch { offset: 9, bytes: end }, None) = edit else {
        panic!("an ordinary call does not write at the end");
    };
    shown(&end);
    assert_eq!(verify(&bytes), [(NOW + 40, 1), (NOW + 1_040, 5), (NOW + 60_000, 1)]);
}

#[test]
fn a_log_is_as_small_as_promised() {
    let mut bytes = vec![];
    append(&mut bytes, NOW, 1);
    assert_eq!(bytes.len(), 19);

    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..1_000 {
        let (mut bytes, mut stamps) = (vec![], [0; 5].map(|_| random.i64(0..60_000)));
        stamps.sort_unstable();
        stamps.into_iter().for_each(|stamp| append(&mut bytes, NOW + stamp, 1));
        assert!(bytes.len() <= 39, "{} bytes for 5 entries", bytes.len());
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
        assert!(longest(5, step) <= 50, "limit 5, {} bytes", longest(5, step));
    }
    assert!(longest(10_000, 6) <= 13_500, "limit 10,000: {} bytes", longest(10_000, 6));
}

#[test]
fn an_ordinary_call_writes_a_few_bytes_at_the_end() {
    let (mut bytes, mut writes) = (vec![], 0);
    for number in 0..50_000 {
        let weight = (number % 3 != 0).then_some(number % 2 * ((1 << 38) - 1) + 1);
        match call(&mut bytes, NOW + number * 7, 70_000, weight) {
            Some(Edit::Write(Patch { bytes, .. }, None)) => {
                assert!(bytes.len() <= 64, "{} bytes", bytes.len());
                writes += 1;
            }
            Some(Edit::Replace(_)) | None => {}
            Some(edit) => panic!("{edit:?}"),
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
    let edit = commit(&log, &bytes, Some((NOW + 49_999, 1))).unwrap();
    apply(edit, &mut bytes);
    assert_eq!(verify(&bytes).len(), 61);
    assert!(bytes.len() < 400, "{} bytes", bytes.len());

    let mut log = open(&bytes);
    log.prune(&bytes, span(NOW + 60_000, 10_001)).unwrap();
    assert!(log.is_empty());
    assert_eq!(commit(&log, &bytes, None), Ok(Some(Edit::Remove)));
}

/// A log of one entry of 4 units, as many units before the end of what is counted.
fn at_the_end_of_counting(units: u64) -> Vec<u8> {
    reader::write(&[Read { stamp: NOW as u64, weight: 4 }], 0, (1 << 53) - units, 0)
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
            let full = commit(&open(&late), &late, Some((NOW + step * 1_000, rest + 1)));
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
        let add = |weight| commit(&open(&bytes), &bytes, Some((stamp, weight)));
        assert!(add(10).is_ok());
        for weight in [11, 1 << 32, MOST_UNITS] {
            assert_eq!(add(weight), Err(Flaw::Full));
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
        for (stamp, weight) in [
            (-1, 1),
            (i64::MIN, 1),
            (LATEST + 1, 1),
            (i64::MAX, 1),
            (NOW, 0),
            (NOW, 1 << 53),
            (NOW, i64::MAX),
            (NOW, -1),
        ] {
            assert_eq!(commit(&open(log), log, Some((stamp, weight))), Err(Flaw::OutOfRange));
        }
        for stamp in [0, NOW, LATEST] {
            let mut bytes = log.to_vec();
            append(&mut bytes, stamp, 1);
            assert!(verify(&bytes).contains(&(stamp, 1)));
        }
    }
}

#[test]
fn what_is_not_a_log_is_recognised() {
    let flaw = |bytes: &[u8]| Compact::open(bytes).err();
    for other in [&b""[..], b"RLS", b"hello, world", b"\x01RLS", b"HYLL\x01"] {
        assert_eq!(flaw(other), Some(Flaw::NotALog));
    }
    assert_eq!(flaw(b"RLS\x02 whatever it may hold"), Some(Flaw::OtherVersion));
    assert_eq!(flaw(b"RLS\x01"), Some(Flaw::Damaged));
    assert_eq!(flaw(&[b"RLS\x01", &[0; 60][..]].concat()), Some(Flaw::Damaged));
}

#[test]
fn a_log_that_contradicts_itself_is_recognised() {
    let mut bytes = vec![];
    (0..1_000).for_each(|number| append(&mut bytes, NOW + number, 1));
    // The checkpoint of the third block, in time and in units.
    for place in [516, 525] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        let mut log = open(&damaged);
        let in_second = span(NOW + 1_000, 750);
        assert_eq!(
            log.prune(&damaged, in_second).and(commit(&log, &damaged, Some((NOW + 100, 1)))),
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
    (0..255).for_each(|_| append(&mut bytes, NOW, 1));
    (0..400).for_each(|_| append(&mut bytes, NOW + 10, 1));
    let mut log = open(&bytes);
    log.prune(&bytes, between(at(NOW), at(NOW + 10))).unwrap();
    assert_eq!(log.ends.head.at, 259, "the head should be the last byte of its block");
    let edit = commit(&log, &bytes, Some((NOW + 5, 1_000))).unwrap();
    assert!(matches!(edit, Some(Edit::Write(Patch { offset: 259, .. }, None))));
    apply(edit, &mut bytes);
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
    let edit = call(&mut bytes, NOW + 10_000_001, 60_000, None);
    assert!(matches!(edit, Some(Edit::Write(_, None))));
    assert_eq!(bytes.len(), len);
    assert_eq!(verify(&bytes).len(), 100);
    // The gap goes with the next entry.
    append(&mut bytes, NOW + 10_000_001, 1);
    assert_eq!(bytes.len(), len);
}

/// A full block with dead entries and a byte of filler, and an entry far ahead in the next one.
fn filled() -> Vec<u8> {
    let mut bytes = vec![];
    (0..60).for_each(|_| append(&mut bytes, NOW, 1));
    (0..195).for_each(|_| append(&mut bytes, NOW + 10, 1));
    append(&mut bytes, NOW + 100_000, 1);
    assert_eq!(bytes[259], FILLER);
    bytes
}

#[test]
fn filler_does_not_stay_where_the_log_was_cut() {
    let mut bytes = filled();
    let mut log = open(&bytes);
    log.prune(&bytes, between(at(NOW), at(NOW + 50))).unwrap();
    let edit = commit(&log, &bytes, Some((NOW + 20, 1))).unwrap();
    apply(edit, &mut bytes);
    assert_eq!(verify(&bytes), [vec![(NOW + 10, 1); 195], vec![(NOW + 20, 1)]].concat());
}

#[test]
fn filler_is_nothing_but_filler() {
    let mut bytes = filled();
    let insert = |bytes: &[u8]| commit(&open(bytes), bytes, Some((NOW + 5, 1)));
    assert!(insert(&bytes).is_ok());
    // An entry that does not end with its block.
    bytes[259] = 0x81;
    assert_eq!(insert(&bytes), Err(Flaw::Damaged));
    // A search does not read these bytes.
    assert_eq!(open(&bytes).prune(&bytes, between(at(NOW), at(NOW + 200_000))), Ok(()));
}

/// Turns as short as they are, as heavy as they can be, and mixed: once no more are given, a request of any time from then on has its place
/// before them, however the queue is written anew.
#[test]
fn an_entry_of_now_has_its_place_before_a_queue_that_is_full() {
    for (stride, heaviest) in [(0, 1), (20, 1), (100, 3), (100, MOST_UNITS >> 18), (9, 500)] {
        let mut random = fastrand::Rng::with_seed(stride as u64 + heaviest as u64);
        let mut bytes = vec![];
        (0..300).for_each(|number| append(&mut bytes, NOW - 300 + number, 1));
        let (mut turn, mut given) = (NOW + 1_000, vec![]);
        while open(&bytes).place_from(&bytes, at(NOW)).unwrap() == at(NOW) {
            turn += stride;
            append(&mut bytes, turn, random.i64(1..=heaviest));
            given.push(turn);
        }
        assert!(given.len() > 2_000, "{stride}, {heaviest}: {}", given.len());
        // Denied until the first of them are over, and no longer.
        let place = open(&bytes).place_from(&bytes, at(NOW)).unwrap();
        assert!((given[0]..=turn).contains(&place.millis()));
        assert!(open(&bytes).place_from(&bytes, at(place.millis() - 1)).unwrap() > at(place.millis() - 1));
        assert_eq!(open(&bytes).place_from(&bytes, place), Ok(place));
        // Requests that are counted at once.
        for number in 0..700 {
            let now = NOW + number;
            append(&mut bytes, now, random.i64(1..=heaviest));
            let end = open(&bytes).later_than(&bytes, at(now - 1)).unwrap()
                - open(&bytes).later_than(&bytes, at(now)).unwrap();
            assert!(end > 0, "{stride}, {heaviest}: request {number} has another time");
        }
    }
}
