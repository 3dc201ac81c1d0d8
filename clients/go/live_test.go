package redisrl

// The package on live servers. What it does when something breaks is played by ../faults.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	rule := Must(Sliding("1/300ms"))
	began := time.Now()
	for range 3 {
		if result := must(limiter.Wait(ctx, "k", rule)); !result.Allowed {
			t.Fatalf("%+v", result)
		}
	}
	if took := time.Since(began); took < 600*time.Millisecond {
		t.Errorf("three in %v", took)
	}
	hit(t, limiter, "long", Must(Sliding("1/hour")))
	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if result, err := limiter.Wait(short, "long", Must(Sliding("1/hour"))); err != nil || result.Allowed {
		t.Errorf("%+v, %v", result, err)
	}
	if _, err := limiter.Hit(func() context.Context { c, cancel := context.WithCancel(ctx); cancel(); return c }(), "k", rule); !errors.Is(err, context.Canceled) {
		t.Error(err)
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

func TestDenyCache(t *testing.T) {
	client := newClient(t, testserver.Start(t, "module"), 3)
	var events atomic.Int64
	limiter := newLimiter(t, client, Options{DenyCache: 10, Prefix: "p:", Hook: func(event Event) {
		if event.Result != nil && event.Result.Source == FromMemory {
			events.Add(1)
		}
	}})
	rule := Must(Sliding("1/hour"))
	hit(t, limiter, "k", rule)
	hit(t, limiter, "k", rule)
	if result := hit(t, limiter, "k", rule); result.Source != FromMemory || result.Allowed || result.RetryAfter == 0 {
		t.Fatalf("%+v", result)
	}
	if stats := limiter.Stats(); stats != (Stats{1, 2, 1, 0}) || events.Load() != 1 {
		t.Errorf("%+v, %d", stats, events.Load())
	}
	if result := hit(t, limiter, "k", rule.Force()); result.Source != FromServer {
		t.Errorf("%+v", result)
	}
	must(limiter.Reset(ctx, "k", rule))
	if result := hit(t, limiter, "k", rule); !result.Allowed {
		t.Errorf("%+v", result)
	}
	// A lighter request than the one that was denied is asked, and so is one that never fits.
	ten := Must(Sliding("10/hour"))
	hit(t, limiter, "ten", ten.Cost(5))
	hit(t, limiter, "ten", ten.Cost(7))
	if result := hit(t, limiter, "ten", ten.Cost(11)); result.RetryAfter != Never {
		t.Errorf("%+v", result)
	}
	if result := hit(t, limiter, "ten", ten.Cost(5)); !result.Allowed {
		t.Errorf("%+v", result)
	}
	for i := range 100 {
		hit(t, limiter, fmt.Sprint(strings.Repeat("x", 1000), i), Must(Sliding("0/hour")))
	}
	if known := len(limiter.denials.known); known != 10 || limiter.denials.order.Len() != 10 {
		t.Errorf("%d are remembered", known)
	}
}

func TestArguments(t *testing.T) {
	client := newClient(t, "127.0.0.1:1", 3)
	for _, options := range []Options{{Mode: "magic"}, {Timeout: -1}, {DenyCache: -1}} {
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
