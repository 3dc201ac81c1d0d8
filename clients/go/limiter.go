// Package redisrl has exact rate limits on Redis and Valkey: sliding and fixed windows, steady rates, concurrent requests,
// token budgets. One call decides, on the server, by the server's clock.
//
//	limiter, err := redisrl.New(redis.NewClient(&redis.Options{}), redisrl.Options{})
//	…
//	result, err := limiter.Hit(ctx, "user:7", redisrl.Must(redisrl.Sliding("100/minute")))
//
// It works by the commands of the module redis-rl, by a function library where modules are not allowed, and by a script
// where functions are not allowed either. The first call detects which; keys and answers are the same.
package redisrl

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	defaultName    = "redis-rl"
	defaultTimeout = time.Second
	longestTurn    = time.Hour   // How far ahead a turn may be.
	outagePoll     = time.Second // How often one that waits asks while the server is unavailable.
	lastCallShare  = 10          // The part of the limiter's time-out that the last call of a wait has at least.
)

// Options of a limiter. The zero value is a good one.
type Options struct {
	Prefix string // Put before every key.
	Mode   Mode   // Auto unless given.
	// Timeout is the longest that a call may take, whatever the client's time-outs are: a second unless given.
	Timeout time.Duration
	Name    string       // What the limiter is called in log lines and events: "redis-rl" unless given.
	Logger  *slog.Logger // [slog.Default] unless given.
	Hook    func(Event)  // Called after every call, in the goroutine of the call. That it panics is logged.
}

// An Event is a call that has ended.
type Event struct {
	Limiter string // The limiter's name.
	// Call is "hit", "peek", "all", "turn", "refund", "reset", "release", "settle", or "renew" for what is held.
	Call string
	Keys []string // Those of the call, without the limiter's prefix.
	Took time.Duration
	// Result is the answer of a hit, a peek or an all; its Source says who has decided.
	Result *Result
	Err    error // How the call failed, if it did.
}

// Stats are what a limiter has decided since it was made. Peeks do not count.
type Stats struct {
	Allowed int64
	Denied  int64 // By the server or from memory.
	// DeniedFromMemory of these by a [Guard], without asking the server.
	DeniedFromMemory int64
	Unavailable      int64 // Calls for which the server was unavailable.
}

type counters struct{ allowed, denied, fromMemory, unavailable atomic.Int64 }

// A Limiter decides on requests, by a server or a cluster. It is for use by many goroutines, and has nothing to close.
//
// No call takes longer than the limiter's time-out, and a call ends with its context. After a failure that means that the
// server is unavailable, calls fail at once for a second; then one of them probes the server. A call whose reply was lost is
// not sent again, unless it changes nothing the second time. A denial is no error. Errors are an [*ArgumentError] for what
// cannot be asked, [ErrUnavailable], or what the server has said; [redis.Error] tells these.
type Limiter struct {
	core      *core
	prefix    string
	hook      func(Event)
	counters  *counters
	remembers bool // Answers come from remembered denials, as a guard's do.
	denials   *denials
	lines     *lines
	fallbacks *sync.Map
}

// New is a limiter on a client, which may be of a server, a cluster, a sentinel's group, or a ring. Nothing is sent before
// the first call.
//
// The client stays the caller's: its pool, its hooks and its failover are used as they are.
func New(client redis.UniversalClient, options Options) (*Limiter, error) {
	switch options.Mode {
	case Auto, Module, Functions, Script:
	default:
		return nil, invalid("the mode must be Auto, Module, Functions or Script, not %q", options.Mode)
	}
	if options.Timeout < 0 {
		return nil, invalid("the time-out must be above 0, not %v", options.Timeout)
	}
	if options.Timeout == 0 {
		options.Timeout = defaultTimeout
	}
	if options.Name == "" {
		options.Name = defaultName
	}
	log := options.Logger
	if log == nil {
		log = slog.Default()
	}
	modes := &modes{chosen: options.Mode, name: options.Name, log: log}
	core, err := newCore(client, options.Timeout, options.Name, log, modes)
	if err != nil {
		return nil, err
	}
	return &Limiter{
		core: core, prefix: options.Prefix, hook: options.Hook, counters: &counters{},
		denials: newDenials(), lines: &lines{byKey: map[string]*line{}}, fallbacks: &sync.Map{},
	}, nil
}

