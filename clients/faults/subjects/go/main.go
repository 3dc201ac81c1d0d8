// The subject of the package for Go. Without an argument it makes calls; with "http" it serves an application with the
// middleware. The protocol is in ../../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	redisrl "redis-rl.example/clients/go"
)

const can = "hit peek all wait turn refund reset acquire release hold reserve lease-of-reserve settle crowd each flood burn " +
	"cancel within cluster sentinel modes hook threads pool close memory"

type reply map[string]any

// A request is a command of the harness.
type request struct {
	ID      int     `json:"id"`
	Do      string  `json:"do"`
	Limiter string  `json:"limiter"`
	Name    string  `json:"name"`
	Connect connect `json:"connect"`
	Client  string  `json:"client"`
	Timeout float64 `json:"timeout"`
	Prefix  string  `json:"prefix"`
	Mode    string  `json:"mode"`
	Hook    bool    `json:"hook"`
	Key     string  `json:"key"`
	Rule    ruled   `json:"rule"`
	Cost    *int64  `json:"cost"`
	Force   bool    `json:"force"`
	AtMS    int64   `json:"at_ms"`
	Holder  string  `json:"holder"`
	Seconds float64 `json:"seconds"`
	Units   int64   `json:"units"`
	As      string  `json:"as"`
	Lease   float64 `json:"lease"`
	N       int     `json:"n"`
	Pause   float64 `json:"pause"`
	Each    bool    `json:"each"`
	Ahead   float64 `json:"ahead"`
	Pad     int     `json:"pad"`
	Call    string  `json:"call"`
	MS      int     `json:"ms"`
	Threads int     `json:"threads"`
	Within  float64 `json:"within"`
	Policy  string  `json:"policy"`
	Procs   int     `json:"processes"`
	Takes   bool    `json:"takes_back"`
	Rules   []keyed `json:"rules"`
	Of      any     `json:"of"`
}

type connect struct {
	URL      string   `json:"url"`
	Cluster  []string `json:"cluster"`
	Sentinel []string `json:"sentinel"`
	Service  string   `json:"service"`
}

type ruled struct {
	Kind     string   `json:"kind"`
	Rates    []string `json:"rates"`
	Rate     string   `json:"rate"`
	Burst    *int64   `json:"burst"`
	Anchored bool     `json:"anchored"`
	Cost     *int64   `json:"cost"`
	Force    bool     `json:"force"`
	Limit    int64    `json:"limit"`
	TTL      float64  `json:"ttl"`
}

type keyed struct {
	Key  string `json:"key"`
	Rule ruled  `json:"rule"`
}

var (
	stdout       sync.Mutex
	mu           sync.Mutex
	limiters     = map[string]*redisrl.Limiter{}
	clients      = map[string]redis.UniversalClient{}
	reservations = map[string]*redisrl.Reservation{}
	underWay     = map[int]context.CancelFunc{}
	lags         []lag
)

type lag struct {
	at time.Time
	by time.Duration
}

func tell(line reply) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	stdout.Lock()
	defer stdout.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}

func length(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func (r ruled) made(cost *int64, force bool) (redisrl.Rule, error) {
	if cost == nil {
		cost = r.Cost
	}
	force = force || r.Force
	var rates []redisrl.Rate
	for _, rate := range r.Rates {
		rates = append(rates, redisrl.Rate(rate))
	}
	switch r.Kind {
	case "sliding":
		rule, err := redisrl.Sliding(redisrl.Rates(rates...))
		if cost != nil {
			rule = rule.Cost(*cost)
		}
		if force {
			rule = rule.Force()
		}
		return rule, err
	case "fixed":
		var options []redisrl.FixedOption
		if r.Anchored {
			options = append(options, redisrl.Anchored)
		}
		rule, err := redisrl.Fixed(redisrl.Rates(rates...), options...)
		if cost != nil {
			rule = rule.Cost(*cost)
		}
		if force {
			rule = rule.Force()
		}
		return rule, err
	case "throttle":
		var options []redisrl.ThrottleOption
		if r.Burst != nil {
			options = append(options, redisrl.Burst(*r.Burst))
		}
		rule, err := redisrl.Throttle(redisrl.Rate(r.Rate), options...)
		if cost != nil {
			rule = rule.Cost(*cost)
		}
		return rule, err
	}
	return redisrl.Lease(r.Limit, length(r.TTL))
}

func clientOf(c connect) (redis.UniversalClient, error) {
	switch {
	case c.Cluster != nil:
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Cluster}), nil
	case c.Sentinel != nil:
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: c.Service, SentinelAddrs: c.Sentinel}), nil
	}
	options, err := redis.ParseURL(c.URL)
	if quoted := (*url.Error)(nil); errors.As(err, &quoted) {
		// As the page says: go-redis quotes the URL with its password.
		err = quoted.Err
	}
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

