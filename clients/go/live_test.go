package redisrl

// The package on live servers. What it does when something breaks is played by ../faults.

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
	"redis-rl.example/clients/go/internal/testserver"
)

var ctx = context.Background()

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// The deadline is the tests', which have to hold on a busy machine.
func newLimiter(t *testing.T, client redis.UniversalClient, options Options) *Limiter {
	t.Helper()
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	if options.Logger == nil {
		options.Logger = quiet()
	}
	limiter, err := New(client, options)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func newClient(t *testing.T, address string, protocol int) *redis.Client {
	t.Helper()
	// It is not closed: Close of go-redis 9.19 may wait for ever for a call under way, and the server is killed.
	return redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
}

// everywhere runs a test in each mode, by RESP2 and RESP3.
func everywhere(t *testing.T, test func(t *testing.T, limiter *Limiter, client *redis.Client)) {
	for _, mode := range testserver.Modes {
		address := testserver.Start(t, mode)
		for _, protocol := range []int{2, 3} {
			t.Run(fmt.Sprintf("%s, RESP%d", mode, protocol), func(t *testing.T) {
				client := newClient(t, address, protocol)
				client.FlushAll(ctx)
				limiter := newLimiter(t, client, Options{})
				test(t, limiter, client)
				if string(limiter.Mode()) != mode {
					t.Errorf("the mode is %q", limiter.Mode())
				}
			})
		}
	}
}

func hit(t *testing.T, limiter *Limiter, key string, rule Rule) *Result {
	t.Helper()
	result, err := limiter.Hit(ctx, key, rule)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// must is for what no test expects to fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestWordsAreAccepted(t *testing.T) {
	var cases wordsCases
	readCases(t, "words.json", &cases)
	everywhere(t, func(t *testing.T, limiter *Limiter, client *redis.Client) {
		for _, c := range cases.all() {
			client.FlushDB(ctx)
			command, err := c.command(t)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := limiter.core.ask(ctx, command, 10*time.Second, nil, nil); err != nil {
				t.Errorf("%q: %v", c.Words, err)
			}
		}
	})
}

func TestACertificateThatFails(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Listener.Addr().String(), TLSConfig: &tls.Config{}})
	_, err := newLimiter(t, client, Options{}).Hit(ctx, "k", Must(Sliding("5/hour")))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
}

// What the user's other code does with the pool says nothing of the server.
func TestAPoolThatOthersUseUp(t *testing.T) {
	address := testserver.Start(t, testserver.Modes[0])
	other := newClient(t, address, 3)
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: 2})
	limiter := newLimiter(t, client, Options{Timeout: time.Second})
	rule := Must(Sliding("5/hour"))
	hit(t, limiter, "k", rule)
	var workers sync.WaitGroup
	for range 2 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			client.BLPop(ctx, 0, "jobs")
		}()
	}
	for !strings.Contains(other.Info(ctx, "clients").Val(), "blocked_clients:2") {
		time.Sleep(time.Millisecond)
	}
	var callers sync.WaitGroup
	for range 5 {
		callers.Add(1)
		go func() {
			defer callers.Done()
			if _, err := limiter.Hit(ctx, "k", rule); !errors.Is(err, ErrUnavailable) {
				t.Errorf("without a connection: %v", err)
			}
		}()
	}
	callers.Wait()
	other.RPush(ctx, "jobs", "a", "b")
	workers.Wait()
	if result := hit(t, limiter, "k", rule); result.Used != 2 {
		t.Errorf("%d are used: calls that were given up are sent", result.Used)
	}
}

func TestCalls(t *testing.T) {
	everywhere(t, func(t *testing.T, limiter *Limiter, _ *redis.Client) {
		rule := Must(Sliding("5/hour, 100/day"))
		for i := range 5 {
			if result := hit(t, limiter, "k", rule); !result.Allowed || result.Remaining != int64(4-i) || len(result.Each) != 2 {
				t.Fatalf("hit %d: %+v", i, result)
			}
		}
		denied := hit(t, limiter, "k", rule)
		if denied.Allowed || denied.RetryAfter <= 59*time.Minute || denied.RetryAfter > time.Hour || denied.Used != 5 {
			t.Fatalf("%+v", denied)
		}
		if peeked := must(limiter.Peek(ctx, "k", rule.Cost(0))); peeked.Used != 5 || peeked.Allowed {
			t.Errorf("peek: %+v", peeked)
		}
		if result := hit(t, limiter, "k", rule.Cost(6)); result.RetryAfter != Never || result.Allowed {
			t.Errorf("a cost that never fits: %+v", result)
		}
		if refund := must(limiter.Refund(ctx, "k", rule.Cost(2), denied.At.Add(-time.Hour))); refund.Refunded != 0 {
			t.Errorf("of another time: %+v", refund)
		}
		if refund := must(limiter.Refund(ctx, "k", rule.Cost(2), time.Time{})); refund.Refunded != 2 || refund.Used != 3 {
			t.Errorf("%+v", refund)
		}
		if result := hit(t, limiter, "k", rule.Cost(9).Force()); result.Allowed || result.Used != 12 {
			t.Errorf("forced: %+v", result)
		}
		if count := must(limiter.Reset(ctx, "k", rule)); count != 1 {
			t.Errorf("reset: %d", count)
		}
		fixed := Must(Fixed("5/minute", Anchored))
		hit(t, limiter, "f", fixed)
		if count := must(limiter.Reset(ctx, "f", fixed)); count != 1 {
			t.Errorf("reset: %d", count)
		}
		lease := Must(Lease(1, time.Minute))
		both := must(limiter.All(ctx, KeyedRule{Key: "{a}1", Rule: rule.Cost(2)}, On("{a}2", lease.Holder("h"))))
		if !both.Allowed || len(both.Results) != 2 || both.Results[0].Used != 2 || both.Results[1].Holder != "h" {
			t.Errorf("all: %+v", both)
		}
		other := must(limiter.All(ctx, On("{a}1", rule), On("{a}2", lease.Holder("other"))))
		if other.Allowed || other.Index != 1 || hit(t, limiter, "{a}1", rule).Used != 3 {
			t.Errorf("all: %+v", other)
		}
		if count := must(limiter.Release(ctx, "{a}2", "h", "nobody")); count != 1 {
			t.Errorf("release: %d", count)
		}
		throttle := Must(Throttle("60/minute", Burst(1)))
		hit(t, limiter, "t", throttle)
		hit(t, limiter, "t", throttle)
		if result := hit(t, limiter, "t", throttle); result.Allowed || result.RetryAfter > time.Second || result.Limit != 2 {
			t.Errorf("throttle: %+v", result)
		}
	})
}

