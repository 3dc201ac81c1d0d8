//! RL.RELEASE, line by line of the contract.

use redis::Value;

use super::frozen;
use crate::support::Engine;
use crate::tests;

tests![its_key_is_declared_as_that_of_zrem];

/// A release takes members out of a set, and leaves the key where members are left: ACL rules and clients that go by the
/// flags treat it as ZREM.
fn its_key_is_declared_as_that_of_zrem(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let mut flags = |call: &str| -> Vec<String> {
        let mut keys: Vec<(String, Value)> = client.call(&format!("COMMAND GETKEYSANDFLAGS {call}"));
        let (key, flags) = keys.remove(0);
        assert_eq!((&*key, keys.len()), ("k", 0), "{call}");
        let mut flags: Vec<String> = redis::from_redis_value(flags).expect("flags");
        flags.sort();
        flags
    };
    assert_eq!(flags("RL.RELEASE k a b"), flags("ZREM k a b"));
}
