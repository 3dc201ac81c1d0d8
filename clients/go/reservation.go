package redisrl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// For how long the server remembers a settlement, at least.
const leastMemory = time.Minute

// A Reservation is of units whose real number is known when the work is over. They are charged from the beginning, so that
// requests that run at the same time cannot spend the same. It is renewed in the background, each third of its lease, until it
// is settled or closed, or the context of [Limiter.Reserve] ends; then it ends with its lease, and the next reservation or
// settlement at the key gives its units back.
type Reservation struct {
	// Result is the answer to the reservation.
	Result *Result

	limiter *Limiter
	lease   time.Duration
	keeper  *keeper

	mu    sync.Mutex
	parts []part
	// failed are the figures of a settlement that was tried and has not worked; nil if there was none.
	failed []int64
}

// A part of a reservation is at a key.
type part struct {
	key     string
	rule    Reservable
	settled int64 // With how many units it was settled; -1 if it was not.
	// unansweredSince is when the first settlement was sent that had no answer.
	unansweredSince time.Time
}

// Reserve takes the most units that a request may cost (1 to 2^53-1), and gives the rest back when it is settled; its error is a
// [*DeniedError] if they do not fit. Defer [Reservation.Close].
//
// If this process dies, the next reservation or settlement at the key gives the units back, when the lease is over.
func (l *Limiter) Reserve(ctx context.Context, key string, rule Reservable, units int64, lease time.Duration) (*Reservation, error) {
	return l.reserve(ctx, "hit", lease, []KeyedRule{Reserved(key, rule, units)})
}

// ReserveAll is one decision over several keys, of whose rules some reserve units ([Reserved]) and others count or are
// checked as in [Limiter.All].
func (l *Limiter) ReserveAll(ctx context.Context, lease time.Duration, rules ...KeyedRule) (*Reservation, error) {
	return l.reserve(ctx, "all", lease, rules)
}

// reserved are the rules of a reservation, with a holder of its own.
func reserved(rules []KeyedRule, lease time.Duration, now time.Time) ([]KeyedRule, []part, error) {
	if len(rules) < 1 || len(rules) > maxKeys {
		return nil, nil, invalid("a call takes 1 to %d keys, not %d", maxKeys, len(rules))
	}
	rules = at(rules, now)
	holder := randomName()
	var parts []part
	for i, each := range rules {
		if !each.isReserved {
			continue
		}
		if err := checked(each.Rule, 0); err != nil {
			return nil, nil, err
		}
		rule, ok := each.Rule.(Reservable)
		if !ok || rule.isForced() {
			return nil, nil, invalid("a reservation is not forced: Settle charges over the limit where it has to")
		}
		if each.reserved < 1 || each.reserved > maxUnits {
			return nil, nil, invalid("the units of a reservation must be from 1 to %d, not %d", int64(maxUnits), each.reserved)
		}
		rule = rule.held(each.reserved, holder, lease)
		rules[i].Rule = rule
		parts = append(parts, part{key: each.Key, rule: rule, settled: -1})
	}
	if parts == nil {
		return nil, nil, invalid("a reservation needs a rule of which units are reserved")
	}
	return rules, parts, nil
}

func (l *Limiter) reserve(ctx context.Context, call string, lease time.Duration, rules []KeyedRule) (*Reservation, error) {
	began := time.Now()
	for again := false; ; again = true {
		held, parts, err := reserved(rules, lease, began)
		if err != nil {
			return nil, err
		}
		ends := time.Now().Add(lease)
		result, err := l.decide(ctx, call, held, l.core.timeout)
		if end := earliestEnd(held); hasEnded(err) && !again && !end.IsZero() {
			began = end
			continue
		}
		if err != nil {
			return nil, err
		}
		if !result.Allowed {
			return nil, &DeniedError{result}
		}
		reservation := &Reservation{Result: result, limiter: l, lease: lease, parts: parts}
		// What a renewal has taken that comes too late ends with its lease, or was settled.
		reservation.keeper = l.keep(ctx, call, held, lease, ends, func() {})
		return reservation, nil
	}
}