// Mode is how the server is called; Auto as long as that is not known. In a cluster it is that of the node which has the
// least.
func (l *Limiter) Mode() Mode { return l.core.modes.least() }

// Stats are what the limiter has decided so far.
func (l *Limiter) Stats() Stats {
	c := l.counters
	return Stats{c.allowed.Load(), c.denied.Load(), c.fromMemory.Load(), c.unavailable.Load()}
}

// Hit decides on a request, and counts it if it fits.
func (l *Limiter) Hit(ctx context.Context, key string, rule Rule) (*Result, error) {
	return l.decide(ctx, "hit", []KeyedRule{On(key, rule)}, l.core.timeout)
}

// Peek is what Hit would answer, and changes nothing. With a cost of 0 it shows the state as it is. In a cluster whose client
// reads from replicas, a replica answers.
func (l *Limiter) Peek(ctx context.Context, key string, rule Rule) (*Result, error) {
	return l.decide(ctx, "peek", []KeyedRule{On(key, rule)}, l.core.timeout)
}

// All is one decision over 1 to 64 keys: each rule has room, or nothing is counted anywhere. A rule with a cost of 0 is
// checked, and counts nothing. In a cluster the keys have to lie in one slot, by a hash tag such as {org7}.
func (l *Limiter) All(ctx context.Context, rules ...KeyedRule) (*Result, error) {
	return l.decide(ctx, "all", rules, l.core.timeout)
}

// Turn counts a request at the first time at which it will fit, if that is within 0 to an hour: its turn. The caller sleeps
// for the result's Wait from when it has the result, and goes on without asking again; who asks later has a later turn. A turn
// that is not used is given back by [Limiter.Refund] with the result's At, and is where its caller leaves before it is told.
func (l *Limiter) Turn(ctx context.Context, key string, rule TurnRule, within time.Duration) (*Result, error) {
	return l.decide(ctx, "turn", []KeyedRule{On(key, turn{rule, within})}, l.core.timeout)
}

// Wait returns when the request is allowed, or a [*DeniedError] at once where that is later than the deadline of the
// context, which its last call may exceed by a tenth of the limiter's time-out. While the server is unavailable it tries again
// each second.
//
// With a rule that gives turns it takes one and sleeps, so that waiters are let in as they came, with one call each; one that
// leaves gives its turn back. With a fixed rule it asks again after the exact wait, and with a lease as [Limiter.Hold] does.
func (l *Limiter) Wait(ctx context.Context, key string, rule Rule) (*Result, error) {
	if isForced(rule) {
		return nil, invalid("a request that is forced is not waited for: it would be counted each time")
	}
	if lease, ok := rule.(LeaseRule); ok {
		rule = lease.heldBy()
	}
	result, _, err := l.await(ctx, key, rule, time.Now().Add(Never))
	if err == nil && !result.Allowed {
		return nil, &DeniedError{result}
	}
	return result, err
}

