package redisrl

import (
	"container/list"
	"sync"
	"time"
)

// Counters and leases that are kept at most. Beyond that what was used least recently is forgotten, so that a flood of
// identities does not take all memory.
const mostLocal = 20_000

// local decides on requests as long as the server cannot: the same rules, divided by the number of processes. Each window is
// a counter that begins with its first request. A throttle is a window in which its empty bucket fills.
type local struct {
	processes int64

	mu    sync.Mutex
	known map[string]*list.Element
	order *list.List
}

// A counter is of a window at a key; of a lease it has the time at which each holder's ends.
type counter struct {
	name    string
	used    int64
	ends    time.Time
	holders map[string]time.Time
}

func newLocal(processes int) *local {
	return &local{processes: int64(processes), known: map[string]*list.Element{}, order: list.New()}
}

// share is the part of a limit that is this process'.
func (l *local) share(limit int64) int64 { return max(limit/l.processes, min(limit, 1)) }

// counters of a rule, as they are now.
func (l *local) counters(key string, rule Rule, now time.Time) []*counter {
	policies := rule.policies()
	counters := make([]*counter, len(policies))
	for i, policy := range policies {
		// A digest where it is long, and the window.
		name := short(key) + " " + seconds(policy.windowMS)
		element := l.known[name]
		if element == nil {
			element = l.order.PushBack(&counter{name: name})
			l.known[name] = element
		}
		l.order.MoveToBack(element)
		c := element.Value.(*counter)
		if isLease(rule) {
			for holder, ends := range c.holders {
				if !now.Before(ends) {
					delete(c.holders, holder)
				}
			}
			c.used = int64(len(c.holders))
		} else if !now.Before(c.ends) {
			c.used, c.ends = 0, now.Add(duration(policy.windowMS))
			if fixed, ok := rule.(FixedRule); ok && fixed.calendar != nil {
				c.ends = fixed.calendar.end(now)
			}
		}
		counters[i] = c
	}
	for l.order.Len() > mostLocal {
		oldest := l.order.Remove(l.order.Front()).(*counter)
		delete(l.known, oldest.name)
	}
	return counters
}

// decide decides on a request, and counts it if it fits everywhere.
func (l *local) decide(rules []KeyedRule) *Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	results := make([]Result, len(rules))
	allowed, index := true, 0
	for i, each := range rules {
		results[i] = *l.look(each, now)
		if !results[i].Allowed && !isForced(each.Rule) {
			if allowed {
				index = i
			}
			allowed = false
		}
	}
	if allowed {
		for i, each := range rules {
			l.take(each, now)
			fitted := results[i].Allowed
			results[i] = *l.seen(each, now, fitted)
		}
	}
	if len(results) == 1 {
		return results[0].from(FromLocal)
	}
	retry := results[index].RetryAfter
	return allOf(results, index, allowed, results[index].Remaining, retry).from(FromLocal)
}

// look says whether a request fits.
func (l *local) look(each KeyedRule, now time.Time) *Result {
	weight := each.Rule.options().weight()
	var states []State
	for i, c := range l.counters(each.Key, each.Rule, now) {
		state := l.state(each.Rule, i, c, now)
		if state.Allowed = c.used+max(weight, 1) <= state.Limit; !state.Allowed {
			state.RetryAfter = max(state.ResetAfter, time.Millisecond)
			if weight > state.Limit {
				state.RetryAfter = Never
			}
		}
		states = append(states, state)
	}
	return resultOf(each.Rule, states)
}

// seen is the state after a request was counted.
func (l *local) seen(each KeyedRule, now time.Time, fitted bool) *Result {
	var states []State
	for i, c := range l.counters(each.Key, each.Rule, now) {
		state := l.state(each.Rule, i, c, now)
		if state.Allowed = fitted; !fitted {
			state.RetryAfter = state.ResetAfter
		}
		states = append(states, state)
	}
	return resultOf(each.Rule, states)
}

func (l *local) state(rule Rule, window int, c *counter, now time.Time) State {
	policy := rule.policies()[window]
	limit := l.share(policy.limit)
	state := State{
		Limit: limit, Used: c.used, Remaining: max(limit-c.used, 0), Window: duration(max(policy.windowMS, 0)), At: now,
	}
	ends := c.ends
	if lease, ok := rule.(LeaseRule); ok {
		state.Window = duration(lease.ms)
		ends = now.Add(state.Window)
		for _, each := range c.holders {
			if each.Before(ends) {
				ends = each
			}
		}
	}
	if c.used > 0 {
		state.NextAfter = ends.Sub(now).Truncate(time.Millisecond) + time.Millisecond
		state.ResetAfter = state.NextAfter
	}
	return state
}

func (l *local) take(each KeyedRule, now time.Time) {
	for _, c := range l.counters(each.Key, each.Rule, now) {
		if lease, ok := each.Rule.(LeaseRule); ok {
			if c.holders == nil {
				c.holders = map[string]time.Time{}
			}
			c.holders[lease.holder] = now.Add(duration(lease.ms))
		} else {
			c.used += each.Rule.options().weight()
		}
	}
}

// release ends a lease.
func (l *local) release(key string, rule LeaseRule) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.counters(key, rule, time.Now()) {
		delete(c.holders, rule.holder)
	}
}