func limiterOf(r request) (*redisrl.Limiter, error) {
	mu.Lock()
	defer mu.Unlock()
	client := clients[r.Client]
	if client == nil || r.Client == "" {
		var err error
		if client, err = clientOf(r.Connect); err != nil {
			return nil, err
		}
		clients[r.Client] = client
	}
	mode := redisrl.Mode(r.Mode)
	if r.Mode == "auto" {
		mode = redisrl.Auto
	}
	options := redisrl.Options{
		Name: r.Name, Prefix: r.Prefix, Mode: mode, Timeout: length(r.Timeout), Logger: slog.New(logged{}),
	}
	if r.Hook {
		options.Hook = func(event redisrl.Event) {
			for _, key := range event.Keys {
				tell(reply{"hook": reply{"call": event.Call, "key": key}})
			}
		}
	}
	return redisrl.New(client, options)
}

func decided(result *redisrl.Result) reply {
	told := reply{
		"outcome": "denied", "limit": result.Limit, "used": result.Used, "remaining": result.Remaining,
		"retry_ms": int64(-1), "at_ms": result.At.UnixMilli(), "wait_ms": result.Wait.Milliseconds(),
	}
	if result.Allowed {
		told["outcome"] = "allowed"
	}
	if result.RetryAfter != redisrl.Never {
		told["retry_ms"] = result.RetryAfter.Milliseconds()
	}
	if result.Holder != "" {
		told["holder"] = result.Holder
	}
	return told
}

func or(value, otherwise float64) float64 {
	if value == 0 {
		return otherwise
	}
	return value
}

func done(count int64) reply { return reply{"outcome": "done", "count": count} }

// carryOut makes the call that is named, as its page shows it.
func carryOut(ctx context.Context, limiter *redisrl.Limiter, r request) (reply, error) {
	rule, err := r.Rule.made(r.Cost, r.Force)
	if err != nil && r.Do != "all" && r.Do != "settle" && r.Do != "release" {
		return nil, err
	}
	lease, _ := rule.(redisrl.LeaseRule)
	switch r.Do {
	case "hit":
		return answer(limiter.Hit(ctx, r.Key, rule))
	case "peek":
		return answer(limiter.Peek(ctx, r.Key, rule))
	case "wait":
		ctx, cancel := context.WithTimeout(ctx, length(r.Timeout))
		defer cancel()
		return answer(limiter.Wait(ctx, r.Key, rule))
	case "turn":
		turns, ok := rule.(redisrl.TurnRule)
		if !ok {
			return nil, errors.New("this rule gives no turns")
		}
		return answer(limiter.Turn(ctx, r.Key, turns, length(r.Ahead)))
	case "all":
		var rules []redisrl.KeyedRule
		for _, each := range r.Rules {
			rule, err := each.Rule.made(nil, false)
			if err != nil {
				return nil, err
			}
			rules = append(rules, redisrl.On(each.Key, rule))
		}
		return answer(limiter.All(ctx, rules...))
	case "refund":
		var at time.Time
		if r.AtMS != 0 {
			at = time.UnixMilli(r.AtMS)
		}
		refund, err := limiter.Refund(ctx, r.Key, rule.(redisrl.Countable), at)
		if err != nil {
			return nil, err
		}
		return done(refund.Refunded), nil
	case "reset":
		count, err := limiter.Reset(ctx, r.Key, rule)
		return done(count), err
	case "acquire":
		if r.Holder != "" {
			lease = lease.Holder(r.Holder)
		}
		return answer(limiter.Acquire(ctx, r.Key, lease))
	case "release":
		count, err := limiter.Release(ctx, r.Key, r.Holder)
		return done(count), err
	case "hold":
		return hold(ctx, limiter, r, lease)
	case "reserve":
		reservation, err := limiter.Reserve(ctx, r.Key, rule.(redisrl.Reservable), r.Units, length(or(r.Lease, 60)))
		if err != nil {
			return nil, err
		}
		mu.Lock()
		reservations[r.As] = reservation
		mu.Unlock()
		return decided(reservation.Result), nil
	case "settle":
		mu.Lock()
		reservation := reservations[r.Of.(string)]
		mu.Unlock()
		if reservation == nil {
			return nil, errors.New("there is no such reservation")
		}
		return done(0), reservation.Settle(ctx, r.Units)
	case "close":
		// A limiter has nothing to close.
		return done(0), nil
	}
	return nil, fmt.Errorf("%s is not known", r.Do)
}