func TestExactInACrowd(t *testing.T) {
	everywhere(t, func(t *testing.T, limiter *Limiter, _ *redis.Client) {
		rule := Must(Sliding("100/hour"))
		var allowed atomic.Int64
		var all sync.WaitGroup
		for range 400 {
			all.Add(1)
			go func() {
				defer all.Done()
				if result, err := limiter.Hit(ctx, "k", rule); err != nil {
					t.Error(err)
				} else if result.Allowed {
					allowed.Add(1)
				}
			}()
		}
		all.Wait()
		if allowed.Load() != 100 {
			t.Errorf("%d of 400 were allowed", allowed.Load())
		}
	})
}

func TestWait(t *testing.T) {
	limiter := newLimiter(t, newClient(t, testserver.Start(t, "module"), 3), Options{})
	for name, rule := range map[string]Rule{
		"sliding": Must(Sliding("1/300ms")), "throttle": Must(Throttle("1/300ms", Burst(0))), "fixed": Must(Fixed("1/300ms", Anchored)),
	} {
		began := time.Now()
		for range 3 {
			if result := must(limiter.Wait(ctx, name, rule)); !result.Allowed {
				t.Fatalf("%s: %+v", name, result)
			}
		}
		if took := time.Since(began); took < 600*time.Millisecond {
			t.Errorf("%s: three in %v", name, took)
		}
	}
	var denied *DeniedError
	hit(t, limiter, "long", Must(Sliding("1/hour")))
	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, call := range []func() (*Result, error){
		func() (*Result, error) { return limiter.Wait(short, "long", Must(Sliding("1/hour"))) },
		func() (*Result, error) { return limiter.Wait(ctx, "never", Must(Sliding("1/hour")).Cost(2)) },
	} {
		if result, err := call(); result != nil || !errors.As(err, &denied) || denied.Result.Allowed || denied.Result.RetryAfter == 0 {
			t.Errorf("%+v, %v", result, err)
		}
	}
	gone, leave := context.WithCancel(ctx)
	leave()
	if _, err := limiter.Hit(gone, "k", Must(Sliding("1/hour"))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := limiter.Wait(gone, "k", Must(Sliding("1/hour"))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// It would be counted each time that it is asked for.
	var argument *ArgumentError
	for name, rule := range map[string]Rule{"sliding": Must(Sliding("1/s")).Force(), "fixed": Must(Fixed("1/s")).Force()} {
		for range 2 {
			if _, err := limiter.Wait(ctx, "forced "+name, rule); !errors.As(err, &argument) {
				t.Errorf("a forced wait, %s: %v", name, err)
			}
		}
	}
}

// A wait for a place asks as hold does, and is let in when it is given back.
func TestWaitForAPlace(t *testing.T) {
	limiter := newLimiter(t, newClient(t, testserver.Start(t, "module"), 3), Options{})
	other := newLimiter(t, limiter.core.client, Options{})
	lease := Must(Lease(1, time.Hour))
	must(limiter.Acquire(ctx, "k", lease.Holder("a")))
	time.AfterFunc(300*time.Millisecond, func() { must(other.Release(ctx, "k", "a")) })
	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if result, err := limiter.Wait(short, "k", lease.Holder("b")); err != nil || result.Holder != "b" {
		t.Errorf("%+v, %v", result, err)
	}
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	var denied *DeniedError
	if _, err := limiter.Wait(soon, "k", lease.Holder("c")); !errors.As(err, &denied) {
		t.Error(err)
	}
}

// slow is a hook before which a server is as far away.
type slow time.Duration

func (slow) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		select {
		case <-time.After(time.Duration(s)):
		case <-ctx.Done():
			return ctx.Err()
		}
		return next(ctx, cmd)
	}
}
func (slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// far is the address at which a server is as far away.
func far(t *testing.T, address string, way time.Duration) string {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = listener.Close() })
	carry := func(from, to net.Conn) {
		type chunk struct {
			arrives time.Time
			bytes   []byte
		}
		underWay := make(chan chunk, 1000)
		go func() {
			for each := range underWay {
				time.Sleep(time.Until(each.arrives))
				_, _ = to.Write(each.bytes)
			}
			_ = to.Close()
		}()
		for {
			bytes := make([]byte, 65536)
			n, err := from.Read(bytes)
			if err != nil {
				close(underWay)
				return
			}
			underWay <- chunk{time.Now().Add(way), bytes[:n]}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server := must(net.Dial("tcp", address))
			go carry(client, server)
			go carry(server, client)
		}
	}()
	return listener.Addr().String()
}

