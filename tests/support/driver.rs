//! A seeded client that sends what no sane client would, plants hostile state at the keys, and knows the one right
//! answer to each call.
//!
//! The server's clock is frozen and moved between batches, so everything follows from the seed. A call that is
//! *probed* has questions to the server's own commands in front and behind: from those before, its exact reply follows;
//! those after say that a refused call changed nothing, and what an answered one left. A call that is not probed must
//! have one of the replies that are possible for its arguments.

use super::wire::{Reply, Wire, pack};
use super::{Client, Server};

const WINDOW: &str =
    "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const OVERFLOW: &str = "ERR increment or decrement would overflow";

/// No call removes more expired members than this, unless nothing else is in the log.
pub const PRUNED_AT_MOST: i64 = 1000;

/// Cases in a batch. A case is some hostile state and a few calls on it.
const BATCH: usize = 64;
/// Batches from one FLUSHALL to the next. Counters of past windows would fill the memory otherwise.
const EPOCH: u64 = 32;

pub struct Driver<'a> {
    server: &'a Server,
    wire: Wire,
    rng: fastrand::Rng,
    seed: u64,
    now: i64,
    /// One call in so many is probed.
    probe_every: u32,
    batches: u64,
    pub totals: Totals,
}

/// What has been sent and what came back.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub calls: u64,
    pub probed: u64,
    pub plants: u64,
    pub sliding_allowed: u64,
    pub sliding_denied: u64,
    pub fixed_allowed: u64,
    pub fixed_denied: u64,
    pub refused: u64,
}

type Words = Vec<Vec<u8>>;

/// What the arguments alone say about a call.
#[derive(Debug, Clone)]
enum Verdict {
    Refused(String),
    Sliding { window: i64, limit: i64 },
    Fixed { window: i64, limit: i64 },
}

struct Call {
    words: Words,
    verdict: Verdict,
    /// Where the state of the call lies.
    state: Vec<u8>,
    probed: bool,
}

enum Sent {
    Plant,
    Call(Call),
}

