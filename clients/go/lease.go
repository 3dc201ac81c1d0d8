package redisrl

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// The pause before a lease is asked for again, at first and at most: one can be given back before it ends.
	firstPoll, longestPoll = 20 * time.Millisecond, 500 * time.Millisecond
	renewals               = 3 // How often what is held is renewed in its time.
)

// Acquire takes or renews a lease. The result's Holder is who holds it: the rule's, or a random name. Where ctx ends first, a lease
// of a random name is given back; one of the rule's holder stays, as it may have been held before.
func (l *Limiter) Acquire(ctx context.Context, key string, rule LeaseRule) (*Result, error) {
	if rule.holder == "" {
		rule = rule.heldBy()
	}
	return l.Hit(ctx, key, rule)
}

// Release ends leases, and returns how many were still held. Releasing twice is no error.
func (l *Limiter) Release(ctx context.Context, key string, holders ...string) (int64, error) {
	command, err := releaseCommand(l.prefix+key, holders)
	reply, err := l.change(ctx, "release", key, command, err)
	if err != nil {
		return 0, err
	}
	l.lines.wake(key)
	return readNumber(reply)
}

// A Held lease is renewed in the background, each third of its time, until it is released or the context of [Limiter.Hold]
// ends.
type Held struct {
	limiter *Limiter
	key     string
	rule    LeaseRule
	keeper  *keeper
	release sync.Once
}

// Hold takes a lease for a piece of work, which ends with [Held.Release], to be deferred. It waits so long for a place, and not
// beyond the deadline of the context; 0 does not wait. The error is a [*DeniedError] if none was free.
func (l *Limiter) Hold(ctx context.Context, key string, rule LeaseRule, wait time.Duration) (*Held, error) {
	rule = rule.heldBy()
	if err := checked(rule, 1); err != nil {
		return nil, err
	}
	if wait < 0 {
		return nil, invalid("the time to wait must not be negative, and is %v", wait)
	}
	ends := time.Now().Add(duration(rule.ms))
	var (
		result *Result
		err    error
	)
	if wait > 0 {
		result, ends, err = l.await(ctx, key, rule, time.Now().Add(wait))
	} else {
		result, err = l.Hit(ctx, key, rule)
	}
	if err != nil {
		return nil, err
	}
	if !result.Allowed {
		return nil, &DeniedError{result}
	}
	return l.hold(ctx, key, rule, ends), nil
}

// hold keeps a lease that was taken, and ends at this time.
func (l *Limiter) hold(ctx context.Context, key string, rule LeaseRule, ends time.Time) *Held {
	held := &Held{limiter: l, key: key, rule: rule}
	rules := []KeyedRule{On(key, rule)}
	late := func() { l.giveBack(rules, nil) }
	held.keeper = l.keep(ctx, "hit", rules, time.Duration(rule.ms)*time.Millisecond, ends, late)
	return held
}

// Holder is the name under which the lease is held.
func (h *Held) Holder() string { return h.rule.holder }

// Context is that of Hold, and ends when the lease does, at the latest; [context.Cause] is then [ErrLost].
func (h *Held) Context() context.Context { return h.keeper.ctx }

// Lost says whether the lease has ended before it was released: others may hold it now. It is counted by the clock of this
// process, from before the last renewal was sent, so that it is never noticed too late, also while the server does not
// answer.
func (h *Held) Lost() bool { return h.keeper.lost() }

// Release ends the lease. An error is logged, and is no concern of the work's: the lease then ends by itself. Calling it
// again does nothing.
func (h *Held) Release() {
	h.release.Do(func() {
		h.keeper.end()
		h.rule.wanted.Store(false)
		h.limiter.giveBack([]KeyedRule{On(h.key, h.rule)}, nil)
	})
}

// lines are those that wait for places, by key.
type lines struct {
	mu    sync.Mutex
	byKey map[string]*line
}

type line struct {
	users int
	// turn is held by the one that asks; those that wait for it get it in their order.
	turn   chan struct{}
	wake   chan struct{}
	denied atomic.Pointer[Result] // The last answer, which denied all of them.
}

func (l *lines) enter(key string) *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.byKey[key]
	if known == nil {
		known = &line{turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
		l.byKey[key] = known
	}
	known.users++
	return known
}

func (l *lines) leave(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey[key].users--; l.byKey[key].users == 0 {
		delete(l.byKey, key)
	}
}

func (l *lines) wake(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.byKey[key]; known != nil {
		select {
		case known.wake <- struct{}{}:
		default:
		}
	}
}

// A keeper renews what is held, a lease or the units of a reservation, until it ends.
type keeper struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	// stop ends renewing, and stopped is closed when that is over.
	stop    context.CancelFunc
	stopped chan struct{}
	// ends is when what is held does, by now; expires fires then.
	ends    atomic.Int64
	expires *time.Timer
}

// keep renews by the same call as it was taken. late is called where a renewal is answered after renewing has ended.
func (l *Limiter) keep(ctx context.Context, call string, rules []KeyedRule, ttl time.Duration, ends time.Time, late func()) *keeper {
	k := &keeper{stopped: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(ctx)
	k.stop = stop
	k.ends.Store(int64(ends.Sub(started)))
	k.expires = time.AfterFunc(time.Until(ends), func() { k.lost() })
	log := l.core.modes.log.With("limiter", l.core.name, "keys", keysOf(rules))
	go func() {
		defer close(k.stopped)
		ticker := time.NewTicker(max(ttl/renewals, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-renewing.Done():
				return
			case <-ticker.C:
			}
			next := time.Now().Add(ttl)
			result, err := l.renew(renewing, call, rules, late)
			switch {
			case err == nil && result.Allowed && k.lost():
				// What has ended was taken anew, and nobody would know of it.
				late()
				return
			case renewing.Err() != nil:
				return
			case isSettled(err), hasEnded(err):
				// A settlement whose reply was lost has arrived; or there is nothing that could be given back.
				k.ends.Store(math.MaxInt64)
				k.expires.Stop()
				return
			case err != nil:
				// The next time may work; if it does not, it ends by itself.
				log.Warn("what is held could not be renewed", "error", err)
			case !result.Allowed:
				log.Warn("what is held has ended before it was renewed, and there is no room")
				k.cancel(ErrLost)
				return
			default:
				k.ends.Store(int64(next.Sub(started)))
				k.expires.Reset(time.Until(next))
			}
		}
	}()
	return k
}

// renew is one more call. Where its answer comes later than the end of renewing, what it has taken is given back.
func (l *Limiter) renew(ctx context.Context, call string, rules []KeyedRule, late func()) (*Result, error) {
	command, err := decisionCommand(call, l.prefix, rules)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	reply, _, err := l.core.ask(ctx, command, l.core.timeout, nil, func(any) {
		if ctx.Err() != nil {
			late()
		}
	})
	var result *Result
	if err == nil {
		result, err = read(call, rules, reply)
	}
	l.count(Event{Call: "renew", Keys: keysOf(rules), Result: result, Err: err}, began)
	return result, err
}

// lost goes by the clock, since a process that is busy, or was stopped, runs its timers late. What is lost stays lost.
func (k *keeper) lost() bool {
	if now() >= k.ends.Load() {
		k.cancel(ErrLost)
		k.stop()
	}
	return errors.Is(context.Cause(k.ctx), ErrLost)
}

// end stops renewing.
func (k *keeper) end() {
	k.expires.Stop()
	k.stop()
	<-k.stopped
	k.cancel(context.Canceled)
}