// On a server that is far away the search for the mode takes longer than a guard's deadline: each call goes on where the one
// before has ended.
func TestModeOfAServerFarAway(t *testing.T) {
	for _, mode := range testserver.Modes {
		client := newClient(t, far(t, testserver.Start(t, mode), 50*time.Millisecond), 3)
		guard := must(NewGuard(newLimiter(t, client, Options{}), GuardOptions{WhenUnavailable: Closed}))
		testserver.Until(t, mode, func() bool {
			decision, err := guard.Decide(ctx, Limit{Identity: "a", Rule: Must(Sliding("1000/hour"))})
			return err == nil && decision.Source == FromServer
		})
	}
}

// What is known before the last call of a wait is its answer, and that call has time enough for one.
func TestLastCallOfAWait(t *testing.T) {
	address := testserver.Start(t, "module")
	client := newClient(t, address, 3)
	client.AddHook(slow(40 * time.Millisecond))
	limiter := newLimiter(t, client, Options{Mode: Module})
	direct := newLimiter(t, newClient(t, address, 3), Options{Mode: Module})
	places, fixed := Must(Lease(1, time.Hour)), Must(Fixed("1/500ms", Anchored))
	must(direct.Acquire(ctx, "places", places.Holder("a")))
	for i := range 4 {
		var denied *DeniedError
		soon, cancel := context.WithTimeout(ctx, time.Duration(100+10*i)*time.Millisecond)
		defer cancel()
		if _, err := limiter.Wait(soon, "places", places.Holder("b")); !errors.As(err, &denied) {
			t.Errorf("a place: %v", err)
		}
		// It ends a moment after the wait does.
		key := fmt.Sprint("fixed", i)
		ends := time.Now().Add(hit(t, direct, key, fixed).ResetAfter + 20*time.Millisecond)
		soon, cancel = context.WithDeadline(ctx, ends)
		defer cancel()
		if result, err := limiter.Wait(soon, key, fixed); err != nil || !result.Allowed {
			t.Errorf("a window: %v, %v", result, err)
		}
	}
}

// An outage does not end a wait.
func TestWaitInAnOutage(t *testing.T) {
	for name, rule := range map[string]Rule{
		"sliding": Must(Sliding("9/hour")), "fixed": Must(Fixed("9/hour")), "lease": Must(Lease(9, time.Hour)).Holder("a"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener := must(net.Listen("tcp", "127.0.0.1:0"))
			address := listener.Addr().String()
			_ = listener.Close()
			limiter := newLimiter(t, newClient(t, address, 3), Options{Timeout: time.Second})
			soon, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer cancel()
			began := time.Now()
			if _, err := limiter.Wait(soon, "k", rule); !errors.Is(err, ErrUnavailable) || time.Since(began) < 1400*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		})
	}
}

// breaks is a hook by which the connections break from some time on.
type breaks struct{ now *atomic.Bool }

func (breaks) DialHook(next redis.DialHook) redis.DialHook { return next }
func (b breaks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if b.now.Load() {
			return io.EOF
		}
		return next(ctx, cmd)
	}
}
func (breaks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// What was known before an outage is no answer at its end: neither to the one that asks nor to those behind it.
func TestDenialBeforeAnOutage(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	broken := &atomic.Bool{}
	client.AddHook(breaks{broken})
	limiter := newLimiter(t, client, Options{Hook: func(event Event) {
		if event.Result != nil && !event.Result.Allowed {
			broken.Store(true)
		}
	}})
	lease := Must(Lease(1, time.Hour))
	must(limiter.Acquire(ctx, "k", lease.Holder("a")))
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			soon, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer cancel()
			if _, err := limiter.Wait(soon, "k", lease); !errors.Is(err, ErrUnavailable) {
				t.Error(err)
			}
		}()
	}
	waiting.Wait()
}

func TestTurns(t *testing.T) {
	everywhere(t, func(t *testing.T, limiter *Limiter, client *redis.Client) {
		for name, rule := range map[string]TurnRule{
			"sliding": Must(Sliding("1/hour")), "several": Must(Sliding("1/hour, 9/day")), "throttle": Must(Throttle("1/hour", Burst(0))),
		} {
			if first := must(limiter.Turn(ctx, name, rule, time.Hour)); !first.Allowed || first.Wait != 0 {
				t.Fatalf("%s: %+v", name, first)
			}
			if denied := must(limiter.Turn(ctx, name, rule, 0)); denied.Allowed || denied.Wait != 0 || denied.RetryAfter == 0 {
				t.Errorf("%s: %+v", name, denied)
			}
			second := must(limiter.Turn(ctx, name, rule, time.Hour))
			if !second.Allowed || second.Wait < 59*time.Minute || second.Wait > time.Hour {
				t.Fatalf("%s: %+v", name, second)
			}
			if refund := must(limiter.Refund(ctx, name, rule, second.At)); refund.Refunded != 1 {
				t.Errorf("%s: %+v", name, refund)
			}
			// One that leaves while it sleeps gives its turn back.
			leaving, leave := context.WithCancel(ctx)
			time.AfterFunc(100*time.Millisecond, leave)
			if _, err := limiter.Wait(leaving, name, rule); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
			// Before Wait has returned: the program may end.
			if freed := must(limiter.Turn(ctx, name, rule, time.Hour)); !freed.Allowed {
				t.Errorf("%s: %+v", name, freed)
			}
			if stats := limiter.Stats(); stats.Allowed == 0 {
				t.Errorf("%+v", stats)
			}
		}
		var argument *ArgumentError
		if _, err := limiter.Turn(ctx, "k", nil, time.Second); !errors.As(err, &argument) {
			t.Error(err)
		}
	})
}