func answer(result *redisrl.Result, err error) (reply, error) {
	if err != nil {
		return nil, err
	}
	return decided(result), nil
}

func hold(ctx context.Context, limiter *redisrl.Limiter, r request, lease redisrl.LeaseRule) (reply, error) {
	held, err := limiter.Hold(ctx, r.Key, lease, length(r.Timeout))
	if err != nil {
		return nil, err
	}
	defer held.Release()
	tell(reply{"id": r.ID, "event": "held"})
	told := reply{"outcome": "allowed", "lost_after_ms": nil}
	began, work := time.Now(), time.NewTimer(length(r.Seconds))
	select {
	case <-work.C:
	case <-held.Context().Done():
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		told["lost_after_ms"] = float64(time.Since(began).Microseconds()) / 1000
		tell(reply{"id": r.ID, "event": "lost"})
		select {
		case <-work.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return told, nil
}

// answered is one command, given up by its caller after a time where it says so.
func answered(ctx context.Context, limiter *redisrl.Limiter, r request) reply {
	began := time.Now()
	if r.Within != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(length(r.Within), cancel).Stop()
	}
	told, err := carryOut(ctx, limiter, r)
	if err != nil {
		told = failed(ctx, err)
	}
	told["ms"] = float64(time.Since(began).Microseconds()) / 1000
	told["lag_ms"] = lagSince(began)
	return told
}

func failed(ctx context.Context, err error) reply {
	var (
		argument *redisrl.ArgumentError
		denied   *redisrl.DeniedError
		said     redis.Error
	)
	told := reply{"error": err.Error()}
	switch {
	case errors.As(err, &denied):
		return decided(denied.Result)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		told["outcome"] = "gave_up"
	case errors.As(err, &argument):
		told["outcome"] = "argument"
	case errors.Is(err, redisrl.ErrUnavailable):
		told["outcome"] = "unavailable"
	case errors.As(err, &said):
		told["outcome"] = "permanent"
	default:
		told["outcome"] = "bug"
	}
	return told
}

func lagSince(began time.Time) float64 {
	mu.Lock()
	defer mu.Unlock()
	var most time.Duration
	for i := len(lags) - 1; i >= 0 && !lags[i].at.Before(began); i-- {
		most = max(most, lags[i].by)
	}
	return float64(most.Microseconds()) / 1000
}

// many makes calls, some at a time and each when it is due, and puts their replies together.
func many(n, atOnce int, call func(number int) reply, due func(number int)) reply {
	outcomes, failures, slowest := map[string]int{}, map[string]int{}, 0.0
	var (
		together sync.Mutex
		all      sync.WaitGroup
	)
	turns := make(chan struct{}, atOnce)
	for number := range n {
		due(number)
		turns <- struct{}{}
		all.Add(1)
		go func() {
			defer all.Done()
			told := call(number)
			<-turns
			together.Lock()
			defer together.Unlock()
			outcomes[told["outcome"].(string)]++
			if failure, ok := told["error"].(string); ok {
				failures[failure]++
			}
			slowest = max(slowest, told["ms"].(float64))
		}()
	}
	all.Wait()
	return reply{"outcome": "done", "outcomes": outcomes, "errors": failures, "slowest_ms": slowest}
}

func crowd(ctx context.Context, limiter *redisrl.Limiter, r request) reply {
	if r.Do = r.Call; r.Call == "" {
		r.Do = "hit"
	}
	each, began := make([]reply, r.N), time.Now()
	told := many(r.N, max(r.N, 1), func(number int) reply {
		asked := unixMS()
		told := answered(ctx, limiter, r)
		each[number] = reply{
			"outcome": told["outcome"], "at_ms": told["at_ms"], "wait_ms": told["wait_ms"], "asked_ms": asked, "ended_ms": unixMS(),
		}
		return told
	}, func(number int) { time.Sleep(time.Until(began.Add(length(float64(number) * r.Pause)))) })
	if r.Each {
		told["each"] = each
	}
	return told
}

func unixMS() float64 { return float64(time.Now().UnixMicro()) / 1000 }

func flood(ctx context.Context, limiter *redisrl.Limiter, r request) reply {
	return many(r.N, 16, func(number int) reply {
		one := r
		one.Do, one.Key = "hit", fmt.Sprintf("%s%d", r.Key, number)
		one.Key += strings.Repeat("x", max(r.Pad-len(one.Key), 0))
		return answered(ctx, limiter, one)
	}, func(int) {})
}

func burn(r request) reply {
	until := time.Now().Add(time.Duration(r.MS) * time.Millisecond)
	var all sync.WaitGroup
	for range max(r.Threads, 1) {
		all.Add(1)
		go func() {
			defer all.Done()
			for sum := 0; time.Now().Before(until); sum++ {
				runtime.KeepAlive(sum)
			}
		}()
	}
	tell(reply{"id": r.ID, "event": "burning"})
	all.Wait()
	return done(0)
}

func memory() reply {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return done(int64(stats.HeapInuse + stats.StackInuse))
}

func handle(ctx context.Context, r request) reply {
	mu.Lock()
	limiter := limiters[r.Limiter]
	mu.Unlock()
	switch r.Do {
	case "limiter":
		made, err := limiterOf(r)
		if err != nil {
			return failed(ctx, err)
		}
		mu.Lock()
		limiters[r.Name] = made
		mu.Unlock()
		return done(0)
	case "serve":
		return serve(r)
	case "crowd":
		return crowd(ctx, limiter, r)
	case "flood":
		return flood(ctx, limiter, r)
	case "burn":
		return burn(r)
	case "memory":
		return memory()
	case "cancel":
		mu.Lock()
		defer mu.Unlock()
		if cancel := underWay[int(r.Of.(float64))]; cancel != nil {
			cancel()
		}
		return done(0)
	}
	return answered(ctx, limiter, r)
}

// logged writes each log line of the package, with what all of a logger's lines have.
type logged struct{ all string }

func (logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) WithGroup(string) slog.Handler          { return l }

func (l logged) WithAttrs(attributes []slog.Attr) slog.Handler {
	for _, attribute := range attributes {
		l.all += " " + attribute.String()
	}
	return l
}

func (l logged) Handle(_ context.Context, record slog.Record) error {
	text := record.Message + l.all
	record.Attrs(func(attribute slog.Attr) bool {
		text += " " + attribute.String()
		return true
	})
	level := map[slog.Level]string{slog.LevelDebug: "debug", slog.LevelInfo: "info", slog.LevelWarn: "warning"}[record.Level]
	if level == "" {
		level = "error"
	}
	tell(reply{"log": level, "text": text})
	return nil
}

// quiet swallows what go-redis itself would write to stderr.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func measure() {
	const step = 10 * time.Millisecond
	for {
		began := time.Now()
		time.Sleep(step)
		mu.Lock()
		lags = append(lags, lag{time.Now(), time.Since(began) - step})
		if len(lags) > 20_000 {
			lags = lags[10_000:]
		}
		mu.Unlock()
	}
}

func main() {
	redis.SetLogger(quiet{})
	go measure()
	words := can
	if len(os.Args) > 1 && os.Args[1] == "http" {
		words = canServe
	}
	tell(reply{"can": strings.Fields(words)})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		mu.Lock()
		underWay[r.ID] = cancel
		mu.Unlock()
		go func() {
			told := handle(ctx, r)
			told["id"] = r.ID
			tell(told)
			mu.Lock()
			delete(underWay, r.ID)
			mu.Unlock()
			// The context of what is reserved lasts.
			if r.Do != "reserve" {
				cancel()
			}
		}()
	}
}
