//! Limits as data: a hash in Redis whose fields are descriptors and whose values are rates, in place of the rates that the
//! configuration has for them.
//!
//! They are kept in memory. The server tells of a change by client tracking (an invalidation of the key, which does not say
//! what has changed), and the hash is read again, in pieces, into the same table: a million of them have no room twice.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind};
use redis_rl_client::Rule;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::redis::{PATIENCE, connection_for};
use crate::settings;

/// How often a silent connection is asked whether it is still there, and a lost connection is made anew.
const PERIOD: Duration = Duration::from_secs(1);
/// Fields read by one call. It keeps others of the server from their turn for about a millisecond.
const PIECE: usize = 1000;
/// The most fields that the log names of those that cannot be used.
const NAMED: usize = 10;

#[derive(Debug, Default)]
pub struct Table {
    /// Of the hash.
    pub key: String,
    fields: RwLock<Fields>,
}

#[derive(Debug, Default)]
struct Fields {
    rates: HashMap<Box<str>, Entry>,
    /// The number of the present reading. What an earlier one has left is gone from the hash.
    reading: u32,
}

#[derive(Debug)]
struct Entry {
    rates: Box<[Rate]>,
    reading: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub limit: u32,
    pub seconds: u32,
}

impl Table {
    pub fn len(&self) -> usize {
        self.fields.read().rates.len()
    }

    pub fn get(&self, field: &str) -> Option<Vec<Rate>> {
        self.fields.read().rates.get(field).map(|entry| entry.rates.to_vec())
    }

    /// Some of the fields with their rates, at most as many. All of a million would be hundreds of megabytes.
    pub fn some(&self, most: usize) -> Vec<(String, Vec<Rate>)> {
        let fields = self.fields.read();
        fields.rates.iter().take(most).map(|(field, entry)| (field.to_string(), entry.rates.to_vec())).collect()
    }

    /// Begins a reading of this number of fields. A table that grew while it is read would need half as much room again.
    fn begin(&self, fields: usize) {
        let Fields { rates, reading } = &mut *self.fields.write();
        rates.reserve(fields.saturating_sub(rates.len()));
        *reading = reading.wrapping_add(1);
    }

    /// Takes a piece. Answers with what cannot be used.
    fn take(&self, piece: Piece) -> Vec<String> {
        let mut refused = Vec::new();
        let mut fields = self.fields.write();
        let reading = fields.reading;
        for (field, value) in piece {
            match parse(&field, &value) {
                Ok((field, rates)) => match fields.rates.get_mut(field) {
                    Some(entry) => *entry = Entry { rates, reading },
                    None => drop(fields.rates.insert(field.into(), Entry { rates, reading })),
                },
                Err(reason) => refused.push(reason),
            }
        }
        refused
    }

    /// Forgets what was not read, piece by piece: a look at a million fields takes longer than a request may wait.
    fn end(&self) {
        let fields = self.fields.read();
        let gone = fields.rates.iter().filter(|(_, entry)| entry.reading != fields.reading);
        let gone: Vec<_> = gone.map(|(field, _)| field.clone()).collect();
        drop(fields);
        for piece in gone.chunks(PIECE) {
            let rates = &mut self.fields.write().rates;
            piece.iter().for_each(|field| drop(rates.remove(field)));
        }
        let rates = &mut self.fields.write().rates;
        if rates.capacity() / 4 > rates.len() {
            rates.shrink_to_fit();
        }
    }
}

type Piece = Vec<(Vec<u8>, Vec<u8>)>;

fn parse<'a>(field: &'a [u8], value: &[u8]) -> Result<(&'a str, Box<[Rate]>), String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
    let refused = |reason: &str| format!("'{}' '{}': {reason}", shown(field), shown(value));
    let field = std::str::from_utf8(field).map_err(|_| refused("not UTF-8"))?;
    let text = std::str::from_utf8(value).map_err(|_| refused("not UTF-8"))?;
    let rule = Rule::fixed(text).map_err(|error| refused(&error.to_string()))?;
    let rates = rule.windows().iter().map(|window| {
        let limit = u32::try_from(window.limit()).map_err(|_| refused("a limit is at most 4294967295"))?;
        match u32::try_from(window.length().as_secs()) {
            Ok(seconds) if window.length().subsec_nanos() == 0 => Ok(Rate { limit, seconds }),
            _ => Err(refused("a window is whole seconds")),
        }
    });
    Ok((field, rates.collect::<Result<_, String>>()?))
}

/// The tables of all hashes that a configuration names. One is kept, and followed, as long as a configuration has it.
#[derive(Default)]
pub struct Overrides {
    tables: Mutex<HashMap<String, Weak<Table>>>,
    /// The server, and where the following runs. `None`: nothing is followed.
    server: Option<(settings::Redis, Handle)>,
}

impl Overrides {
    pub fn of(settings: settings::Redis, runtime: Handle) -> Self {
        Self { tables: Mutex::default(), server: Some((settings, runtime)) }
    }

    pub fn table(&self, key: &str) -> Arc<Table> {
        let mut tables = self.tables.lock();
        if let Some(table) = tables.get(key).and_then(Weak::upgrade) {
            return table;
        }
        let table = Arc::new(Table { key: key.to_owned(), ..Table::default() });
        tables.insert(key.to_owned(), Arc::downgrade(&table));
        if let Some((settings, runtime)) = &self.server {
            runtime.spawn(follow(settings.clone(), key.to_owned(), Arc::downgrade(&table)));
        }
        table
    }
}