// One that leaves while its call is under way gives its turn back when the reply comes; a hit stays charged.
func TestLeavingACallUnderWay(t *testing.T) {
	address := testserver.Start(t, "module")
	rule := Must(Sliding("9/hour"))
	direct := newLimiter(t, newClient(t, address, 3), Options{Mode: Module})
	for name, call := range map[string]func(context.Context, *Limiter) error{
		"wait": func(ctx context.Context, l *Limiter) error { _, err := l.Wait(ctx, "wait", rule); return err },
		"turn": func(ctx context.Context, l *Limiter) error {
			_, err := l.Turn(ctx, "turn", rule, time.Hour)
			return err
		},
		"hit": func(ctx context.Context, l *Limiter) error { _, err := l.Hit(ctx, "hit", rule); return err },
	} {
		leaving, leave := context.WithCancel(ctx)
		client := newClient(t, address, 3)
		answered := make(chan struct{}, 9)
		client.AddHook(after(func(name string) {
			if name == "rl.sliding" {
				leave()
				time.Sleep(100 * time.Millisecond)
			}
			if strings.HasPrefix(name, "rl.") {
				answered <- struct{}{}
			}
		}))
		if err := call(leaving, newLimiter(t, client, Options{Mode: Module})); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		<-answered
		if name != "hit" {
			<-answered // The refund.
		}
		if charged := must(direct.Peek(ctx, name, rule.Cost(0))).Used; (charged == 1) != (name == "hit") {
			t.Errorf("%s: %d are charged", name, charged)
		}
	}
}

func TestHold(t *testing.T) {
	limiter := newLimiter(t, newClient(t, testserver.Start(t, "module"), 3), Options{})
	lease := Must(Lease(1, 3*time.Second))
	held := must(limiter.Hold(ctx, "k", lease, 0))
	var denied *DeniedError
	if _, err := limiter.Hold(ctx, "k", lease, 0); !errors.As(err, &denied) || denied.Result.RetryAfter <= 0 {
		t.Fatal(err)
	}
	// The caller's time is over, and the server has answered each time: it is a denial, and no outage.
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := limiter.Hold(soon, "k", lease, time.Minute); !errors.As(err, &denied) {
		t.Error(err)
	}
	// Longer than it lasts: it is renewed.
	time.Sleep(4 * time.Second)
	if held.Lost() || held.Context().Err() != nil {
		t.Error("it is lost")
	}
	time.AfterFunc(100*time.Millisecond, held.Release)
	other, err := limiter.Hold(ctx, "k", lease, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if held.Context().Err() == nil || held.Lost() {
		t.Error("a lease that was released is over, and not lost")
	}
	// Taken away: noticed when it is renewed.
	must(limiter.Reset(ctx, "k"))
	must(limiter.Acquire(ctx, "k", lease.Holder("thief")))
	<-other.Context().Done()
	if !other.Lost() || !errors.Is(context.Cause(other.Context()), ErrLost) {
		t.Error("the loss is not told")
	}
	other.Release()
	if result := hit(t, limiter, "k", lease.Holder("thief")); !result.Allowed {
		t.Error("another's lease was released")
	}
}

// late is a hook by which the first reply to RL.ACQUIRE comes late.
type late struct {
	first *atomic.Bool
	reply chan struct{}
	done  chan struct{}
}

func (late) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "rl.acquire" && l.first.CompareAndSwap(false, true) {
			defer close(l.done)
			<-l.reply
		}
		return err
	}
}
func (late) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The reply to an earlier call by the same holder, which comes when the lease is held, does not give it back.
func TestLateReplyGivesNothingBackThatIsHeld(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	replies := late{&atomic.Bool{}, make(chan struct{}), make(chan struct{})}
	client.AddHook(replies)
	limiter := newLimiter(t, client, Options{Mode: Module, Timeout: time.Second})
	held := must(limiter.Hold(ctx, "k", Must(Lease(1, time.Hour)), time.Minute))
	close(replies.reply)
	<-replies.done
	for range 50 {
		if places := client.ZCard(ctx, "k").Val(); places != 1 {
			t.Fatalf("%d places are held", places)
		}
	}
	held.Release()
	if places := client.ZCard(ctx, "k").Val(); places != 0 {
		t.Errorf("%d places are held", places)
	}
}

