use super::*;
use crate::cases::read;

/// Each period of the cases: its first moment, its last millisecond, and what lies around a change in it.
#[test]
fn cases_of_calendars() {
    let file = read("calendar");
    let mut asked = 0;
    for (zone, lists) in file["zones"].as_object().unwrap() {
        let changes: Vec<_> =
            lists["changes"].as_array().unwrap().iter().map(|time| time.as_u64().unwrap() * 1000).collect();
        for (name, runs) in lists.as_object().unwrap().iter().filter(|(name, _)| *name != "changes") {
            let (unit, starts) = name.split_once(':').unwrap_or((name, "1"));
            let calendar = Calendar::parse(&format!("1/{unit}")).unwrap().zone(zone).unwrap();
            let calendar = calendar.starts(starts.parse().unwrap()).unwrap();
            for run in runs.as_array().unwrap() {
                let mut run = run.as_array().unwrap().iter().map(|number| number.as_u64().unwrap());
                let mut begins = run.next().unwrap() * 1000;
                for minutes in run {
                    let end = begins + minutes * 60_000;
                    let inside = changes.iter().filter(|change| (begins..end).contains(change));
                    let around = inside.flat_map(|change| [change.saturating_sub(1), *change, change + 1]);
                    for time in around.chain([begins, end - 1]).filter(|time| (begins..end).contains(time)) {
                        let context = format!("{zone:?} {name} at {time}");
                        assert_eq!(calendar.end(time), Some(end), "{context}");
                        asked += 1;
                    }
                    assert!(calendar.end(begins - 1) == Some(begins), "{zone:?} {name} before {begins}");
                    begins = end;
                }
            }
        }
    }
    assert!(asked > 10_000, "{asked}");
}

#[test]
fn a_time_beyond_the_calendar_has_no_period() {
    let calendar = Calendar::parse("1/year").unwrap();
    for time in [253_402_300_799_999, u64::MAX, 1 << 62] {
        assert_eq!(calendar.end(time), None);
    }
    assert_eq!(calendar.period(u64::MAX), format!("@{}", u64::MAX));
    assert_eq!(calendar.end(0), Some(31_536_000_000));
}