/// Keeps the table as the hash is, until no configuration has it.
async fn follow(settings: settings::Redis, key: String, table: Weak<Table>) {
    let (mut failing, mut refused) = (false, Vec::new());
    while table.strong_count() > 0 {
        if let Err(reason) = follow_on_a_connection(&settings, &key, &table, &mut failing, &mut refused).await {
            if !failing {
                tracing::warn!("the limits in '{key}' cannot be read, and those that were read before hold: {reason}");
            }
            failing = true;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn follow_on_a_connection(
    settings: &settings::Redis,
    key: &str,
    table: &Weak<Table>,
    failing: &mut bool,
    refused: &mut Vec<String>,
) -> Result<(), String> {
    let (sender, mut pushes) = mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let config = config.set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
    let mut connection = connection_for(settings, key, &config).await.map_err(|failure| failure.reason().to_owned())?;
    let wrong = |error: redis::RedisError| error.to_string();
    redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await.map_err(wrong)?;
    loop {
        // What was said before is read now.
        while pushes.try_recv().is_ok() {}
        let Some(read) = table.upgrade() else { return Ok(()) };
        let begun = Instant::now();
        let now_refused = read_all(&mut connection, key, &read).await.map_err(wrong)?;
        for reason in now_refused.iter().take(NAMED).filter(|reason| !refused.contains(reason)) {
            tracing::warn!("a limit in '{key}' cannot be used, and that of the configuration holds: {reason}");
        }
        if *failing || begun.elapsed() > PERIOD {
            tracing::warn!("the limits in '{key}' were read: {} in {:?}", read.len(), begun.elapsed());
        }
        drop(read);
        *failing = false;
        *refused = now_refused;
        // Where the hash is so large that reading it takes long, the server does not spend its time on that alone.
        tokio::time::sleep(begun.elapsed() * 5).await;
        loop {
            match tokio::time::timeout(PERIOD, pushes.recv()).await {
                Ok(Some(PushInfo { kind: PushKind::Invalidate, .. })) => break,
                Ok(None | Some(PushInfo { kind: PushKind::Disconnection, .. })) => {
                    return Err("the connection has broken".to_owned());
                }
                Ok(Some(_)) => {}
                Err(_) if table.strong_count() == 0 => return Ok(()),
                // In a cluster this fails where another node has the hash now.
                Err(_) => redis::cmd("HLEN").arg(key).exec_async(&mut connection).await.map_err(wrong)?,
            }
        }
    }
}

/// Reads the hash into the table. Answers with the first fields that cannot be used.
async fn read_all(connection: &mut MultiplexedConnection, key: &str, table: &Table) -> redis::RedisResult<Vec<String>> {
    let mut refused = Vec::new();
    let mut cursor = 0_u64;
    table.begin(redis::cmd("HLEN").arg(key).query_async(connection).await?);
    loop {
        let mut scan = redis::cmd("HSCAN");
        scan.arg(key).arg(cursor).arg("COUNT").arg(PIECE);
        let (next, piece): (u64, Piece) = scan.query_async(connection).await?;
        refused.extend(table.take(piece));
        refused.truncate(NAMED);
        cursor = next;
        if cursor == 0 {
            table.end();
            return Ok(refused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(fields: &[(&str, &str)]) -> Piece {
        fields.iter().map(|(field, value)| (field.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_reading_takes_the_place_of_the_one_before() {
        let table = Table::default();
        table.begin(3);
        let refused = table.take(piece(&[("a=1", "5/second, 100/15min"), ("b=1", "many"), ("c=1", "5/250ms")]));
        table.end();
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert_eq!(table.get("a=1").unwrap(), [Rate { limit: 5, seconds: 1 }, Rate { limit: 100, seconds: 900 }]);
        assert_eq!((table.get("b=1"), table.len()), (None, 1));
        table.begin(1);
        table.take(piece(&[("b=1", "7/day")]));
        // What was read before holds until all is read.
        assert!(table.get("a=1").is_some());
        table.end();
        assert_eq!(table.some(5), [("b=1".to_owned(), vec![Rate { limit: 7, seconds: 86_400 }])]);
    }

    /// They are read into the room that they have, and what is gone goes in pieces, between which others look.
    #[test]
    fn fields_have_room_once() {
        let table = Table::default();
        let read = |numbers: std::ops::Range<usize>| {
            table.begin(numbers.len());
            let room = table.fields.read().rates.capacity();
            let fields: Vec<_> =
                numbers.map(|number| (format!("k={number}").into_bytes(), b"5/day".to_vec())).collect();
            fields.chunks(PIECE).for_each(|piece| assert!(table.take(piece.to_vec()).is_empty()));
            assert_eq!(table.fields.read().rates.capacity(), room);
            table.end();
        };
        read(0..100_000);
        let room = table.fields.read().rates.capacity();
        read(0..100_000);
        assert_eq!((table.len(), table.fields.read().rates.capacity()), (100_000, room));
        // Most of them gone, and with them the room.
        read(0..2500);
        assert_eq!((table.len(), table.get("k=2499").is_some(), table.get("k=2500")), (2500, true, None));
        assert!(table.fields.read().rates.capacity() < room / 4);
    }
}
