package redisrl

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"redis-rl.example/clients/go/internal/testserver"
)

// used is what is in use at a key.
func used(t *testing.T, limiter *Limiter, key string, rule SlidingRule) int64 {
	t.Helper()
	return must(limiter.Peek(ctx, key, rule.Cost(0))).Used
}

func TestReserve(t *testing.T) {
	everywhere(t, func(t *testing.T, limiter *Limiter, client *redis.Client) {
		rule := Must(Sliding("100/hour"))
		reservation, err := limiter.Reserve(ctx, "k", rule, 80, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if !reservation.Result.Allowed || used(t, limiter, "k", rule) != 80 {
			t.Errorf("%+v", reservation.Result)
		}
		var denied *DeniedError
		if _, err := limiter.Reserve(ctx, "k", rule, 80, time.Minute); !errors.As(err, &denied) || denied.Result.Remaining != 20 {
			t.Fatal(err)
		}
		// Settled for less, again when the server does not remember it any more, and with another figure.
		for range 2 {
			if err := reservation.Settle(ctx, 30); err != nil {
				t.Fatal(err)
			}
			client.Del(ctx, "k:held")
		}
		var argument *ArgumentError
		if err := reservation.Settle(ctx, 31); !errors.As(err, &argument) {
			t.Error(err)
		}
		reservation.Close()
		if reservation.Lost() || reservation.Context().Err() == nil || used(t, limiter, "k", rule) != 30 {
			t.Errorf("%d in use", used(t, limiter, "k", rule))
		}
		// More than was reserved, over the limit.
		more := must(limiter.Reserve(ctx, "k", rule, 10, time.Minute))
		if err := more.Settle(ctx, 200); err != nil || used(t, limiter, "k", rule) != 230 {
			t.Errorf("%v, %d in use", err, used(t, limiter, "k", rule))
		}
		// Closed without a settlement, or with a settlement that the server refuses.
		must(limiter.Reserve(ctx, "c", rule, 10, time.Minute)).Close()
		refused := must(limiter.Reserve(ctx, "c", rule, 10, time.Minute))
		if err := refused.Settle(ctx, -1); !errors.As(err, &argument) {
			t.Error(err)
		}
		refused.Close()
		if units := used(t, limiter, "c", rule); units != 0 {
			t.Errorf("%d in use", units)
		}
		// Several keys: both or none, settled with a figure each.
		fixed := Must(Fixed("50/day"))
		both := must(limiter.ReserveAll(ctx, time.Minute, Reserved("{a}1", rule, 40), Reserved("{a}2", fixed, 40), On("{a}3", rule)))
		if _, err := limiter.ReserveAll(ctx, time.Minute, Reserved("{a}1", rule, 40), Reserved("{a}2", fixed, 40)); !errors.As(err, &denied) || denied.Result.Index != 1 {
			t.Fatal(err)
		}
		if err := both.Settle(ctx, 1, 2, 3); !errors.As(err, &argument) {
			t.Error(err)
		}
		if err := both.Settle(ctx, 10, 20); err != nil {
			t.Fatal(err)
		}
		// A reset gives back what is held as well, and not once more when that is settled.
		held := must(limiter.Reserve(ctx, "r", fixed, 40, time.Minute))
		must(limiter.Reset(ctx, "r", fixed))
		hit(t, limiter, "r", fixed.Cost(5))
		if err := held.Settle(ctx, 3); err != nil || must(limiter.Peek(ctx, "r", fixed.Cost(0))).Used != 8 {
			t.Errorf("%v, %d in use", err, must(limiter.Peek(ctx, "r", fixed.Cost(0))).Used)
		}
		if used(t, limiter, "{a}1", rule) != 10 || must(limiter.Peek(ctx, "{a}2", fixed.Cost(0))).Used != 20 || used(t, limiter, "{a}3", rule) != 1 {
			t.Error("not as they were settled")
		}
	})
}

func TestReservationsAreRenewedAndLapse(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	limiter := newLimiter(t, client, Options{})
	rule := Must(Sliding("100/hour"))
	renewed := must(limiter.Reserve(ctx, "renewed", rule, 100, 3*time.Second))
	leaving, leave := context.WithCancel(ctx)
	must(limiter.Reserve(leaving, "left", rule, 100, 3*time.Second))
	leave()
	time.Sleep(4 * time.Second)
	if renewed.Lost() {
		t.Error("it has lapsed")
	}
	var denied *DeniedError
	if _, err := limiter.Reserve(ctx, "renewed", rule, 1, time.Minute); !errors.As(err, &denied) {
		t.Error(err)
	}
	// Nobody renews what its caller has left.
	again := must(limiter.Reserve(ctx, "left", rule, 100, time.Minute))
	again.Close()
	// A settlement that was carried out elsewhere, as one whose reply was lost, ends renewing.
	before := must(limiter.settle(ctx, "renewed", renewed.parts[0].rule, 7))
	testserver.Until(t, "renewing has ended", func() bool {
		select {
		case <-renewed.keeper.stopped:
			return true
		default:
			return false
		}
	})
	if err := renewed.Settle(ctx, 7); err != nil || before != 1 || renewed.Lost() {
		t.Errorf("%v, %d", err, before)
	}
}

func TestOutcomeUnknown(t *testing.T) {
	limiter := newLimiter(t, newClient(t, testserver.Start(t, "module"), 3), Options{})
	reservation := must(limiter.Reserve(ctx, "k", Must(Sliding("100/hour")), 10, time.Minute))
	reservation.parts[0].unansweredSince = time.Now().Add(-time.Minute)
	if err := reservation.Settle(ctx, 5); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Error(err)
	}
	if units := used(t, limiter, "k", Must(Sliding("100/hour"))); units != 10 {
		t.Errorf("%d in use", units)
	}
}