// A caller that names the holder can give the lease back itself, and may have renewed what it holds. A name that was made for the
// call is known to nobody else.
func TestLeavingARenewal(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	lease := Must(Lease(1, time.Hour))
	mine := lease.Holder("me")
	for name, call := range map[string]func(context.Context, *Limiter) error{
		"acquire": func(ctx context.Context, l *Limiter) error { _, err := l.Acquire(ctx, "acquire", mine); return err },
		"hit":     func(ctx context.Context, l *Limiter) error { _, err := l.Hit(ctx, "hit", mine); return err },
		"all":     func(ctx context.Context, l *Limiter) error { _, err := l.All(ctx, On("all", mine)); return err },
		"made":    func(ctx context.Context, l *Limiter) error { _, err := l.Acquire(ctx, "made", lease); return err },
	} {
		leaving, leave := context.WithCancel(ctx)
		renewing := newClient(t, client.Options().Addr, 3)
		asked := make(chan string, 9)
		renewing.AddHook(after(func(command string) {
			if command == "rl.acquire" || command == "rl.all" {
				leave()
				time.Sleep(100 * time.Millisecond)
			}
			asked <- command
		}))
		limiter := newLimiter(t, renewing, Options{Mode: Module})
		if name != "made" {
			must(newLimiter(t, client, Options{Mode: Module}).Acquire(ctx, name, mine))
		}
		if err := call(leaving, limiter); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		var released bool
		for timeout := time.After(300 * time.Millisecond); ; {
			select {
			case command := <-asked:
				released = released || command == "rl.release"
				continue
			case <-timeout:
			}
			break
		}
		if released != (name == "made") {
			t.Errorf("%s: released is %v", name, released)
		}
	}
}

func TestDenyCache(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	var events atomic.Int64
	limiter := newLimiter(t, client, Options{Prefix: "p:", Hook: func(event Event) {
		if event.Result != nil && event.Result.Source == FromMemory {
			events.Add(1)
		}
	}})
	guard := must(NewGuard(limiter, GuardOptions{Timeout: 10 * time.Second}))
	decide := func(identity string, rule Rule) *Result {
		return must(guard.Decide(ctx, Limit{Identity: identity, Rule: rule})).Result
	}
	rule := Must(Sliding("1/hour"))
	decide("k", rule)
	decide("k", rule)
	if result := decide("k", rule); result.Source != FromMemory || result.Allowed || result.RetryAfter == 0 {
		t.Fatalf("%+v", result)
	}
	if stats := limiter.Stats(); stats != (Stats{1, 2, 1, 0}) || events.Load() != 1 {
		t.Errorf("%+v, %d", stats, events.Load())
	}
	// The limiter itself always asks.
	if result := hit(t, limiter, KeyFor("rl:", rule, "k"), rule); result.Source != FromServer || result.Allowed {
		t.Errorf("%+v", result)
	}
	if result := decide("k", rule.Force()); result.Source != FromServer {
		t.Errorf("%+v", result)
	}
	must(limiter.Reset(ctx, KeyFor("rl:", rule, "k"), rule))
	if result := decide("k", rule); !result.Allowed {
		t.Errorf("%+v", result)
	}
	// A lighter request than the one that was denied is asked, and so is one that never fits.
	ten := Must(Sliding("10/hour"))
	decide("ten", ten.Cost(5))
	decide("ten", ten.Cost(7))
	if result := decide("ten", ten.Cost(11)); result.RetryAfter != Never {
		t.Errorf("%+v", result)
	}
	if result := decide("ten", ten.Cost(5)); !result.Allowed {
		t.Errorf("%+v", result)
	}
	without := must(NewGuard(limiter, GuardOptions{Timeout: 10 * time.Second, NoDenyCache: true, NoPrefix: true}))
	for range 3 {
		limit := Limit{Identity: "k", Rule: rule}
		if result := must(without.Decide(ctx, limit)); result.Source != FromServer || without.Key(limit) != KeyFor("", rule, "k") {
			t.Errorf("%+v", result)
		}
	}
}

func TestDenialsAreBounded(t *testing.T) {
	for identities, rules := range map[string][]Rule{
		"short": {Must(Sliding("0/hour"))},
		"long":  {Must(Sliding("0/hour, 0/day, 0/week")), Must(Sliding("9/minute")), Must(Sliding("8/minute"))},
	} {
		denials := newDenials()
		for i := range 2 * mostDenials {
			var keyed []KeyedRule
			var results []Result
			for j, rule := range rules {
				keyed = append(keyed, On(fmt.Sprint(i, "-", j, strings.Repeat("x", len(identities)*8)), rule))
				results = append(results, *resultOf(rule, []State{{}}))
			}
			denials.remember(keyed, allOf(results, 0, false, 0, Never), time.Now())
		}
		if n, b := denials.order.Len(), denials.bytes; n != len(denials.known) || n > mostDenials || b > mostBytes || b < mostBytes/2 {
			t.Errorf("%s: %d denials are remembered, %d bytes", identities, n, b)
		}
		for key := range denials.known {
			denials.remove(key)
		}
		if denials.bytes != 0 {
			t.Errorf("%d bytes are left", denials.bytes)
		}
	}
}

