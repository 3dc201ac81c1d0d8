package redisrl

import (
	"slices"
	"sync"
	"time"
)

// Counters that are kept at most, so that a flood of identities does not take all memory. Beyond that any one is forgotten.
const mostLocal = 50_000

// local decides on requests as long as the server cannot: by a counter for each key and window, which begins with its first
// request, divided by the number of processes. A throttle is a window in which its empty bucket fills, and leases are free.
type local struct {
	processes int64
	isOpen    bool // Everything is let through, and nothing counted.

	mu       sync.Mutex
	counters map[string]*counter
}

type counter struct {
	used int64
	ends time.Time
}

// decide decides on a request, and counts it if it fits everywhere.
func (l *local) decide(rules []KeyedRule) *Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	results, judged := make([]Result, len(rules)), make([]State, len(rules))
	look := func(counts bool) State {
		for i, each := range rules {
			results[i] = l.look(each, now, counts)
			judged[i] = results[i].State
			if isForced(each.Rule) {
				judged[i].Allowed, judged[i].RetryAfter = true, 0
			}
		}
		return binding(judged)
	}
	bound := look(false)
	if bound.Allowed {
		bound = look(true)
	}
	if len(results) == 1 {
		return &results[0]
	}
	return allOf(results, slices.Index(judged, bound), bound.Allowed, bound.Remaining, bound.RetryAfter)
}

// look says whether a request fits into its windows, and counts it where it is told to.
func (l *local) look(each KeyedRule, now time.Time, counts bool) Result {
	cost := each.Rule.options().weight()
	var states []State
	for _, window := range each.Rule.policies() {
		limit := max(window.limit/l.processes, min(window.limit, 1))
		state := State{Allowed: true, Limit: limit, Window: duration(max(window.windowMS, 0)), At: now}
		if !l.isOpen && !isLease(each.Rule) {
			c := l.counter(each, window, now)
			state.Allowed = c.used+max(cost, 1) <= limit
			if counts {
				c.used += cost
			}
			if state.Used = c.used; c.used > 0 {
				state.NextAfter = c.ends.Sub(now).Truncate(time.Millisecond) + time.Millisecond
				state.ResetAfter = state.NextAfter
			}
			if !state.Allowed {
				state.RetryAfter = max(state.ResetAfter, time.Millisecond)
				if cost > limit {
					state.RetryAfter = Never
				}
			}
		}
		state.Remaining = max(limit-state.Used, 0)
		states = append(states, state)
	}
	return *resultOf(each.Rule, states)
}

// counter is that of a window, as it is now.
func (l *local) counter(each KeyedRule, window policy, now time.Time) *counter {
	name := each.Key + " " + seconds(window.windowMS)
	c := l.counters[name]
	if c == nil {
		for other := range l.counters {
			if len(l.counters) < mostLocal {
				break
			}
			delete(l.counters, other)
		}
		c = &counter{}
		l.counters[name] = c
	}
	if !now.Before(c.ends) {
		c.used, c.ends = 0, now.Add(duration(window.windowMS))
		if fixed, ok := each.Rule.(FixedRule); ok && fixed.calendar != nil {
			c.ends = fixed.calendar.end(now)
		}
	}
	return c
}