// await asks until the request is allowed or cannot be before its time is over, which the deadline of ctx ends as well, and sleeps
// until its turn. It returns the last answer, and when a lease ends by this process' clock.
//
// Those that wait in this process for a place at a key do so in a line, and only its first asks: when a lease is released here,
// and from time to time, as others may release theirs.
func (l *Limiter) await(ctx context.Context, key string, rule Rule, until time.Time) (result *Result, ends time.Time, err error) {
	if ctx.Err() != nil {
		return nil, until, ended(ctx)
	}
	if end, hasEnd := ctx.Deadline(); hasEnd && end.Before(until) {
		until = end
	}
	// At the deadline what is known is told, and the last call has its time.
	caller := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller))
	defer cancel()
	stop := context.AfterFunc(caller, func() {
		if !errors.Is(caller.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	defer stop()
	ahead := &line{}
	lease, isLease := rule.(LeaseRule)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	if isLease {
		lease.wanted.Store(true)
		defer func() { lease.wanted.Store(result != nil && result.Allowed) }()
		ahead = l.lines.enter(key)
		defer l.lines.leave(key)
		select {
		case ahead.turn <- struct{}{}:
			defer func() { <-ahead.turn }()
		case <-timer.C:
			if denied := ahead.denied.Load(); denied != nil {
				return denied, until, nil
			}
		case <-ctx.Done():
			return nil, until, ended(ctx)
		}
	}
	for pause := firstPoll; ; pause = min(2*pause, longestPoll) {
		asked, call, left := rule, "hit", time.Until(until)
		if turns, ok := rule.(TurnRule); ok {
			asked, call = turn{turns, min(max(left, 0), longestTurn)}, "turn"
		}
		ends = time.Now().Add(duration(lease.ms))
		rules := []KeyedRule{On(key, asked)}
		result, err = l.decide(ctx, call, rules, min(l.core.timeout, max(left, l.core.timeout/lastCallShare)))
		left, wait := time.Until(until), outagePoll
		switch {
		case err == nil && result.Allowed:
			timer.Reset(result.Wait)
			select {
			case <-timer.C:
				return result, ends, nil
			case <-ctx.Done():
				l.giveBack(rules, result)
				return nil, ends, ended(ctx)
			}
		case err == nil && (result.RetryAfter == Never || left <= 0 || !isLease && result.RetryAfter > left):
			return result, ends, nil
		case err == nil:
			ahead.denied.Store(result)
			if wait = max(result.RetryAfter, time.Millisecond); isLease {
				wait = min(wait, pause-rand.N(pause/4))
			}
		case !errors.Is(err, ErrUnavailable) || ctx.Err() != nil:
			return nil, ends, err
		case left <= 0 && ahead.denied.Load() != nil:
			return ahead.denied.Load(), ends, nil
		case left <= 0:
			return nil, ends, err
		default:
			// What was known before an outage is no answer after it.
			ahead.denied.Store(nil)
		}
		timer.Reset(min(wait, left))
		select {
		case <-timer.C:
		case <-ahead.wake:
		case <-ctx.Done():
			return nil, ends, ended(ctx)
		}
	}
}

// Refund gives back what the same rule has taken: its cost, and of a zero time the newest units. With the At of the hit's
// result, a sliding rule gives back units of that moment, and a fixed one nothing where that window has ended since.
func (l *Limiter) Refund(ctx context.Context, key string, rule Countable, at time.Time) (*Refund, error) {
	command, err := refundCommand(l.prefix+key, rule, at)
	reply, err := l.change(ctx, "refund", key, command, err)
	if err != nil {
		return nil, err
	}
	return readRefund(reply)
}

// Reset gives the key its whole quota back, and with fixed rules their counters and reservations. It returns how many of its
// keys were removed.
func (l *Limiter) Reset(ctx context.Context, key string, rules ...Rule) (int64, error) {
	command, err := resetCommand(l.prefix+key, rules)
	reply, err := l.change(ctx, "reset", key, command, err)
	if err != nil {
		return 0, err
	}
	return readNumber(reply)
}

// decide asks for a decision, unless a denial is remembered.
func (l *Limiter) decide(ctx context.Context, call string, rules []KeyedRule, within time.Duration) (*Result, error) {
	began := time.Now()
	if !isHeld(rules) {
		rules = at(rules, began)
	}
	command, err := decisionCommand(call, l.prefix, rules)
	if err != nil {
		return nil, err
	}
	// Also by a call that goes on when it was left.
	var askedAt atomic.Int64
	askedAt.Store(now())
	known := func() *Result { return nil }
	if remembered := rules; l.remembers && call != "peek" {
		known = func() *Result {
			askedAt.Store(now())
			return l.denials.find(remembered)
		}
	}
	result := known()
	if result == nil {
		result, err = l.asked(ctx, call, rules, command, within, known)
		if end := earliestEnd(rules); hasEnded(err) && !end.IsZero() && !isHeld(rules) {
			// On the server's clock, which is ahead.
			rules = at(rules, end)
			if command, err = decisionCommand(call, l.prefix, rules); err == nil {
				result, err = l.asked(ctx, call, rules, command, within, known)
			}
		}
		if err != nil {
			// In a crowd another call may have brought the answer.
			if errors.Is(err, ErrUnavailable) {
				result = known()
			}
			if result == nil {
				l.count(Event{Call: call, Keys: keysOf(rules), Err: err}, began)
				return nil, err
			}
		} else if l.remembers && !result.Allowed && result.Source == FromServer && call != "peek" {
			l.denials.remember(rules, result, started.Add(time.Duration(askedAt.Load())))
		}
	}
	l.count(Event{Call: call, Keys: keysOf(rules), Result: result}, began)
	return result, nil
}

func (l *Limiter) asked(
	ctx context.Context, call string, rules []KeyedRule, command command, within time.Duration, known func() *Result,
) (*Result, error) {
	reply, found, err := l.core.ask(ctx, command, within, known, func(reply any) {
		// Nobody would know of what a call has taken whose caller has gone, but for a lease whose holder the caller has named.
		isKnown := func(each KeyedRule) bool {
			lease, isLease := each.Rule.(LeaseRule)
			return isLease && (lease.wanted == nil || lease.wanted.Load())
		}
		if result, err := read(call, rules, reply); call != "peek" && err == nil && result.Allowed {
			l.giveBack(slices.DeleteFunc(slices.Clone(rules), isKnown), result)
		}
	})
	if err != nil {
		return nil, err
	}
	if found != nil {
		return found, nil
	}
	return read(call, rules, reply)
}

// giveBack ends the leases and the reservations of a call, and gives its turn back. An error is logged: they end by themselves.
func (l *Limiter) giveBack(rules []KeyedRule, result *Result) {
	ctx := context.Background()
	for _, each := range rules {
		var err error
		switch rule := each.Rule.(type) {
		case LeaseRule:
			_, err = l.Release(ctx, each.Key, rule.holder)
		case turn:
			_, err = l.Refund(ctx, each.Key, rule.TurnRule, result.At)
		case Reservable:
			if holdOf(rule) != nil {
				_, err = l.settle(ctx, each.Key, rule, 0)
			}
		}
		if err != nil {
			l.core.modes.log.Warn("what was held could not be given back", "limiter", l.core.name, "key", each.Key, "error", err)
		}
	}
}

// read reads the reply to a call that decides.
func read(call string, rules []KeyedRule, reply any) (*Result, error) {
	if call == "all" {
		return readAll(rules, reply)
	}
	return readRule(rules[0].Rule, reply)
}

// change carries out what changes a key without a decision, unless the command could not be made.
func (l *Limiter) change(ctx context.Context, call, key string, command command, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	began := time.Now()
	l.denials.forget(key)
	reply, _, err := l.core.ask(ctx, command, l.core.timeout, nil, nil)
	// Also a denial of which another call has heard meanwhile.
	l.denials.forget(key)
	l.count(Event{Call: call, Keys: []string{key}, Err: err}, began)
	return reply, err
}

func keysOf(rules []KeyedRule) []string {
	keys := make([]string, len(rules))
	for i, each := range rules {
		keys[i] = each.Key
	}
	return keys
}

// count counts a call, and tells the hook.
func (l *Limiter) count(event Event, began time.Time) {
	switch {
	case errors.Is(event.Err, ErrUnavailable):
		l.counters.unavailable.Add(1)
	case event.Err != nil || event.Call != "hit" && event.Call != "all" && event.Call != "turn":
	case event.Result.Allowed:
		l.counters.allowed.Add(1)
	default:
		l.counters.denied.Add(1)
		if event.Result.Source == FromMemory {
			l.counters.fromMemory.Add(1)
		}
	}
	if l.hook != nil {
		event.Limiter, event.Took = l.core.name, time.Since(began)
		// A request does not fail for its metrics, and the process does not end for those of a renewal.
		defer func() {
			if cause := recover(); cause != nil {
				l.core.modes.log.Error("the hook panicked", "limiter", l.core.name, "cause", cause, "stack", string(debug.Stack()))
			}
		}()
		l.hook(event)
	}
}
