// Package redisrate has the signatures of github.com/go-redis/redis_rate/v10, over the throttle of redis-rl: its users change
// an import.
//
// A limit is the same: a steady rate with a burst (GCRA). What is stored is not, so keys begin with rl-rate: in place of
// rate:, and quotas begin anew; one of more than 512 bytes is its beginning and a hash. Times are exact to the millisecond and rounded up, so that a caller that waits RetryAfter is
// let in. Remaining is true of a request that was denied, too, where redis_rate says 0.
package redisrate

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	redisrl "redis-rl.example/clients/go"
	"redis-rl.example/clients/go/internal/shorten"
)

func keyOf(key string) string { return "rl-rate:" + shorten.Identity(key) }

// A Limit is how many events may happen in a period, and how many of them at once. Rate and Burst are at least 1, and the
// period is whole milliseconds.
type Limit struct {
	Rate   int
	Burst  int
	Period time.Duration
}

// String describes the limit, such as "10 req/s (burst 10)".
func (l Limit) String() string {
	period := l.Period.String()
	switch l.Period {
	case time.Second:
		period = "s"
	case time.Minute:
		period = "m"
	case time.Hour:
		period = "h"
	}
	return fmt.Sprintf("%d req/%s (burst %d)", l.Rate, period, l.Burst)
}

// IsZero says whether nothing is set.
func (l Limit) IsZero() bool { return l == Limit{} }

// PerSecond is a limit whose burst is its rate.
func PerSecond(rate int) Limit { return Limit{Rate: rate, Burst: rate, Period: time.Second} }

// PerMinute is a limit whose burst is its rate.
func PerMinute(rate int) Limit { return Limit{Rate: rate, Burst: rate, Period: time.Minute} }

// PerHour is a limit whose burst is its rate.
func PerHour(rate int) Limit { return Limit{Rate: rate, Burst: rate, Period: time.Hour} }

// A Result is the answer to a call.
type Result struct {
	Limit     Limit
	Allowed   int // How many events may happen now.
	Remaining int // How many more could happen at once.
	// RetryAfter is the time until the call is allowed; -1 if it was. Of AllowAtMost it is the time until one event is.
	RetryAfter time.Duration
	// ResetAfter is the time until the whole burst may happen at once.
	ResetAfter time.Duration
}

// A Limiter controls how often events may happen.
type Limiter struct{ limiter *redisrl.Limiter }

// NewLimiter is a limiter on a client. It panics if the client is nil.
func NewLimiter(client redis.UniversalClient) *Limiter {
	limiter, err := redisrl.New(client, redisrl.Options{})
	if err != nil {
		panic(err)
	}
	return &Limiter{limiter}
}

// Of is a limiter with the options of another.
func Of(limiter *redisrl.Limiter) *Limiter { return &Limiter{limiter} }

// Allow is AllowN of one event.
func (l Limiter) Allow(ctx context.Context, key string, limit Limit) (*Result, error) {
	return l.AllowN(ctx, key, limit, 1)
}

// AllowN decides whether n events may happen now, all or none. With 0 it shows the state and changes nothing.
func (l Limiter) AllowN(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	rule, err := limit.rule()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return limit.result(l.limiter.Peek(ctx, keyOf(key), rule.Cost(0)))
	}
	found, err := l.limiter.Hit(ctx, keyOf(key), rule.Cost(int64(n)))
	result, err := limit.result(found, err)
	if err != nil {
		return nil, err
	}
	switch {
	case found.Allowed:
		result.Allowed = n
	case found.RetryAfter == redisrl.Never:
		// More than ever fits: the wait until it would, were the burst as large.
		result.RetryAfter = found.ResetAfter + time.Duration(n-limit.Burst)*limit.Period/time.Duration(limit.Rate)
	default:
		result.RetryAfter = found.RetryAfter
	}
	return result, nil
}

// AllowAtMost lets as many of n events happen as may happen now.
func (l Limiter) AllowAtMost(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	rule, err := limit.rule()
	if err != nil {
		return nil, err
	}
	for n > 0 {
		found, err := l.limiter.Hit(ctx, keyOf(key), rule.Cost(int64(n)))
		result, err := limit.result(found, err)
		if err != nil {
			return nil, err
		}
		switch {
		case found.Allowed:
			result.Allowed = n
			return result, nil
		case found.Remaining == 0:
			result.RetryAfter = found.NextAfter
			return result, nil
		}
		// What remains may be less by the time it is asked for, and is at least one less than before.
		n = min(int(found.Remaining), n-1)
	}
	return l.AllowN(ctx, key, limit, 0)
}

// Reset gives a key its whole burst back.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	_, err := l.limiter.Reset(ctx, keyOf(key))
	return err
}

func (l Limit) rule() (redisrl.ThrottleRule, error) {
	return redisrl.Throttle(redisrl.Per(int64(l.Rate), l.Period), redisrl.Burst(l.Burst-1))
}

func (l Limit) result(found *redisrl.Result, err error) (*Result, error) {
	if err != nil {
		return nil, err
	}
	return &Result{Limit: l, Remaining: int(found.Remaining), RetryAfter: -1, ResetAfter: found.ResetAfter}, nil
}
