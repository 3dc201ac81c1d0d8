package redisrl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	breakerPause = time.Second // For how long calls fail at once after the server was unavailable.
	// For how many milliseconds a reply that has arrived is looked for before a call is given up at its deadline.
	turns    = 16
	patience = time.Second // How long an idle connection may take to answer, after a failure, before it is closed.
	// The pause before a call is sent again whose keys are between two nodes, at first and at most.
	firstPause, longestPause = 2 * time.Millisecond, 100 * time.Millisecond
	probeEvery               = time.Minute // How often the server is asked whether it has something better.
	probeTimeout             = 5 * time.Second
)

// A core sends commands: within a deadline, at most once, on the user's own client.
type core struct {
	client  redis.UniversalClient // The user's.
	cluster *redis.ClusterClient
	slots   int
	timeout time.Duration
	name    string
	log     *slog.Logger // nil where an adapter writes lines of its own.
	modes   *modes
	nodes   sync.Map // The servers by their addresses; one without a name where there is no cluster.
}

func newCore(client redis.UniversalClient, timeout time.Duration, name string, log *slog.Logger, modes *modes) (*core, error) {
	c := &core{client: client, timeout: timeout, name: name, log: log, modes: modes}
	if value := reflect.ValueOf(client); !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil() {
		return nil, invalid("the client is nil")
	}
	switch client := client.(type) {
	case *redis.Client:
		c.slots = client.Options().PoolSize
	case *redis.ClusterClient:
		c.cluster, c.slots = client, client.Options().PoolSize
	}
	if c.slots <= 0 {
		// A ring, a mock or a wrapper: what go-redis has unless told otherwise.
		c.slots = 10 * runtime.GOMAXPROCS(0)
	}
	return c, nil
}

// A node is a server, or a node of a cluster, as this limiter sees it.
type node struct {
	name  string
	slots chan struct{} // As many as there are connections, taken by calls under way.
	// When it answered last, in nanoseconds of the monotonic clock.
	answeredAt atomic.Int64

	mu sync.Mutex
	// openUntil is when a call may probe again; zero while the breaker is closed.
	openUntil time.Time
	why       error
	key       string // One of those that a call failed for.
}

var started = time.Now()

func now() int64 { return int64(time.Since(started)) }

func (c *core) node(name string) *node {
	if known, ok := c.nodes.Load(name); ok {
		return known.(*node)
	}
	known, _ := c.nodes.LoadOrStore(name, &node{name: name, slots: make(chan struct{}, c.slots)})
	return known.(*node)
}

// enter says whether a call may be sent. While the breaker is open one call a second may, as a probe.
func (n *node) enter() (isProbe bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.openUntil.IsZero() {
		return false, nil
	}
	if now := time.Now(); !now.Before(n.openUntil) {
		n.openUntil = now.Add(breakerPause)
		return true, nil
	}
	return false, fmt.Errorf("redisrl: %w, and was less than a second ago: %w", ErrUnavailable, n.why)
}

// isAvailable says whether no server is known to be unavailable. A node whose keys another one has by now is forgotten: nobody
// asks it any more.
func (c *core) isAvailable() bool {
	available := true
	c.nodes.Range(func(name, known any) bool {
		n := known.(*node)
		n.mu.Lock()
		key, isOpen := n.key, !n.openUntil.IsZero()
		n.mu.Unlock()
		if isOpen && c.cluster != nil && name != "" {
			if server, err := c.cluster.MasterForKey(context.Background(), key); err == nil && server.Options().Addr != name {
				c.nodes.Delete(name)
				isOpen = false
			}
		}
		available = !isOpen
		return available
	})
	return available
}

// A call under way. It goes on when its caller leaves it, at its deadline or before: so what it shows of its connection is
// noticed, and what it has taken can be given back.
type call struct {
	command command
	timeout time.Duration
	judges  bool           // That it is late says something of the server.
	known   func() *Result // An answer that another call has brought meanwhile.
	// done is closed when it has ended, and late when its deadline has passed before.
	done, late chan struct{}
	outcome    atomic.Int32 // Who was first: a caller that left, or the answer.
	reply      any
	found      *Result
	err        error
	// Whether a command of it has got a connection, and how many the pool had made before.
	isWritten atomic.Bool
	dialled   atomic.Uint32

	mu sync.Mutex
	// For whose answer it waits, and since when; isSent once that is the answer to its command.
	node    *node
	server  *redis.Client
	askedAt int64
	isSent  bool
}

func (c *call) waitsFor(n *node, server *redis.Client, isSent bool) (since int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.node, c.server, c.askedAt, c.isSent = n, server, now(), isSent
	return c.askedAt
}

const (
	callerLeft = iota + 1
	delivered
)

