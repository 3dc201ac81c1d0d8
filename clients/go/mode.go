package redisrl

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A Mode is how the server is called.
type Mode string

// The modes. Keys and answers are the same in all of them.
const (
	// Auto finds out what the server has, and uses the best of it.
	Auto Mode = ""
	// Module calls the commands of the module.
	Module Mode = "module"
	// Functions calls the function library, which the limiter loads where it is missing, and replaces where it is older.
	Functions Mode = "functions"
	// Script calls a script by its digest, and sends it where the server does not have it.
	Script Mode = "script"
)

// modes are what is known of how servers can be called. Limiters that were derived from one share them.
type modes struct {
	chosen  Mode
	name    string
	log     *slog.Logger
	servers sync.Map
}

// A serverMode is how a server is called.
type serverMode struct {
	mode atomic.Value // Auto as long as it is not known.
	// lacks is how many of all modes the server was found to lack by calls that had no time to find the one that it has.
	lacks atomic.Int32
	// probeAt is when the server is asked again whether it has something better, and dialled how often connections to it
	// had been made by then.
	probeAt       atomic.Int64
	dialled       atomic.Uint32
	lacksReadOnly atomic.Bool // It has no EVALSHA_RO, as Redis 6.2.
	// loading is held by the one of all calls that loads the library; loads counts how often that was done.
	loading chan struct{}
	loads   atomic.Int64
}

func (m *modes) of(server string) *serverMode {
	if known, ok := m.servers.Load(server); ok {
		return known.(*serverMode)
	}
	fresh := &serverMode{loading: make(chan struct{}, 1)}
	fresh.mode.Store(Auto)
	known, _ := m.servers.LoadOrStore(server, fresh)
	return known.(*serverMode)
}

func (s *serverMode) current() Mode { return s.mode.Load().(Mode) }

// least is the mode of all servers that has the fewest needs.
func (m *modes) least() Mode {
	least := m.chosen
	m.servers.Range(func(_, known any) bool {
		mode := known.(*serverMode).current()
		if least == Auto || mode == Script || mode == Functions && least == Module {
			least = mode
		}
		return true
	})
	return least
}

// inMode sends the command in the mode that is known. If that is gone, or not known yet, it finds out which there is.
func (c *core) inMode(ctx context.Context, n *node, server *redis.Client, command command) (any, error) {
	if chosen := c.modes.chosen; chosen != Auto {
		reply, err := c.in(ctx, chosen, n, server, command)
		c.keep(chosen, n, server, err)
		return reply, err
	}
	known := c.modes.of(n.name)
	if mode := known.current(); mode != Auto {
		reply, err := c.in(ctx, mode, n, server, command)
		if !c.lacks(err) {
			if mode != Module {
				c.probeIfDue(n, server, command.keys[0])
			}
			return reply, err
		}
	}
	for first := known.lacks.Load(); ; first++ {
		mode := []Mode{Module, Functions, Script}[first]
		reply, err := c.in(ctx, mode, n, server, command)
		if mode != Script && (c.lacks(err) || mode == Functions && isForbidden(err)) {
			n.answeredAt.Store(now())
			known.lacks.Store(first + 1)
			continue
		}
		if err == nil || ctx.Err() == nil {
			known.lacks.Store(0)
		}
		c.keep(mode, n, server, err)
		return reply, err
	}
}

func (c *core) lacks(err error) bool { return err != nil && c.meaning(err) == missing }

