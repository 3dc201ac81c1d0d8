//! From a request to what Redis is asked for: which limit each descriptor meets, its key, and its part of the decision.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tonic::Status;

use super::decide::{Mode, Part};
use super::reservations::Reservations;
use crate::few::Few;
use crate::keys::key_of;
use crate::limit::{Found, Kind, Limit};
use crate::limits::tree::{Config, Domain, UnknownUnit};
use crate::messages::RateLimitRequest;
use crate::redis::Item;
use crate::settings::Settings;
use crate::stats::Stats;

/// The most hits of a descriptor. Above it Envoy's service would count backwards.
const MOST_HITS: u64 = i64::MAX as u64;
/// The most units of a call of Redis; a request of more fits nowhere.
const MOST_UNITS: u64 = (1 << 53) - 1;

/// How many descriptors are worked at before other requests have their turn: with values of usual lengths, well within a
/// millisecond.
const TURN: usize = 64;

/// To be called for each.
async fn end_of_turn(index: usize) {
    if index % TURN == TURN - 1 {
        tokio::task::yield_now().await;
    }
}

pub struct Plan {
    /// By descriptor of the request; `None` where no limit applies, or one that another replaces.
    pub limits: Few<Option<LimitUse>>,
    pub parts: Few<Part>,
    pub refunds: Vec<Refund>,
    /// Whether there is a quota that cannot fail.
    pub passing_quota: bool,
}

#[derive(Debug, Clone)]
pub struct Refund {
    pub item: Item,
    /// The lease of the reservation that they settle instead.
    pub lease: Option<Duration>,
}

/// The use that a descriptor makes of a limit.
pub struct LimitUse {
    pub found: Found,
    pub hits: u64,
    /// Whether units are given back, or hits settle what a check has reserved: neither can be denied.
    pub returns: bool,
    /// Its position among the parts of the decision, or among the refunds; of what is unlimited none of them.
    pub part: usize,
}

impl LimitUse {
    pub fn is_unlimited(&self) -> bool {
        self.found.limit.rule.is_none()
    }
}

impl Plan {
    pub async fn new(
        request: &RateLimitRequest,
        config: &Config,
        settings: &Settings,
        stats: &Stats,
        reservations: &Reservations,
    ) -> Result<Self, Status> {
        let limits = match config.domains.get(&request.domain) {
            Some(domain) => limits(request, domain, settings, stats).await?,
            None => {
                stats.unknown_domains.get(&request.domain, Some("")).add(request.descriptors.len() as u64);
                request.descriptors.iter().map(|_| None).collect()
            }
        };
        let parts = Few::with_capacity(limits.iter().flatten().count());
        let mut plan = Self { limits, parts, refunds: Vec::new(), passing_quota: false };
        plan.share_parts(request, settings, reservations).await;
        Ok(plan)
    }