impl<'a> Driver<'a> {
    /// Drives a server whose clock stands at `now`.
    pub fn new(server: &'a Server, now: i64, seed: u64, probe_every: u32) -> Self {
        let mut wire = Wire::open(server.port);
        // Keys go when they are touched, not in between: a key that vanishes by itself is no change by a call.
        let mut bytes = Vec::new();
        pack(&mut bytes, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        wire.send(&bytes);
        assert_eq!(wire.receive(), Reply::Status("OK".to_owned()));
        let rng = fastrand::Rng::with_seed(seed);
        Self { server, wire, rng, seed, now, probe_every, batches: 0, totals: Totals::default() }
    }

    /// Makes at least so many calls more.
    pub fn run(&mut self, calls: u64) {
        let until = self.totals.calls + calls;
        while self.totals.calls < until {
            self.batch();
        }
    }

    /// Empties the server and begins a new connection without buffers, for memory to be compared.
    pub fn clear(&mut self) {
        self.flush();
        self.wire = Wire::open(self.server.port);
    }

    fn flush(&mut self) {
        let mut bytes = Vec::new();
        pack(&mut bytes, &["FLUSHALL", "SYNC"]);
        self.wire.send(&bytes);
        assert_eq!(self.wire.receive(), Reply::Status("OK".to_owned()));
    }

    /// The module's own totals must be those that were seen from here, and no panic among them.
    pub fn compare_totals(&self, client: &mut Client) {
        let seed = self.seed;
        let field = |client: &mut Client, name: &str| -> u64 {
            client.info_field("rl", &format!("rl_{name}")).parse().expect("a number")
        };
        let totals = self.totals;
        for (name, seen) in [
            ("sliding_allowed", totals.sliding_allowed),
            ("sliding_denied", totals.sliding_denied),
            ("fixed_allowed", totals.fixed_allowed),
            ("fixed_denied", totals.fixed_denied),
            ("panics", 0),
        ] {
            assert_eq!(field(client, name), seen, "seed {seed}: {name}");
        }
    }

    fn batch(&mut self) {
        if self.batches.is_multiple_of(EPOCH) {
            self.flush();
        }
        self.batches += 1;
        if self.rng.bool() {
            let step = match self.rng.u32(..10) {
                0..5 => self.rng.i64(1..5),
                5..8 => self.rng.i64(5..2_000),
                8 => self.rng.i64(2_000..200_000),
                _ => -self.rng.i64(1..100_000),
            };
            self.now += step;
            self.server.set_time(self.now);
        }
        let mut bytes = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..BATCH {
            self.case(&mut bytes, &mut sent);
        }
        self.wire.send(&bytes);
        for item in sent {
            match item {
                Sent::Plant => {
                    self.totals.plants += 1;
                    self.wire.receive(); // Some are refused, which is as well.
                }
                Sent::Call(call) => self.judge(&call),
            }
        }
    }

    // ---- What is sent -----------------------------------------------------------------------------------------

    fn case(&mut self, bytes: &mut Vec<u8>, sent: &mut Vec<Sent>) {
        let sliding = self.rng.bool();
        let key = self.key();
        let window = if self.rng.u32(..6) == 0 { self.hostile() } else { self.sane_window() };
        let limit = if self.rng.u32(..6) == 0 { self.hostile() } else { self.sane_limit() };
        let state = match (sliding, window_millis(&window)) {
            (false, Some(millis)) => [&key[..], format!(":{}", self.now.div_euclid(millis)).as_bytes()].concat(),
            _ => key.clone(),
        };
        if self.rng.u32(..3) == 0 {
            for _ in 0..self.rng.u32(1..4) {
                let words = self.plant(&state, window_millis(&window).unwrap_or(60_000));
                pack(bytes, &words);
                sent.push(Sent::Plant);
            }
        }
        for _ in 0..self.rng.u32(1..5) {
            let call = self.call(sliding, &key, &window, &limit, &state);
            if call.probed {
                let counter = [&b"PEXPIRETIME"[..], &call.state];
                let digest = [b"DEBUG".as_ref(), b"DIGEST-VALUE", &call.state, &key];
                pack(bytes, &[b"TYPE".as_ref(), &call.state]);
                pack(bytes, &[b"TYPE".as_ref(), &key]);
                pack(bytes, &digest);
                pack(bytes, &counter);
                pack(bytes, &["DBSIZE"]);
                match call.verdict {
                    Verdict::Sliding { window, .. } => {
                        let ahead = format!("({}", self.now + window);
                        pack(bytes, &[b"ZCARD".as_ref(), &call.state]);
                        let expired = (self.now - window).to_string();
                        pack(bytes, &[b"ZCOUNT".as_ref(), &call.state, b"0", expired.as_bytes()]);
                        pack(bytes, &[b"ZCOUNT".as_ref(), &call.state, ahead.as_bytes(), b"+inf"]);
                    }
                    _ => pack(bytes, &[b"GET".as_ref(), &call.state]),
                }
                pack(bytes, &call.words);
                pack(bytes, &digest);
                pack(bytes, &counter);
                pack(bytes, &["DBSIZE"]);
                pack(bytes, &[b"ZCARD".as_ref(), &call.state]);
            } else {
                pack(bytes, &call.words);
            }
            sent.push(Sent::Call(call));
        }
    }

    fn call(&mut self, sliding: bool, key: &[u8], window: &[u8], limit: &[u8], state: &[u8]) -> Call {
        let name = match (sliding, self.rng.u32(..8)) {
            (true, 0) => "rl.SliDing",
            (true, _) => "RL.SLIDING",
            (false, 0) => "rl.fixed",
            (false, _) => "RL.FIXED",
        };
        let mut words: Words = [name.as_bytes(), key, window, limit].map(<[u8]>::to_vec).to_vec();
        if self.rng.u32(..16) == 0 {
            words.truncate(self.rng.usize(1..5));
            // Never as many as are right: those would be another key's call.
            for _ in 0..self.rng.u32(..4) + u32::from(words.len() == 4) {
                let more = self.hostile();
                words.push(more);
            }
            if words.len() == 4 {
                words.pop();
            }
        }
        let verdict = verdict(sliding, &words);
        let arity = words.len() == 4;
        if arity && sliding && self.rng.u32(..16) == 0 {
            // By way of a script, which hears the same. (Not RL.FIXED: Lua's numbers round a planted 2^63-2.)
            words.splice(0..0, ["EVAL", "return redis.pcall(unpack(ARGV))", "0"].map(Into::into));
        }
        Call { words, verdict, state: state.to_vec(), probed: self.rng.u32(..self.probe_every) == 0 }
    }

    fn key(&mut self) -> Vec<u8> {
        match self.rng.u32(..2000) {
            0 => vec![b'x'; 1 << 20],
            1..10 => vec![self.rng.u8(..); 10_000],
            10..400 => self.pick(&[b"", b"\0", b"a\0b", b"\xff\xfe\x80", b"{tag}k", b"a}b", b"x{}y", b"*\r\n$-1\r\n"]),
            _ => format!("k{}", self.rng.u32(..6)).into_bytes(),
        }
    }

    fn sane_window(&mut self) -> Vec<u8> {
        match self.rng.u32(..8) {
            0 => format!("{}.{:03}", self.rng.u32(..100), self.rng.u32(1..1000)).into_bytes(),
            1 => self.rng.u32(1..=2_147_483_647).to_string().into_bytes(),
            2 => self.pick(&[b"0.001", b"0.25", b"2147483647", b"2147483646.999", b"2147483647.000", b"1.0"]),
            _ => self.pick(&[b"1", b"60", b"60", b"3600"]),
        }
    }

    fn sane_limit(&mut self) -> Vec<u8> {
        match self.rng.u32(..8) {
            0 => self.pick(&[b"0", b"9007199254740991", b"9007199254740990"]),
            1 => self.rng.u64(..1 << 53).to_string().into_bytes(),
            _ => self.rng.u32(..40).to_string().into_bytes(),
        }
    }

    /// A word that looks like something.
    fn hostile(&mut self) -> Vec<u8> {
        match self.rng.u32(..10) {
            0 => self.random_bytes(20),
            1 => self.rng.i64(..).to_string().into_bytes(),
            2 => format!("{}.{}", self.rng.u32(..100), self.rng.u32(..20_000)).into_bytes(),
            3 => format!("{:e}", f64::from_bits(self.rng.u64(..))).into_bytes(),
            4 => self.pick(&[b"nan", b"NaN", b"inf", b"-inf", b"1e308", b"-1e308", b"", b"-0", b"0", b"0.0", b"\0"]),
            5 => {
                self.pick(&[b"60\0", b"\x0060", b" 60", b"60 ", b"+60", b"060", b"60.", b".5", b"6_0", b"0x3c", b"60s"])
            }
            6 => (1_u64 << self.rng.u32(..64)).wrapping_sub(self.rng.u64(..2)).to_string().into_bytes(),
            7 => self.pick(&[b"2147483648", b"2147483647.001", b"9223372036854775807", b"9223372036854775808"]),
            8 => self.pick(&[
                b"-9223372036854775808",
                b"18446744073709551616",
                b"0.0001",
                b"1.2345",
                b"-1",
                b"9007199254740992",
            ]),
            _ if self.rng.u32(..50) == 0 => vec![self.rng.u8(b'0'..=b'9'); 100_000],
            _ => "٣".repeat(self.rng.usize(1..4)).into_bytes(),
        }
    }

    fn random_bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.rng.usize(..most)).map(|_| self.rng.u8(..)).collect()
    }

    fn pick(&mut self, from: &[&[u8]]) -> Vec<u8> {
        from[self.rng.usize(..from.len())].to_vec()
    }

    /// Something that is not what the module would have written, or looks as if it were.
    fn plant(&mut self, state: &[u8], window: i64) -> Words {
        let words = |words: &[&[u8]]| -> Words { words.iter().map(|word| word.to_vec()).collect() };
        match self.rng.u32(..20) {
            0..3 => {
                let value = self.counter_value();
                words(&[b"SET", state, &value])
            }
            3..5 => {
                let (value, at) = (self.counter_value(), self.future().to_string());
                words(&[b"SET", state, &value, b"PXAT", at.as_bytes()])
            }
            5..11 => {
                let mut add = words(&[b"ZADD", state]);
                for _ in 0..self.rng.u32(1..12) {
                    add.extend([self.score(window), self.member()]);
                }
                add
            }
            11 if self.rng.u32(..20) == 0 => {
                // So many expired, or ahead of the clock, that no call may remove them all.
                let mut add = words(&[b"ZADD", state]);
                let ahead = self.rng.bool();
                for index in 0..self.rng.i64(900..2_600) {
                    let score = if ahead { self.now + window + 1 + index } else { (self.now - window - index).max(0) };
                    add.extend([score.to_string().into_bytes(), format!("many-{index}").into_bytes()]);
                }
                add
            }
            12 => self.pick_plant(state),
            13 => words(&[b"PERSIST", state]),
            14 => {
                let at = self.future().to_string();
                words(&[b"PEXPIREAT", state, at.as_bytes()])
            }
            15 if self.rng.u32(..50) == 0 => words(&[b"SETRANGE", state, b"1000000", b"9"]),
            16 => words(&[b"APPEND", state, b"0"]),
            _ => words(&[b"DEL", state]),
        }
    }

    /// A value of a type that neither command takes.
    fn pick_plant(&mut self, state: &[u8]) -> Words {
        let makers: [&[&[u8]]; 6] = [
            &[b"RPUSH", b"", b"1"],
            &[b"SADD", b"", b"1", b"2"],
            &[b"HSET", b"", b"1", b"2"],
            &[b"XADD", b"", b"*", b"1", b"2"],
            &[b"PFADD", b"", b"1"],
            &[b"SETBIT", b"", b"70", b"1"],
        ];
        let mut words: Words = makers[self.rng.usize(..makers.len())].iter().map(|word| word.to_vec()).collect();
        words[1] = state.to_vec();
        words
    }

    fn counter_value(&mut self) -> Vec<u8> {
        match self.rng.u32(..4) {
            0 => self.hostile(),
            1 => self.rng.i64(-3..40).to_string().into_bytes(),
            2 => self.pick(&[
                b"9223372036854775807",
                b"9223372036854775806",
                b"-9223372036854775808",
                b"-1",
                b"99",
                b"9",
            ]),
            _ => self.rng.i64(..).to_string().into_bytes(),
        }
    }

    fn score(&mut self, window: i64) -> Vec<u8> {
        let (now, half) = (self.now, self.rng.u32(..2) * 5);
        let around =
            |at: i64, rng: &mut fastrand::Rng| format!("{}.{half}", (at + rng.i64(-1..=1)).max(0)).into_bytes();
        match self.rng.u32(..8) {
            0 => {
                self.pick(&[b"inf", b"-inf", b"1e308", b"-1e308", b"5e-324", b"-5e-324", b"0", b"-0.0", b"-0.5", b"-1"])
            }
            1 => self.pick(&[b"9007199254740992", b"9223372036854775807", b"18446744073709551616", b"4.5e15", b"1.5"]),
            2 => around(now - window, &mut self.rng),
            3 => around(now + window, &mut self.rng),
            4 => {
                let bits = f64::from_bits(self.rng.u64(..));
                format!("{:e}", if bits.is_nan() { 0.0 } else { bits }).into_bytes()
            }
            _ => around(now - self.rng.i64(..2 * window), &mut self.rng),
        }
    }

    fn member(&mut self) -> Vec<u8> {
        match self.rng.u32(..5) {
            // The script's own.
            0 => format!("{}-0.{}", self.now, self.rng.u32(..)).into_bytes(),
            // What the module is about to write.
            1 | 2 => {
                let suffix = char::from_digit(self.rng.u32(..36), 36).expect("a digit");
                format!("{}-{suffix}", self.now).into_bytes()
            }
            3 if self.rng.u32(..50) == 0 => vec![b'm'; 5_000],
            _ => self.random_bytes(12),
        }
    }

    fn future(&mut self) -> i64 {
        self.now
            + match self.rng.u32(..4) {
                0 => self.rng.i64(1..3),
                1 => self.rng.i64(1..200_000),
                2 => 4_294_967_294_000,
                _ => self.rng.i64(1..10_000_000_000_000),
            }
    }

    // ---- What comes back --------------------------------------------------------------------------------------

    fn judge(&mut self, call: &Call) {
        let before = call.probed.then(|| self.before(call));
        let reply = self.wire.receive();
        let outcome = match &before {
            Some(before) => self.exactly(call, before, &reply).and_then(|()| self.after(call, before, &reply)),
            None => possible(&call.verdict, &reply),
        };
        if let Err(why) = outcome {
            let words: Vec<String> = call.words.iter().map(|word| word.escape_ascii().to_string()).collect();
            let words: String = words.join(" ").chars().take(300).collect();
            let before: String = format!("{before:?}").chars().take(600).collect();
            let (seed, number, now) = (self.seed, self.totals.calls, self.now);
            panic!("seed {seed}, call {number}, at {now}: {words}\n{why}: {reply:?}\n{before}");
        }
        self.count(call, &reply);
    }

    fn count(&mut self, call: &Call, reply: &Reply) {
        self.totals.calls += 1;
        self.totals.probed += u64::from(call.probed);
        let totals = &mut self.totals;
        let allowed = matches!(reply, Reply::Array(parts) if parts.first() == Some(&Reply::Integer(1)));
        let total = match (reply, &call.verdict) {
            (Reply::Array(_), Verdict::Sliding { .. }) if allowed => &mut totals.sliding_allowed,
            (Reply::Array(_), Verdict::Sliding { .. }) => &mut totals.sliding_denied,
            (Reply::Array(_), _) if allowed => &mut totals.fixed_allowed,
            (Reply::Array(_), _) => &mut totals.fixed_denied,
            _ => &mut totals.refused,
        };
        *total += 1;
    }

    fn before(&mut self, call: &Call) -> Before {
        let Reply::Status(kind) = self.wire.receive() else { panic!("TYPE has no such reply") };
        self.wire.receive(); // The type of the key itself: asked so that an expired one goes now.
        let unchanging = [(); 3].map(|()| self.wire.receive());
        let Reply::Integer(expires) = unchanging[1] else { panic!("PEXPIRETIME has no such reply") };
        let found = match call.verdict {
            Verdict::Sliding { .. } => {
                let [members, expired, ahead] = [(); 3].map(|()| match self.wire.receive() {
                    Reply::Integer(count) => count,
                    _ => 0, // No sorted set.
                });
                Found::Log { members, expired, ahead }
            }
            _ => match self.wire.receive() {
                Reply::Bulk(value) => Found::Counter(value),
                _ => Found::Counter(None),
            },
        };
        Before { kind, unchanging, expires, found }
    }

    /// The one right reply, from what was there before.
    fn exactly(&self, call: &Call, before: &Before, reply: &Reply) -> Result<(), String> {
        let integers = |allowed: bool, count: i64, ttl: i64| {
            Reply::Array([i64::from(allowed), count, ttl].map(Reply::Integer).to_vec())
        };
        let error = |line: &str| Reply::Error(line.to_owned());
        let right = match (&call.verdict, &before.found, &*before.kind) {
            (Verdict::Refused(line), ..) => error(line),
            (&Verdict::Sliding { window, limit }, Found::Log { .. }, "zset" | "none") => {
                let count = before.counted();
                integers(count < limit, count, (window + 999) / 1000)
            }
            (&Verdict::Fixed { window, limit }, Found::Counter(value), "string" | "none") => {
                let value = value.as_ref().map_or(Some(0), |text| canonical(text));
                match value.map(|value| value.checked_add(1)) {
                    None => error(NOT_AN_INTEGER),
                    Some(None) => error(OVERFLOW),
                    Some(Some(count)) => {
                        let kept = before.expires >= 0 && count != 1;
                        let until = if kept { before.expires } else { self.now + window };
                        integers(count <= limit, count, ((until - self.now).max(0) + 500) / 1000)
                    }
                }
            }
            _ => error(WRONG_TYPE),
        };
        if *reply == right { Ok(()) } else { Err(format!("a wrong reply, {right:?} is right")) }
    }

    /// What a call has left: nothing changed if it was refused, and pruning within its bound if not.
    fn after(&mut self, call: &Call, before: &Before, reply: &Reply) -> Result<(), String> {
        let unchanging = [(); 3].map(|()| self.wire.receive());
        let members = match self.wire.receive() {
            Reply::Integer(members) => members,
            _ => 0,
        };
        let Reply::Array(parts) = reply else {
            let same = unchanging == before.unchanging;
            return same.then_some(()).ok_or_else(|| format!("an error changed something, now {unchanging:?}"));
        };
        let Reply::Integer(expires) = unchanging[1] else { panic!("PEXPIRETIME has no such reply") };
        match (&call.verdict, &before.found) {
            (&Verdict::Sliding { window, .. }, &Found::Log { members: had, expired, ahead }) => {
                let added = i64::from(parts.first() == Some(&Reply::Integer(1)));
                let removed = match before.counted() {
                    0 => expired + ahead, // The whole key goes.
                    _ => expired.min(PRUNED_AT_MOST) + ahead.min(PRUNED_AT_MOST),
                };
                if members != had - removed + added {
                    return Err(format!("{members} members are left, not {had} - {removed} + {added}"));
                }
                let lag = self.now + 2 * window - expires;
                if members > 0 && !(0..=(window / 10).min(1000)).contains(&lag) {
                    return Err(format!("the expiry lags by {lag} ms"));
                }
            }
            _ if expires < 0 => return Err("the counter has no expiry".to_owned()),
            _ => {}
        }
        Ok(())
    }
}

