package redisrl

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Never is a time that never comes, such as that until a cost fits that is above the limit. It is the longest duration there
// is, so that a comparison with the time that a caller has says the right thing.
const Never = time.Duration(math.MaxInt64)

// Seconds is a duration in whole seconds, rounded up, so that a client that waits as long is let in; -1 for [Never].
func Seconds(d time.Duration) int64 {
	if d == Never {
		return -1
	}
	return int64(d/time.Second + min(d%time.Second, 1))
}

// A State is one window after a call. Units are what the rule counts; durations are from At, and exact to the millisecond.
type State struct {
	// Allowed says whether the request fitted into this window.
	Allowed bool
	Limit   int64
	Used    int64
	// Remaining is how much is free: Limit - Used, at least 0.
	Remaining int64
	// RetryAfter is the time until the same call fits: 0 if it was allowed, [Never] if it never will.
	RetryAfter time.Duration
	// NextAfter is the time until more is free than now: 0 if nothing is used, [Never] if that never comes.
	NextAfter time.Duration
	// ResetAfter is the time until everything is free: 0 if nothing is used, [Never] if that never comes.
	ResetAfter time.Duration
	// Window is the window's length, a lease's time, or the time in which an empty bucket fills; 0 for a window of the
	// calendar.
	Window time.Duration
	// At is the server's time of the decision; with a turn, that of the turn.
	At time.Time
	// Wait is the time until the turn, of [Limiter.Turn] and [Limiter.Wait]: 0 if it is now.
	Wait time.Duration
}

// A Source is who has decided.
type Source string

// The sources of a decision. What the server has not decided it has not counted either.
const (
	FromServer Source = "server"
	// FromMemory is a denial that was remembered.
	FromMemory Source = "memory"
	// FromLocal is this process' own memory, while the server is unavailable to a [Guard].
	FromLocal Source = "local"
	// FromOpen is nobody: the request was let through while the server is unavailable to a [Guard].
	FromOpen Source = "open"
)

// A Result is the answer to a call. Its State is that of the window that binds: of those that deny, the one with the longest
// wait, then the fewest free units (Limit - Used), then the shortest; if none denies, the one with the fewest free units,
// then the shortest. Of [Limiter.All] it is that of the rule that binds, with Allowed, Remaining and RetryAfter of the call.
type Result struct {
	State
	Source Source // Who has decided.
	// Each is every window, shortest first; only the binding one if the rule is forced, and in the Results of All.
	Each []State
	// Index is the position of the rule that binds, of All.
	Index int
	// Results has one result a rule, of All; nil otherwise.
	Results []Result
	// Holder is who holds the lease, of a lease that was granted.
	Holder string

	rule Rule
}

// A Refund is the answer to [Limiter.Refund].
type Refund struct {
	Refunded int64 // How many units were given back.
	Used     int64 // How many are still in use in the first (shortest) window.
	// TTL is the first window's length, or what is left of it (fixed), or the time until all is free (throttle).
	TTL time.Duration
}

// duration of milliseconds from the server. -1 is Never; what no Duration can hold is 292 years.
func duration(ms int64) time.Duration {
	if ms < 0 {
		return Never
	}
	return time.Duration(min(ms, int64(Never/time.Millisecond)-1)) * time.Millisecond
}

var fields = []string{
	"allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms", "window-ms", "at-ms", "wait-ms",
}

// readState reads the map of FULL: a map in RESP3, a flat array in RESP2. The answer to a turn has one field more.
func readState(rule Rule, reply any) (State, error) {
	found, _ := reply.(map[any]any)
	if flat, ok := reply.([]any); ok && len(flat)%2 == 0 {
		found = map[any]any{}
		for pair := range slices.Chunk(flat, 2) {
			name, _ := pair[0].(string)
			found[name] = pair[1]
		}
	}
	var values [10]int64
	for i, name := range fields {
		value, ok := found[name].(int64)
		if _, isTurn := rule.(turn); !ok && (isTurn || name != "wait-ms") || name == "wait-ms" && value < 0 {
			return State{}, unreadable(reply)
		}
		values[i] = value
	}
	return State{
		Allowed: values[0] == 1, Limit: values[1], Used: values[2], Remaining: values[3],
		RetryAfter: duration(values[4]), NextAfter: duration(values[5]), ResetAfter: duration(values[6]),
		Window: duration(values[7]), At: time.UnixMilli(values[8]), Wait: duration(values[9]),
	}, nil
}