// Context is that of Reserve, and ends when the reservation has; [context.Cause] is [ErrLost] if it has lapsed.
func (r *Reservation) Context() context.Context { return r.keeper.ctx }

// Lost says whether the reservation has lapsed: its units are free for others. It can still be settled.
func (r *Reservation) Lost() bool { return r.keeper.lost() }

// Settle charges what the work has really cost (0 to 2^53-1) in place of what was reserved, also over the limit: one figure
// for all keys, or one for each that was reserved. It may be called again after any error, with the same figures, and charges
// once. A figure other than what was settled is an error. When the server remembers no longer, a lease and at least a minute
// after the first settlement that had no answer, the error says that the outcome is unknown.
func (r *Reservation) Settle(ctx context.Context, actual ...int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(actual) != 1 && len(actual) != len(r.parts) {
		return invalid("Settle takes the actual units, one figure for all or %d, not %d", len(r.parts), len(actual))
	}
	if err := checkActual(actual...); err != nil {
		return err
	}
	r.failed = actual
	var failures []error
	for i := range r.parts {
		units := actual[0]
		if len(actual) > 1 {
			units = actual[i]
		}
		if err := r.settle(ctx, &r.parts[i], units); err != nil {
			failures = append(failures, err)
		}
	}
	if failures != nil {
		return errors.Join(failures...)
	}
	r.failed = nil
	r.keeper.end()
	return nil
}

func (r *Reservation) settle(ctx context.Context, part *part, units int64) error {
	switch part.settled {
	case -1:
	case units:
		// Not sent again: a server that remembers no longer would charge once more.
		return nil
	default:
		return settledOtherwise()
	}
	began := time.Now()
	// With the time that the call may take.
	if first := part.unansweredSince; !first.IsZero() && began.Sub(first) >= max(r.lease, leastMemory)-r.limiter.core.timeout {
		ago := began.Sub(first).Round(time.Second)
		return fmt.Errorf("redisrl: the outcome of the settlement is unknown: the first one had no answer %v ago", ago)
	}
	_, err := r.limiter.settle(ctx, part.key, part.rule, units)
	if err == nil {
		part.settled = units
	} else if errors.As(err, &unanswered{}) && part.unansweredSince.IsZero() {
		part.unansweredSince = began
	}
	return err
}

// Cancel gives everything back: it settles 0.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }

// Close ends the reservation, and is to be deferred. It cancels what was not settled, so that work which has failed costs
// nothing, and sends a settlement that has failed once more. An error of that is logged, and the reservation then lapses.
func (r *Reservation) Close() {
	r.mu.Lock()
	isSettled, figures := true, r.failed
	for _, each := range r.parts {
		isSettled = isSettled && each.settled != -1
	}
	r.mu.Unlock()
	if !isSettled {
		if figures == nil {
			figures = []int64{0}
		}
		if err := r.Settle(context.WithoutCancel(r.keeper.ctx), figures...); err != nil {
			l := r.limiter
			l.core.modes.log.Warn("a reservation could not be settled", "limiter", l.core.name, "units", figures, "error", err)
		}
	}
	r.keeper.end()
}

func (l *Limiter) settle(ctx context.Context, key string, rule Reservable, actual int64) (settled int64, err error) {
	command, err := settleCommand(l.prefix+key, rule, actual)
	reply, err := l.change(ctx, "settle", key, command, err)
	if err != nil {
		return 0, err
	}
	return readSettlement(reply)
}

// readSettlement reads whether a settlement was carried out: now (1), now and after the reservation had ended (2), or before
// with the same figure (3).
func readSettlement(reply any) (settled int64, err error) {
	numbers, err := readNumbers(reply, 3)
	if err != nil || numbers[0] < 0 || numbers[0] > 3 {
		return 0, unreadable(reply)
	}
	if numbers[0] == 0 {
		return 0, settledOtherwise()
	}
	return numbers[0], nil
}

func settledOtherwise() error {
	return invalid("the reservation was settled before, with another figure")
}
