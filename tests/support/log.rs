//! Long logs, filled by the server itself.

use super::Client;

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