// Of one key it is unknown, and of the other it is not.
func TestEachKeyIsSettledByItself(t *testing.T) {
	limiter, rule := newLimiter(t, newClient(t, testserver.Start(t, "module"), 3), Options{}), Must(Sliding("100/hour"))
	reservation := must(limiter.ReserveAll(ctx, time.Minute, Reserved("k1", rule, 10), Reserved("k2", rule, 10)))
	defer reservation.Close()
	reservation.parts[0].unansweredSince = time.Now().Add(-time.Minute)
	if err := reservation.Settle(ctx, 5); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Error(err)
	}
	for key, units := range map[string]int64{"k1": 10, "k2": 5} {
		if found := used(t, limiter, key, rule); found != units {
			t.Errorf("%s: %d in use", key, found)
		}
	}
}

func TestWhatWasNotSentIsKnown(t *testing.T) {
	limiter := newLimiter(t, newClient(t, testserver.Start(t, "module"), 3), Options{})
	reservation := must(limiter.Reserve(ctx, "k", Must(Sliding("100/hour")), 10, time.Minute))
	defer reservation.Close()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	closed := newClient(t, listener.Addr().String(), 3)
	go func() {
		for {
			accepted, err := listener.Accept()
			if err != nil {
				return
			}
			_ = accepted.Close()
		}
	}()
	reservation.limiter = newLimiter(t, closed, Options{})
	if err := reservation.Settle(ctx, 5); !errors.Is(err, ErrUnavailable) || reservation.parts[0].unansweredSince.IsZero() {
		t.Errorf("a connection that broke: %v", err)
	}
	reservation.parts[0].unansweredSince = time.Time{}
	_ = listener.Close()
	reservation.limiter = newLimiter(t, closed, Options{})
	// The second time no connection is tried.
	for range 2 {
		if err := reservation.Settle(ctx, 5); !errors.Is(err, ErrUnavailable) || !reservation.parts[0].unansweredSince.IsZero() {
			t.Errorf("a connection that was refused: %v", err)
		}
	}
	reservation.limiter = limiter
	gone, leave := context.WithCancel(ctx)
	leave()
	if err := reservation.Settle(gone, 5); !errors.Is(err, context.Canceled) || !reservation.parts[0].unansweredSince.IsZero() {
		t.Errorf("a caller that had left: %v", err)
	}
	// One that leaves while its call is under way cannot know.
	slowly := newClient(t, limiter.core.client.(*redis.Client).Options().Addr, 3)
	slowly.AddHook(slow(time.Minute))
	reservation.limiter = newLimiter(t, slowly, Options{Mode: Module})
	leaving, leave := context.WithTimeout(ctx, 50*time.Millisecond)
	defer leave()
	if err := reservation.Settle(leaving, 5); !errors.Is(err, context.DeadlineExceeded) || reservation.parts[0].unansweredSince.IsZero() {
		t.Errorf("a caller that leaves: %v", err)
	}
	reservation.limiter = limiter
	if err := reservation.Settle(ctx, 5); err != nil {
		t.Error(err)
	}
}