/// What the server's own commands said before a call.
#[derive(Debug)]
struct Before {
    kind: String,
    /// Digest, expiry and number of keys: what an error must leave alone.
    unchanging: [Reply; 3],
    expires: i64,
    found: Found,
}

#[derive(Debug)]
enum Found {
    Log { members: i64, expired: i64, ahead: i64 },
    Counter(Option<Vec<u8>>),
}

impl Before {
    /// Requests in the window.
    fn counted(&self) -> i64 {
        match self.found {
            Found::Log { members, expired, ahead } => members - expired - ahead,
            Found::Counter(_) => 0,
        }
    }
}

fn verdict(sliding: bool, words: &[Vec<u8>]) -> Verdict {
    let [_, _, window, limit] = words else {
        let name = if sliding { "rl.sliding" } else { "rl.fixed" };
        return Verdict::Refused(format!("ERR wrong number of arguments for '{name}' command"));
    };
    let Some(window) = window_millis(window) else { return Verdict::Refused(WINDOW.to_owned()) };
    let limit = canonical(limit).filter(|limit| (0..1 << 53).contains(limit));
    let Some(limit) = limit else { return Verdict::Refused(LIMIT.to_owned()) };
    if sliding { Verdict::Sliding { window, limit } } else { Verdict::Fixed { window, limit } }
}