// ask is the server's answer to a command, or what known returns when the call's turn comes. giveBack is called with the
// reply to a call whose caller has gone.
func (c *core) ask(
	ctx context.Context, command command, timeout time.Duration, known func() *Result, giveBack func(reply any),
) (any, *Result, error) {
	if ctx.Err() != nil {
		return nil, nil, ended(ctx)
	}
	current := &call{
		command: command,
		timeout: timeout,
		judges:  timeout >= c.timeout,
		known:   known,
		done:    make(chan struct{}),
		late:    make(chan struct{}),
	}
	// The values of the context are for hooks. Its deadline would close connections that are in use.
	under, cancel := context.WithCancel(context.WithoutCancel(ctx))
	deadline := time.AfterFunc(timeout, func() {
		c.deadline(current)
		cancel()
	})
	go func() {
		defer cancel()
		current.reply, current.found, current.err = c.carryOut(under, current)
		deadline.Stop()
		isDelivered := current.outcome.CompareAndSwap(0, delivered)
		close(current.done)
		if !isDelivered && giveBack != nil && current.err == nil && current.found == nil {
			giveBack(current.reply)
		}
	}()
	select {
	case <-current.done:
	case <-current.late:
	case <-ctx.Done():
	}
	if !current.outcome.CompareAndSwap(0, callerLeft) {
		<-current.done
		if current.err == nil || !errors.Is(current.err, context.Canceled) {
			return current.reply, current.found, current.err
		}
	}
	// What was not sent by now is not sent any more.
	cancel()
	err := unavailable(fmt.Errorf("no reply within %v", timeout))
	if ctx.Err() != nil {
		err = ended(ctx)
	}
	current.mu.Lock()
	defer current.mu.Unlock()
	if current.isSent {
		err = unanswered{err}
	}
	return nil, nil, err
}

// deadline judges the server by a call that is late.
func (c *core) deadline(current *call) {
	// A deadline judges the server and not this process. When it was busy, the reply may have arrived long since, and wait
	// for the goroutine that reads it.
	for range turns {
		select {
		case <-current.done:
			return
		// Of a process that was stopped all timers are due, and come first: the runtime looks at the network when it has nothing
		// else to do. Of one that computes each other goroutine gets its turn, with the one that reads among them.
		case <-time.After(time.Millisecond):
			runtime.Gosched()
		}
	}
	current.mu.Lock()
	n, server, askedAt := current.node, current.server, current.askedAt
	current.mu.Unlock()
	// Where most of the time went by in a queue, being late says nothing of the server.
	if current.judges && n != nil && now()-askedAt >= int64(current.timeout)/2 && n.answeredAt.Load() < askedAt &&
		!c.isCrowdedOut(current, server) {
		c.failed(n, server, current.command.keys[0], fmt.Errorf("no reply within %v", current.timeout))
	}
	close(current.late)
}

// isCrowdedOut says that a call has waited for the pool, whose connections all were in use by others, and none was being made.
func (c *core) isCrowdedOut(current *call, server *redis.Client) bool {
	if server == nil || current.isWritten.Load() {
		return false
	}
	pool := server.PoolStats()
	return pool.IdleConns == 0 && int(pool.TotalConns) >= c.slots && pool.Misses == current.dialled.Load()
}

// carryOut sends the call when its turn comes, and notes what it shows of the server.
func (c *core) carryOut(ctx context.Context, current *call) (any, *Result, error) {
	n, server, err := c.locate(ctx, current)
	if err != nil {
		return nil, nil, err
	}
	isProbe, err := n.enter()
	if err != nil {
		return nil, nil, err
	}
	if !isProbe {
		select {
		case n.slots <- struct{}{}:
			defer func() { <-n.slots }()
		case <-ctx.Done():
			return nil, nil, unavailable(errors.New("the calls that are under way have not been answered in time"))
		}
		// It may have opened meanwhile.
		if _, err := n.enter(); err != nil {
			return nil, nil, err
		}
	}
	if current.known != nil {
		if found := current.known(); found != nil {
			return nil, found, nil
		}
	}
	current.dialled.Store(c.dialled(server))
	sentAt := current.waitsFor(n, server, true)
	reply, err := c.decide(context.WithValue(ctx, written{}, &current.isWritten), n, server, current.command)
	if err == nil {
		c.answered(n)
		return reply, nil, nil
	}
	switch c.meaning(err) {
	case permanent, missing, tryAgain:
		if !errors.Is(err, redis.ErrClosed) {
			c.answered(n)
		}
	case refusesNow:
		c.failed(n, server, current.command.keys[0], err)
	case lost:
		// Not of a connection that was left behind: others are answered.
		if n.answeredAt.Load() < sentAt {
			c.failed(n, server, current.command.keys[0], err)
		}
		c.modes.of(n.name).probeAt.Store(0)
	}
	return nil, nil, c.shown(err)
}