// readRule reads FULL or EACH.
func readRule(rule Rule, reply any) (*Result, error) {
	if rule.form() == "FULL" {
		state, err := readState(rule, reply)
		if err != nil {
			return nil, err
		}
		return resultOf(rule, []State{state}), nil
	}
	maps, ok := reply.([]any)
	if !ok || len(maps) != len(rule.policies()) {
		return nil, unreadable(reply)
	}
	states := make([]State, len(maps))
	for i, each := range maps {
		var err error
		if states[i], err = readState(rule, each); err != nil {
			return nil, err
		}
	}
	return resultOf(rule, states), nil
}

// readAll reads the reply of RL.ALL with FULL.
func readAll(rules []KeyedRule, reply any) (*Result, error) {
	parts, _ := reply.([]any)
	if len(parts) != 5 {
		return nil, unreadable(reply)
	}
	numbers, err := readNumbers(parts[:4], 4)
	states, _ := parts[4].([]any)
	if err != nil || len(states) != len(rules) || numbers[1] < 0 || numbers[1] >= int64(len(rules)) {
		return nil, unreadable(reply)
	}
	results := make([]Result, len(rules))
	for i, each := range states {
		state, err := readState(rules[i].Rule, each)
		if err != nil {
			return nil, err
		}
		results[i] = *resultOf(rules[i].Rule, []State{state})
	}
	return allOf(results, int(numbers[1]), numbers[0] == 1, numbers[2], duration(numbers[3])), nil
}

func readRefund(reply any) (*Refund, error) {
	numbers, err := readNumbers(reply, 3)
	if err != nil {
		return nil, err
	}
	return &Refund{numbers[0], numbers[1], duration(1000 * numbers[2])}, nil
}

func readNumbers(reply any, count int) (numbers []int64, err error) {
	parts, _ := reply.([]any)
	for _, each := range parts {
		if number, ok := each.(int64); ok {
			numbers = append(numbers, number)
		}
	}
	if len(numbers) != count || len(parts) != count {
		return nil, unreadable(reply)
	}
	return numbers, nil
}

func readNumber(reply any) (int64, error) {
	number, ok := reply.(int64)
	if !ok {
		return 0, unreadable(reply)
	}
	return number, nil
}

func resultOf(rule Rule, states []State) *Result {
	result := &Result{State: binding(states), Source: FromServer, Each: states, rule: rule}
	if lease, ok := rule.(LeaseRule); ok && result.Allowed {
		result.Holder = lease.holder
	}
	return result
}

func allOf(results []Result, index int, allowed bool, remaining int64, retry time.Duration) *Result {
	result := &Result{State: results[index].State, Source: FromServer, Index: index, Results: results}
	result.Allowed, result.Remaining, result.RetryAfter = allowed, remaining, retry
	return result
}

// binding is the window that binds, as the server picks it for its short reply.
func binding(states []State) State {
	return slices.MinFunc(states, func(a, b State) int {
		if a.Allowed != b.Allowed {
			if b.Allowed {
				return -1
			}
			return 1
		}
		return cmp.Or(
			cmp.Compare(b.RetryAfter, a.RetryAfter),
			cmp.Compare(a.Limit-a.Used, b.Limit-b.Used),
			cmp.Compare(a.Window, b.Window),
		)
	})
}

// later is the same answer some time later, if nothing else has happened.
func (r *Result) later(passed time.Duration) *Result {
	passed = passed.Truncate(time.Millisecond)
	aged := *r
	aged.State = r.State.later(passed)
	aged.Each = make([]State, len(r.Each))
	for i, state := range r.Each {
		aged.Each[i] = state.later(passed)
	}
	if r.Results != nil {
		aged.Results = make([]Result, len(r.Results))
		for i := range r.Results {
			aged.Results[i] = *r.Results[i].later(passed)
		}
	}
	return &aged
}

func (s State) later(passed time.Duration) State {
	for _, wait := range []*time.Duration{&s.RetryAfter, &s.NextAfter, &s.ResetAfter} {
		if *wait != Never {
			*wait = max(*wait-passed, 0)
		}
	}
	s.At = s.At.Add(passed)
	return s
}

// from is the same answer from another source.
func (r *Result) from(source Source) *Result {
	r.Source = source
	for i := range r.Results {
		r.Results[i].Source = source
	}
	return r
}

// String says what was decided.
func (r *Result) String() string {
	if r.Allowed {
		return fmt.Sprintf("allowed, %d of %d remaining", r.Remaining, r.Limit)
	}
	if r.RetryAfter == Never {
		return fmt.Sprintf("denied, it can never fit into %d", r.Limit)
	}
	return fmt.Sprintf("denied, %d of %d remaining, again in %v", r.Remaining, r.Limit, r.RetryAfter)
}