    /// Makes parts and refunds of the limits. The same key twice is one part with the sum of the hits.
    async fn share_parts(&mut self, request: &RateLimitRequest, settings: &Settings, reservations: &Reservations) {
        // By a hash that no client can choose; one descriptor needs none.
        let (several, hasher) = (request.descriptors.len() > 1, RandomState::new());
        let mut seen = HashMap::with_capacity(if several { self.parts.capacity() } else { 0 });
        for (index, (descriptor, planned)) in request.descriptors.iter().zip(&mut self.limits).enumerate() {
            end_of_turn(index).await;
            let Some(used) = planned else { continue };
            let limit = &used.found.limit;
            let Some(kind) = &limit.rule else { continue };
            self.passing_quota |= limit.shadow_mode && (limit.quota_mode || settings.quota_mode);
            let (key, mut holder) = key_of(&settings.key_prefix, &request.domain, descriptor, &used.found);
            // One without a name has a place of its own: an error would be let through, with all that the request asks for.
            if holder.is_empty() && matches!(kind, Kind::Concurrency { .. }) {
                holder = reservations.make("", Duration::ZERO).holder;
            }
            let mut units = used.hits.min(MOST_UNITS);
            let (mut hold, mut lease) = (None, None);
            // A check reserves the estimate. Hits that are named come later, and settle it. A request that names none is a hit
            // like any other.
            if let Some(reserve) = &limit.reserve
                && !used.returns
                && (descriptor.hits_addend.is_some() || request.hits_addend > 0)
            {
                used.returns = units > 0;
                if used.returns {
                    lease = Some(reserve.lease);
                } else {
                    units = reserve.estimate;
                    hold = Some(reservations.make(&holder, reserve.lease));
                }
            }
            let mut item =
                Item { key, kind: kind.clone(), units, force: false, holder, hold, block: limit.block.clone() };
            if used.returns {
                used.part = self.refunds.len();
                self.refunds.push(Refund { item, lease });
                continue;
            }
            let mode = if settings.shadow_mode || limit.shadow_mode {
                Mode::Shadow
            } else if settings.quota_mode || limit.quota_mode {
                Mode::Quota
            } else {
                Mode::Enforced
            };
            item.force = mode == Mode::Shadow && item.can_be_forced();
            used.part = self.parts.len();
            let mut lower = false;
            if several {
                let place = hasher.hash_one((&item.key, &item.holder));
                let (part, lowest) = seen.entry(place).or_insert((used.part, limit));
                lower = requests(limit).lt(requests(lowest));
                if lower {
                    *lowest = limit;
                }
                used.part = *part;
            }
            match self.parts.get_mut(used.part) {
                Some(part) => {
                    part.item.units = part.item.units.saturating_add(units).min(MOST_UNITS);
                    // One of them has a limit of the request, or of Redis.
                    if lower {
                        part.item.kind = item.kind;
                    }
                    // Where one of the two is enforced, so is the sum.
                    if (mode as u8) < (part.mode as u8) {
                        part.mode = mode;
                        part.item.force = item.force;
                    }
                }
                None => self.parts.push(Part { item, mode }),
            }
        }
    }
}

fn requests(limit: &Limit) -> impl Iterator<Item = u32> {
    limit.rates.iter().map(|rate| rate.requests_per_unit)
}

/// Which limit each descriptor meets, and the hits that it counts there.
async fn limits(
    request: &RateLimitRequest,
    domain: &Domain,
    settings: &Settings,
    stats: &Stats,
) -> Result<Few<Option<LimitUse>>, Status> {
    let mut replaced = HashSet::new();
    let mut limits = Few::with_capacity(request.descriptors.len());
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        end_of_turn(index).await;
        let found = domain
            .find(&request.domain, descriptor, stats, &settings.options)
            .map_err(|UnknownUnit| Status::invalid_argument("the limit of a descriptor has no unit"))?;
        limits.push(found.map(|found| {
            replaced.extend(found.limit.replaces.iter().cloned());
            // 0 is what a client sends that says nothing.
            let hits = descriptor.hits_addend.as_ref().map_or(request.hits_addend.max(1).into(), |hits| hits.value);
            LimitUse { found, hits, returns: descriptor.is_negative_hits, part: 0 }
        }));
    }
    for limit in &mut limits {
        let Some(LimitUse { found, hits, .. }) = limit.as_ref().filter(|used| !used.is_unlimited()) else { continue };
        if replaced.contains(&found.limit.name) {
            *limit = None;
        } else if *hits > MOST_HITS {
            return Err(Status::invalid_argument(format!("hits_addend must be at most {MOST_HITS}, not {hits}")));
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::messages::{RateLimitDescriptor, RateLimitOverride, Unit};
    use crate::testing::{config, descriptor, hits, request, settings};

    const LIMITS: &str = "
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: old, rate_limit: {unit: day, requests_per_unit: 5, name: old}}
  - {key: new, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: old}]}}
  - {key: place, rate_limit: {concurrency: {limit: 2, lease: 60s}}}
  - {key: tokens, descriptors: [{key: request_id, rate_limit: {unit: day, requests_per_unit: 50, reserve: {estimate: 20}}}]}