func (c *core) meaning(err error) meaning { return meaningOf(err, c.cluster != nil) }

// shown is the error as callers see it.
func (c *core) shown(err error) error {
	switch c.meaning(err) {
	case permanent, missing, gone:
		return fmt.Errorf("redisrl: %w", err)
	}
	return unavailable(err)
}

// locate is the node that a call goes to, and the connections to it. Where the slots of a cluster are not known yet, its nodes
// are asked for them, which has a breaker of its own.
func (c *core) locate(ctx context.Context, current *call) (*node, *redis.Client, error) {
	whole, key := c.node(""), current.command.keys[0]
	if c.cluster == nil {
		server, _ := c.client.(*redis.Client)
		return whole, server, nil
	}
	isProbe, err := whole.enter()
	if err != nil {
		return nil, nil, err
	}
	current.waitsFor(whole, nil, false)
	server, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		if meaning := c.meaning(err); meaning == lost || meaning == refusesNow {
			c.failed(whole, nil, key, err)
		}
		return nil, nil, c.shown(err)
	}
	if isProbe {
		c.answered(whole)
	}
	current.waitsFor(nil, nil, false)
	return c.node(server.Options().Addr), server, nil
}

// answered notes that the server has answered a call, which ends an outage.
func (c *core) answered(n *node) {
	n.answeredAt.Store(now())
	n.mu.Lock()
	wasOpen := !n.openUntil.IsZero()
	n.openUntil, n.why = time.Time{}, nil
	n.mu.Unlock()
	if wasOpen && c.log != nil {
		c.log.Info("the server is available again", "limiter", c.name, "server", n.name)
	}
}

// failed opens the breaker.
func (c *core) failed(n *node, server *redis.Client, key string, why error) {
	n.mu.Lock()
	isFirst := n.openUntil.IsZero()
	n.openUntil, n.why, n.key = time.Now().Add(breakerPause), why, key
	n.mu.Unlock()
	if isFirst && c.log != nil {
		c.log.Info("the server is unavailable", "limiter", c.name, "server", n.name, "error", why)
	}
	c.modes.of(n.name).probeAt.Store(0)
	if c.cluster != nil {
		// Another node may have its slots by now.
		c.cluster.ReloadState(context.Background())
	}
	if server == nil || !isFirst {
		return
	}
	// Connections that are idle may be as dead. Those that do not answer are closed, so that calls find new ones.
	// The derived client has the same pool, and the same hooks.
	checking := server.WithTimeout(patience)
	for range server.PoolStats().IdleConns {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_ = process(ctx, checking, newOnce(ctx, "PING"))
		}()
	}
}

// decide sends a command until the server has decided it.
func (c *core) decide(ctx context.Context, n *node, server *redis.Client, command command) (any, error) {
	pause, isResent, isSent, replicas := firstPause, false, false, -1
	for {
		reply, err := c.inMode(ctx, n, server, command)
		if err == nil {
			return reply, nil
		}
		meaning := c.meaning(err)
		if isSent = isSent || meaning == lost && !isUnsent(err); isSent {
			err = unanswered{err}
		}
		if strings.HasPrefix(err.Error(), "READONLY ") && server != nil && c.cluster == nil {
			// Nothing was counted, and go-redis has closed the connection. Others that are idle may lead to the same server, and a new one
			// to another, as after a failover.
			if replicas == -1 {
				replicas = int(server.PoolStats().IdleConns) + 1
			}
			if replicas--; replicas >= 0 && ctx.Err() == nil {
				continue
			}
		}
		switch {
		case meaning == tryAgain:
			select {
			// Spread out, for the others that wait for the same slot.
			case <-time.After(pause/2 + rand.N(pause/2)):
			case <-ctx.Done():
				return nil, err
			}
			pause = min(2*pause, longestPause)
		case meaning == lost && command.again && !isResent && !isTimeout(err) && ctx.Err() == nil:
			isResent = true
		default:
			return nil, err
		}
	}
}

func (c *core) send(ctx context.Context, words []any, first int8) (any, error) {
	cmd := newOnce(ctx, words...)
	cmd.SetFirstKeyPos(first)
	// Otherwise a cluster is asked first for what it knows of the command, under a lock and a time-out of its own.
	cmd.SetStepCount(1)
	if err := process(ctx, c.client, cmd); err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	return cmd.Val(), nil
}

// process has a client carry out a command, in a goroutine of this package. Where a hook of the client panics, nobody else could
// recover, as a server of HTTP does for its handlers, and the process would end.
func process(ctx context.Context, client processor, cmd redis.Cmder) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = unanswered{fmt.Errorf("%w: %v\n%s", errPanicked, cause, debug.Stack())}
		}
	}()
	return client.Process(ctx, cmd)
}

type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}