func TestArguments(t *testing.T) {
	client := newClient(t, "127.0.0.1:1", 3)
	for _, options := range []Options{{Mode: "magic"}, {Timeout: -1}} {
		if _, err := New(client, options); err == nil {
			t.Errorf("%+v is accepted", options)
		}
	}
	if _, err := New(nil, Options{}); err == nil {
		t.Error("no client is accepted")
	}
	if _, err := New((*redis.Client)(nil), Options{}); err == nil {
		t.Error("a nil client is accepted")
	}
	limiter := newLimiter(t, client, Options{})
	var argument *ArgumentError
	for name, call := range map[string]func() (*Result, error){
		"no rule":     func() (*Result, error) { return limiter.Hit(ctx, "k", nil) },
		"an empty":    func() (*Result, error) { return limiter.Hit(ctx, "k", SlidingRule{}) },
		"no lease":    func() (*Result, error) { return limiter.Hit(ctx, "k", LeaseRule{}) },
		"a throttle":  func() (*Result, error) { return limiter.Hit(ctx, "k", ThrottleRule{}) },
		"cost 0":      func() (*Result, error) { return limiter.Hit(ctx, "k", Must(Sliding("1/s")).Cost(0)) },
		"cost -1":     func() (*Result, error) { return limiter.Peek(ctx, "k", Must(Sliding("1/s")).Cost(-1)) },
		"no keys":     func() (*Result, error) { return limiter.All(ctx) },
		"a nil of on": func() (*Result, error) { return limiter.All(ctx, On("k", nil)) },
	} {
		if _, err := call(); !errors.As(err, &argument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := limiter.Reserve(ctx, "k", Must(Sliding("1/s")).Force(), 1, 0); !errors.As(err, &argument) {
		t.Error(err)
	}
	if _, err := limiter.Refund(ctx, "k", nil, time.Time{}); !errors.As(err, &argument) {
		t.Error(err)
	}
	if _, err := limiter.Hold(ctx, "k", Must(Lease(1, time.Second)), -1); !errors.As(err, &argument) {
		t.Error(err)
	}
}

// seen is a hook of the user's.
type seen struct{ commands *sync.Map }

func (s seen) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s seen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.commands.Store(cmd.Name(), ctx.Value(contextKey{}))
		return next(ctx, cmd)
	}
}
func (s seen) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type contextKey struct{}

func TestHooksOfTheClient(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	commands := &sync.Map{}
	client.AddHook(seen{commands})
	limiter := newLimiter(t, client, Options{})
	must(limiter.Hit(context.WithValue(ctx, contextKey{}, "span"), "k", Must(Sliding("1/s"))))
	if value, ok := commands.Load("rl.sliding"); !ok || value != "span" {
		t.Errorf("the hook saw %v", value)
	}
}

// A request does not fail for its metrics, and the process does not end for those of a renewal.
func TestHookOfTheLimiterThatPanics(t *testing.T) {
	calls := make(chan string, 99)
	limiter := newLimiter(t, newClient(t, testserver.Start(t, "module"), 3), Options{Hook: func(event Event) {
		calls <- event.Call
		panic("metrics")
	}})
	hit(t, limiter, "k", Must(Sliding("9/hour")))
	held := must(limiter.Hold(ctx, "lease", Must(Lease(1, time.Second)), 0))
	for renewals := 0; renewals < 2; {
		if <-calls == "renew" {
			renewals++
		}
	}
	held.Release()
}

// What stands in for a server, such as redismock, writes the answer into the command.
func TestCommandOfAMock(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	client.AddHook(mocked{})
	limiter := newLimiter(t, client, Options{Mode: Script})
	if given, err := limiter.Reset(ctx, "k"); err != nil || given != 7 {
		t.Error(given, err)
	}
}

type mocked struct{ seen }

func (mocked) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		value := reflect.ValueOf(cmd).Elem().FieldByName("val")
		reflect.NewAt(value.Type(), unsafe.Pointer(value.UnsafeAddr())).Elem().Set(reflect.ValueOf(int64(7)))
		return nil
	}
}

// A hook of the client that panics fails the call, as it would in the caller's goroutine, where a server of HTTP recovers.
func TestHookThatPanics(t *testing.T) {
	for _, mode := range testserver.Modes {
		client := newClient(t, testserver.Start(t, mode), 3)
		var panics atomic.Bool
		client.AddHook(after(func(name string) {
			if panics.Load() && strings.Contains("rl.sliding fcall evalsha", name) {
				panic("a hook")
			}
		}))
		limiter := newLimiter(t, client, Options{})
		rule := Must(Sliding("9/hour"))
		hit(t, limiter, "k", rule)
		panics.Store(true)
		gone := newLimiter(t, client, Options{})
		if _, err := gone.Hit(ctx, "gone", rule); err == nil || gone.Mode() != Auto {
			t.Errorf("%s: %v, by %q", mode, err, gone.Mode())
		}
		if _, err := limiter.Hit(ctx, "k", rule); err == nil || errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "a hook") {
			t.Errorf("%s: %v", mode, err)
		}
		panics.Store(false)
		if result := hit(t, limiter, "k", rule); result.Used != 3 {
			t.Errorf("%s: %+v", mode, result)
		}
	}
}

func TestOtherKindsOfClient(t *testing.T) {
	address := testserver.Start(t, "module")
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": address, "b": testserver.Start(t, "module")}})
	defer ring.Close()
	limiter := newLimiter(t, ring, Options{})
	rule := Must(Sliding("5/hour"))
	for i := range 20 {
		for j := range 6 {
			if result := hit(t, limiter, fmt.Sprint("k", i), rule); result.Allowed != (j < 5) {
				t.Fatalf("hit %d: %+v", j, result)
			}
		}
	}
	// A wrapper, as a mock may be.
	wrapped := newLimiter(t, struct{ redis.UniversalClient }{newClient(t, address, 2)}, Options{})
	hit(t, wrapped, "w", rule)
	if result := hit(t, wrapped, "w", rule); result.Used != 2 {
		t.Errorf("%+v", result)
	}
}