func isForbidden(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOPERM") }

// keep remembers the mode if the server has answered in it. An error of its own says that it is there, too.
func (c *core) keep(mode Mode, n *node, server *redis.Client, err error) {
	if err != nil && (isForbidden(err) || c.meaning(err) != permanent && c.meaning(err) != tryAgain) {
		return
	}
	known := c.modes.of(n.name)
	if known.mode.Swap(mode) == mode {
		return
	}
	c.modes.log.Info("the server is called in this mode", "limiter", c.modes.name, "server", n.name, "mode", string(mode))
	known.probeAt.Store(now() + int64(probeEvery))
	known.dialled.Store(c.dialled(server))
	if mode == Functions {
		go c.replaceOlder(n, server)
	}
}

func (c *core) dialled(server *redis.Client) uint32 {
	if server == nil {
		return c.client.PoolStats().Misses
	}
	return server.PoolStats().Misses
}

// probeIfDue asks whether the server has something better by now, after a while and after a reconnection. No call waits for
// that.
func (c *core) probeIfDue(n *node, server *redis.Client, key string) {
	known, dialled := c.modes.of(n.name), c.dialled(server)
	at := known.probeAt.Load()
	if now() < at && known.dialled.Load() == dialled || !known.probeAt.CompareAndSwap(at, now()+int64(probeEvery)) {
		return
	}
	known.dialled.Store(dialled)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		peek := command{"PEEK", []string{key}, []any{"SLIDING", "1", 1, "COST", 0, "FULL"}, true, true}
		for _, mode := range []Mode{Module, Functions} {
			if known.current() == mode {
				return
			}
			// An error is that of a server that is unavailable, which calls notice.
			_, err := c.in(ctx, mode, n, server, peek)
			if c.keep(mode, n, server, err); known.current() == mode {
				return
			}
		}
	}()
}

func (c *core) in(ctx context.Context, mode Mode, n *node, server *redis.Client, command command) (any, error) {
	known := c.modes.of(n.name)
	send := func(whole bool) (any, error) {
		words, first := command.sent(mode, whole, !known.lacksReadOnly.Load())
		return c.send(ctx, words, first)
	}
	loads := known.loads.Load()
	reply, err := send(false)
	switch {
	case mode == Functions && c.lacks(err) && !isUnknownCommand(err) && server != nil:
		c.load(ctx, known, server, loads)
		if reply, err = send(false); c.lacks(err) && c.cluster != nil {
			// While its slot moves, the key may be with another node.
			_ = c.cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
				return process(ctx, server, newOnce(ctx, "FUNCTION", "LOAD", library))
			})
			return send(false)
		}
		return reply, err
	case mode == Script && command.reads && isUnknownCommand(err):
		known.lacksReadOnly.Store(true)
		if reply, err = send(false); !c.lacks(err) {
			return reply, err
		}
		return send(true)
	case mode == Script && c.lacks(err):
		return send(true)
	}
	return reply, err
}

// load loads the library, for all calls that miss it.
func (c *core) load(ctx context.Context, known *serverMode, server *redis.Client, loads int64) {
	select {
	case known.loading <- struct{}{}:
		defer func() { <-known.loading }()
	case <-ctx.Done():
		return
	}
	if known.loads.Load() != loads {
		return
	}
	// Refused where another process was faster, or where it may not be loaded. The call itself says which.
	if err := process(ctx, server, newOnce(ctx, "FUNCTION", "LOAD", library)); err != nil {
		c.modes.log.Debug("the function library was not loaded", "limiter", c.modes.name, "error", err)
	}
	known.loads.Add(1)
}

// replaceOlder replaces a function library of ours that is older than the one of this package; never a newer one.
func (c *core) replaceOlder(n *node, server *redis.Client) {
	if server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	list := redis.NewCmd(ctx, "FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE")
	if process(ctx, server, list) != nil {
		return
	}
	code := fmt.Sprint(list.Val())
	// Somebody else's library of that name is left alone.
	if !strings.Contains(code, "redis-rl") || libraryVersion(code) >= libraryVersion(library) {
		return
	}
	if err := process(ctx, server, redis.NewCmd(ctx, "FUNCTION", "LOAD", "REPLACE", library)); err != nil {
		c.modes.log.Warn("the function library is older, and was not replaced", "limiter", c.modes.name, "server", n.name, "error", err)
		return
	}
	c.modes.log.Info("an older function library was replaced", "limiter", c.modes.name, "server", n.name)
}