// after is a hook that is called after each command.
type after func(name string)

func (after) DialHook(next redis.DialHook) redis.DialHook { return next }
func (a after) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		a(cmd.Name())
		return err
	}
}
func (after) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestRenewedTooLate(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	limiter := newLimiter(t, client, Options{Mode: Module})
	rules := []KeyedRule{On("k", Must(Lease(1, time.Hour)).Holder("h"))}
	made, renewals := make(chan *keeper), 0
	client.AddHook(after(func(name string) {
		if name == "rl.acquire" {
			renewals++
			(<-made).ends.Store(0)
		}
	}))
	k := limiter.keep(ctx, "hit", rules, 30*time.Millisecond, time.Now().Add(time.Hour), func() { limiter.giveBack(rules, nil) })
	made <- k
	<-k.stopped
	if !k.lost() || renewals != 1 {
		t.Errorf("%d renewals", renewals)
	}
	if peeked := must(limiter.Peek(ctx, "k", Must(Lease(1, time.Hour)).Holder("next"))); !peeked.Allowed {
		t.Errorf("the place is not given back: %+v", peeked)
	}
}

// ahead is a hook that makes the server's clock look ahead of ours: the first window that is asked for has ended.
type ahead struct{ asked *[]string }

func (ahead) DialHook(next redis.DialHook) redis.DialHook { return next }
func (a ahead) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "rl.fixed" {
			return next(ctx, cmd)
		}
		*a.asked = append(*a.asked, cmd.Args()[2].(string))
		if len(*a.asked) == 1 {
			err := serverError("ERR the window has ended")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}
func (ahead) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestCalendarOnAServer(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	rule := Must(Calendar("3/month", nil, 1))
	limiter := newLimiter(t, client, Options{Mode: Module})
	for i := range 4 {
		result := hit(t, limiter, "k", rule)
		if result.Allowed != (i < 3) || result.ResetAfter > 31*24*time.Hour || result.Window != 0 || result.Headers()["RateLimit-Policy"] != `"month";q=3` {
			t.Errorf("%+v", result)
		}
	}
	if refund := must(limiter.Refund(ctx, "k", rule.Cost(2), time.Time{})); refund.Refunded != 2 {
		t.Errorf("%+v", refund)
	}
	if count := must(limiter.Reset(ctx, "k", rule)); count != 1 {
		t.Errorf("%d", count)
	}
	for _, call := range []func(*Limiter) error{
		func(l *Limiter) error { _, err := l.Hit(ctx, "a", rule); return err },
		func(l *Limiter) error { _, err := l.Reserve(ctx, "b", rule, 1, time.Minute); return err },
	} {
		var asked []string
		hooked := newClient(t, client.Options().Addr, 3)
		hooked.AddHook(ahead{&asked})
		if err := call(newLimiter(t, hooked, Options{Mode: Module})); err != nil || len(asked) != 2 || asked[0] >= asked[1] {
			t.Errorf("%v, %v", asked, err)
		}
	}
}