func TestCluster(t *testing.T) {
	for _, mode := range testserver.Modes {
		t.Run(mode, func(t *testing.T) {
			addresses := testserver.Cluster(t, mode)
			cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
			defer cluster.Close()
			limiter := newLimiter(t, cluster, Options{})
			rule := Must(Sliding("5/hour"))
			for i := range 30 {
				key := fmt.Sprint("k", i)
				for j := range 6 {
					if result := hit(t, limiter, key, rule); result.Allowed != (j < 5) {
						t.Fatalf("hit %d: %+v", j, result)
					}
				}
				all := must(limiter.All(ctx, On("{"+key+"}1", rule), On("{"+key+"}2", Must(Fixed("7/hour")))))
				if !all.Allowed || must(limiter.Peek(ctx, "{"+key+"}1", rule.Cost(0))).Used != 1 {
					t.Fatalf("all: %+v", all)
				}
				if must(limiter.Reset(ctx, key, rule)) != 1 {
					t.Fatal("it was not reset")
				}
			}
			if string(limiter.Mode()) != mode {
				t.Errorf("the mode is %q", limiter.Mode())
			}
			for _, address := range addresses {
				// Each call went to the right node, also by commands that go-redis does not know.
				if errors := newClient(t, address, 3).Info(ctx, "errorstats").Val(); strings.Contains(errors, "MOVED") {
					t.Error(errors)
				}
			}
			if _, err := limiter.All(ctx, On("a", rule), On("b", rule)); err == nil || errors.Is(err, ErrUnavailable) {
				t.Errorf("two slots: %v", err)
			}
		})
	}
}

// A node whose slots another one has by now is no reason to call the cluster unavailable.
func TestNodeThatHasLeft(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testserver.Cluster(t, "module")})
	defer cluster.Close()
	var lines bytes.Buffer
	limiter := newLimiter(t, cluster, Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	guard := must(NewGuard(limiter, GuardOptions{Timeout: 10 * time.Second}))
	core, key := guard.limiter.core, func(limit Limit) string { return guard.Key(limit) }
	stays, leaves := Limit{Identity: "a", Rule: Must(Sliding("9/hour"))}, Limit{Identity: "b", Rule: Must(Sliding("9/hour"))}
	must(guard.Decide(ctx, stays))
	at := func(limit Limit) *call { return &call{command: command{keys: []string{key(limit)}}} }
	n, _, err := core.locate(ctx, at(leaves))
	if other, _, _ := core.locate(ctx, at(stays)); err != nil || other == n {
		t.Fatalf("%v, %v", n, err)
	}
	for range 2 {
		n = core.node(n.name)
		core.failed(n, nil, key(leaves), errors.New("gone"))
		guard.fallback.failed(guard.limiter, errors.New("gone"))
		must(guard.Decide(ctx, stays))
		if told := strings.Count(lines.String(), "available again"); told > strings.Count(lines.String(), "are let through")-1 {
			t.Error("the node is forgotten while it has its slots")
		}
		// Its slots are another's.
		n.mu.Lock()
		n.key = key(stays)
		n.mu.Unlock()
		must(guard.Decide(ctx, stays))
	}
	for _, line := range []string{"the server is unavailable, requests are let through", "the server is available again"} {
		if told := strings.Count(lines.String(), line); told != 2 {
			t.Errorf("%q was told %d times: %s", line, told, lines.String())
		}
	}
}

// A cluster of which no node has said yet who has which slots, and that hangs, is asked by one call a second as any server.
func TestClusterThatHangsFromTheBeginning(t *testing.T) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{listener.Addr().String()}})
	limiter := newLimiter(t, cluster, Options{Timeout: 100 * time.Millisecond})
	_, first := limiter.Hit(ctx, "k", Must(Sliding("9/hour")))
	if !errors.Is(first, ErrUnavailable) || errors.As(first, &unanswered{}) {
		t.Error(first)
	}
	if _, next := limiter.Hit(ctx, "k", Must(Sliding("9/hour"))); !errors.Is(next, ErrUnavailable) || !strings.Contains(next.Error(), "less than a second ago") {
		t.Error(next)
	}
	if limiter.core.isAvailable() {
		t.Error("it is called available")
	}
}

// Idle connections are looked at once, however many calls have failed.
func TestIdleConnectionsAreLookedAtOnce(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	limiter := newLimiter(t, client, Options{Mode: Module})
	var crowd sync.WaitGroup
	for range 8 {
		crowd.Add(1)
		go func() {
			defer crowd.Done()
			hit(t, limiter, "k", Must(Sliding("9/hour")))
		}()
	}
	crowd.Wait()
	idle := int(client.PoolStats().IdleConns)
	for range 5 {
		limiter.core.failed(limiter.core.node(""), client, "k", io.EOF)
	}
	pings := func() (calls int) {
		for _, line := range strings.Split(client.Info(ctx, "commandstats").Val(), "\n") {
			_, _ = fmt.Sscanf(line, "cmdstat_ping:calls=%d,", &calls)
		}
		return calls
	}
	before := pings()
	testserver.Until(t, "each is looked at", func() bool { return pings() >= idle })
	for range 20 {
		pings()
	}
	if told := pings(); told > idle+1 {
		t.Errorf("%d pings at %d connections, %d before", told, idle, before)
	}
}