";

    fn plan(descriptors: impl Into<Vec<RateLimitDescriptor>>, reservations: &Reservations) -> Result<Plan, Status> {
        let (stats, request) = (Stats::default(), request(descriptors));
        let (config, settings) = (config(LIMITS, &stats), settings(&[]));
        let planned = Plan::new(&request, &config, &settings, &stats, reservations);
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(planned)
    }

    /// Key, units, mode and force of each part.
    fn parts(descriptors: impl Into<Vec<RateLimitDescriptor>>) -> Vec<(String, u64, Mode, bool)> {
        let plan = plan(descriptors, &Reservations::default()).unwrap();
        let parts = plan
            .parts
            .into_iter()
            .map(|Part { item, mode }| (String::from_utf8(item.key).unwrap(), item.units, mode, item.force));
        parts.collect()
    }

    #[test]
    fn each_limit_is_a_part_with_the_sum_of_its_hits() {
        let several = [descriptor("five=a"), hits("shadow=a", 2), hits("five=a", 3), descriptor("quota=a|b")];
        let expected = [
            ("d|five=a|86400", 4, Mode::Enforced, false),
            ("d|shadow=a|86400", 2, Mode::Shadow, true),
            ("d|quota=a%7Cb|86400", 1, Mode::Quota, false),
        ];
        assert_eq!(parts(several), expected.map(|(key, units, mode, force)| (key.to_owned(), units, mode, force)));
        let holders =
            plan([descriptor("place=1"), descriptor("place=2"), descriptor("place=1")], &Reservations::default());
        let holders: Vec<_> = holders.unwrap().parts.into_iter().map(|part| part.item.holder).collect();
        assert_eq!(holders, ["1", "2"]);
        // Those without a name are nobody else's.
        assert_eq!(parts([descriptor("place"), descriptor("place")]).len(), 2);
    }

    /// A limit that the request brings counts at the same key.
    #[test]
    fn of_two_limits_of_one_counter_the_lower_holds() {
        let brings = |requests_per_unit| {
            let limit = Some(RateLimitOverride { requests_per_unit, unit: Unit::Day.into() });
            RateLimitDescriptor { limit, ..descriptor("five=a") }
        };
        for (first, second, limit) in [(descriptor("five=a"), brings(9), 5), (descriptor("five=a"), brings(3), 3)] {
            for both in [[first.clone(), second.clone(), brings(7)], [brings(7), second, first]] {
                let plan = plan(both, &Reservations::default()).unwrap();
                let [Part { item, .. }] = &plan.parts[..] else { panic!("several parts") };
                assert_eq!((item.units, item.kind.windows()[0].limit()), (3, limit));
            }
        }
    }

    #[test]
    fn what_is_unlimited_unknown_or_replaced_is_no_part() {
        let none = plan([descriptor("free"), descriptor("else"), descriptor("old")], &Reservations::default()).unwrap();
        assert!(
            matches!(&none.limits[..], [Some(free), None, Some(old)] if free.is_unlimited() && !old.is_unlimited())
        );
        assert_eq!(parts([descriptor("old"), descriptor("new")]).len(), 1);
    }

    #[test]
    fn a_reservation_stays_until_what_settles_it_is_sent() {
        let reservations = Reservations::default();
        let made = plan([hits("tokens,request_id=r", 0)], &reservations).unwrap();
        let item = &made.parts[0].item;
        let hold = item.hold.as_ref().unwrap();
        assert_eq!((item.units, item.holder.as_str()), (20, "r"));
        reservations.keep(&item.key, hold, SystemTime::now());
        let settles = hits("tokens,request_id=r", 7);
        let refused = plan([settles.clone(), hits("five=a", 1 << 63)], &reservations);
        assert_eq!(refused.err().unwrap().code(), tonic::Code::InvalidArgument);
        let settled = plan([settles], &reservations).unwrap();
        assert_eq!((settled.parts.len(), settled.refunds[0].item.units), (0, 7));
        let lease = settled.refunds[0].lease.unwrap();
        assert_eq!(reservations.take(&item.key, "r", lease).holder, hold.holder);
    }
}