/// Whether a call that was not probed has a reply that its arguments allow.
fn possible(verdict: &Verdict, reply: &Reply) -> Result<(), String> {
    let fits = match (verdict, reply) {
        (Verdict::Refused(line), Reply::Error(error)) => error == line,
        (Verdict::Sliding { .. }, Reply::Error(line)) => line == WRONG_TYPE,
        (Verdict::Fixed { .. }, Reply::Error(line)) => [WRONG_TYPE, NOT_AN_INTEGER, OVERFLOW].contains(&&**line),
        (&Verdict::Sliding { window, limit }, Reply::Array(parts)) => {
            matches!(parts[..], [Reply::Integer(allowed), Reply::Integer(count), Reply::Integer(ttl)]
                if count >= 0 && allowed == i64::from(count < limit) && ttl == (window + 999) / 1000)
        }
        (&Verdict::Fixed { limit, .. }, Reply::Array(parts)) => {
            matches!(parts[..], [Reply::Integer(allowed), Reply::Integer(count), Reply::Integer(ttl)]
                if allowed == i64::from(count <= limit) && (0..=10_000_000_000).contains(&ttl))
        }
        _ => false,
    };
    if fits { Ok(()) } else { Err(format!("an impossible reply for {verdict:?}")) }
}

/// An integer, if it is written as the server would write it.
fn canonical(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// A window in milliseconds, by the words of the README and not by the module's code.
fn window_millis(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, places) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(places) || places.len() > 3 || (seconds.len() > 1 && seconds.starts_with('0')) {
        return None;
    }
    let millis: i64 = format!("{seconds}{places:0<3}").parse().ok()?;
    (1..=2_147_483_647_000).contains(&millis).then_some(millis)
}

/// Fills a log with requests `spacing` ms apart, the oldest at `from`; the server does it by itself.
pub fn fill_log(client: &mut Client, key: &str, from: i64, count: i64, spacing: i64) {
    const SCRIPT: &str = "
        local from, count, spacing = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
        for first = 0, count - 1, 1000 do
            local words = {}
            for index = first, math.min(first + 999, count - 1) do
                local at = string.format('%.0f', from + index * spacing)
                words[#words + 1] = at
                words[#words + 1] = at .. '-' .. index
            end
            redis.call('ZADD', KEYS[1], unpack(words))
        end";
    let numbers = [from, count, spacing].map(|number| number.to_string());
    client.run::<redis::Value>(&["EVAL", SCRIPT, "1", key, &numbers[0], &numbers[1], &numbers[2]]);
}