func TestPasswordsAreNotTold(t *testing.T) {
	const secret = "hush-4711"
	var told bytes.Buffer
	address := testserver.Start(t, "module")
	must(newClient(t, address, 3).ConfigSet(ctx, "requirepass", "other").Result())
	for _, client := range []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: address, Username: "default", Password: secret}),
		redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Password: secret}),
		redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, Password: secret}),
		redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, Password: secret, SentinelPassword: secret,
		}),
	} {
		log := slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelDebug}))
		limiter := newLimiter(t, client, Options{Timeout: 2 * time.Second, Logger: log})
		guard := must(NewGuard(limiter, GuardOptions{WhenUnavailable: Closed}))
		_, err := limiter.Hit(ctx, "k", Must(Sliding("9/hour")))
		_, guarded := guard.Decide(ctx, Limit{Identity: "k", Rule: Must(Sliding("9/hour"))})
		if err == nil || guarded == nil {
			t.Fatal("it has worked")
		}
		fmt.Fprintf(&told, "%v %+v %v %+v %+v %#v %+v", err, err, guarded, limiter, *limiter, limiter, guard)
	}
	if strings.Contains(told.String(), secret) {
		t.Error(told.String())
	}
}

// losing is a proxy before a server that passes our commands on, and breaks the connection in place of the reply.
func losing(t *testing.T, behind string) string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = listener.Close() })
	pass := func(from, to net.Conn, last *atomic.Bool, isLast func([]byte) bool) {
		defer from.Close()
		defer to.Close()
		chunk := make([]byte, 1<<16)
		for {
			n, err := from.Read(chunk)
			if err != nil || last.Load() {
				return
			}
			last.Store(isLast(chunk[:n]))
			if _, err := to.Write(chunk[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server := must(net.Dial("tcp", behind))
			last := &atomic.Bool{}
			go pass(client, server, last, func(sent []byte) bool { return bytes.Contains(bytes.ToLower(sent), []byte("rl.sliding")) })
			go pass(server, client, last, func([]byte) bool { return false })
		}
	}()
	return listener.Addr().String()
}

func TestAtMostOnce(t *testing.T) {
	server := testserver.Start(t, "module")
	rule := Must(Sliding("9/hour"))
	for _, retries := range []int{-1, 0, 5} {
		client := redis.NewClient(&redis.Options{Addr: losing(t, server), MaxRetries: retries})
		defer client.Close()
		limiter, direct := newLimiter(t, client, Options{Mode: Module}), newLimiter(t, newClient(t, server, 3), Options{})
		if result, err := limiter.Hit(ctx, "lost", rule); !errors.Is(err, ErrUnavailable) {
			t.Errorf("MaxRetries %d: %v, %v", retries, result, err)
		}
		testserver.Until(t, "it is counted", func() bool { return must(direct.Peek(ctx, "lost", rule.Cost(0))).Used > 0 })
		time.Sleep(100 * time.Millisecond)
		if used := must(direct.Peek(ctx, "lost", rule.Cost(0))).Used; used != 1 {
			t.Errorf("MaxRetries %d: counted %d times", retries, used)
		}
		must(direct.Reset(ctx, "lost"))
	}
}

func TestOlderLibraryIsReplaced(t *testing.T) {
	client := newClient(t, testserver.Start(t, "functions"), 3)
	older := strings.Replace(library, "-- Version ", "-- Version 0", 1)
	newer := strings.Replace(library, "-- Version ", "-- Version 99", 1)
	if libraryVersion(newer) <= libraryVersion(library) {
		t.Fatal("the library has no version")
	}
	version := func() int {
		return libraryVersion(fmt.Sprint(must(client.Do(ctx, "FUNCTION", "LIST", "WITHCODE").Result())))
	}
	must(client.FunctionLoadReplace(ctx, strings.Replace(older, fmt.Sprint("0", libraryVersion(library)), "0", 1)).Result())
	hit(t, newLimiter(t, client, Options{}), "k", Must(Sliding("9/hour")))
	testserver.Until(t, "the library is replaced", func() bool { return version() == libraryVersion(library) })
	must(client.FunctionLoadReplace(ctx, newer).Result())
	hit(t, newLimiter(t, client, Options{}), "k", Must(Sliding("9/hour")))
	time.Sleep(200 * time.Millisecond)
	if version() != libraryVersion(newer) {
		t.Error("a newer library was replaced")
	}
}

func FuzzRate(f *testing.F) {
	for _, seed := range []string{"100/minute", "5 per 2 seconds", "1_0/1.5 min, 3/s", "9007199254740991/2147483647s", "1/ſ", "1/0.0001s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		windows, err := Rate(text).windows()
		if err != nil {
			return
		}
		var again []Rate
		for i, each := range windows {
			if each.ms < 1 || each.ms > maxSeconds*1000 || each.limit < 0 || each.limit > maxUnits || i > 0 && each.ms <= windows[i-1].ms {
				t.Fatalf("%q: %+v", text, windows)
			}
			again = append(again, Per(each.limit, time.Duration(each.ms)*time.Millisecond))
		}
		if same, err := Rates(again...).windows(); err != nil || fmt.Sprint(same) != fmt.Sprint(windows) {
			t.Fatalf("%q: %+v, and again %+v, %v", text, windows, same, err)
		}
	})
}
