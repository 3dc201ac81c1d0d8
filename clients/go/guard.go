package redisrl

import (
	"context"
	"errors"
	"sync"
	"time"

	"redis-rl.example/clients/go/internal/shorten"
)

// What a Guard does while the server is unavailable.
type Policy string

// The policies. Open is what a guard has unless it is given another.
const (
	Open Policy = "open" // Lets requests through.
	// Closed refuses them: [Guard.Decide] returns [ErrUnavailable], for which a middleware answers with status 503.
	Closed Policy = "closed"
	// Local limits them in this process' memory, by windows that begin with their first request. It is rougher than the server:
	// up to twice the limit can pass around a boundary, a throttle has no steady rate, and leases are let through.
	Local Policy = "local"
)

const (
	guardTimeout  = 250 * time.Millisecond
	defaultPrefix = "rl:"
)

// GuardOptions are what the adapters of a framework have in common. The zero value is a good one.
type GuardOptions struct {
	// Prefix is put before every key, behind the limiter's own prefix: "rl:" unless given, and nothing with NoPrefix.
	Prefix          string
	NoPrefix        bool
	WhenUnavailable Policy // Open unless given.
	// Processes is among how many processes the limits are divided with Local: 1 unless given.
	Processes int
	Timeout   time.Duration // After what time the server counts as unavailable: 250 ms unless given.
	// NoDenyCache asks the server about each request. Otherwise a denial is remembered for its wait, and at most a second.
	NoDenyCache bool
}

// A Guard decides on the requests of an application by a limiter, also while the server is unavailable. It is what the
// middleware for net/http and the interceptors for gRPC are made of, and what one for another framework takes.
type Guard struct {
	limiter  *Limiter
	prefix   string
	fallback *fallback
}

type fallbackKind struct {
	policy    Policy
	processes int
}

// A fallback decides while the server is unavailable, and tells the log when that begins and ends. The guards of a limiter
// that chose the same share one.
type fallback struct {
	policy Policy
	local  *local

	mu     sync.Mutex
	isAway bool
	toldAt time.Time
}

// NewGuard is a guard that decides by a limiter, whose remembered denials and log it shares.
func NewGuard(limiter *Limiter, options GuardOptions) (*Guard, error) {
	if limiter == nil {
		return nil, invalid("the limiter is nil")
	}
	switch options.WhenUnavailable {
	case Open, Closed, Local:
	case "":
		options.WhenUnavailable = Open
	default:
		return nil, invalid("WhenUnavailable must be Open, Closed or Local, not %q", options.WhenUnavailable)
	}
	if options.Processes == 0 {
		options.Processes = 1
	}
	if options.Timeout == 0 {
		options.Timeout = guardTimeout
	}
	if options.Processes < 0 || options.Timeout < 0 {
		return nil, invalid("the processes and the time-out must be above 0, not %d and %v", options.Processes, options.Timeout)
	}
	switch {
	case options.NoPrefix && options.Prefix != "":
		return nil, invalid("NoPrefix and the Prefix %q are both given", options.Prefix)
	case options.Prefix == "" && !options.NoPrefix:
		options.Prefix = defaultPrefix
	}
	own := *limiter
	core, err := newCore(limiter.core.client, options.Timeout, limiter.core.name, nil, limiter.core.modes)
	if err != nil {
		return nil, err
	}
	own.core, own.remembers = core, !options.NoDenyCache
	kind := fallbackKind{options.WhenUnavailable, options.Processes}
	memory := &local{processes: int64(kind.processes), counters: map[string]*counter{}}
	shared, _ := limiter.fallbacks.LoadOrStore(kind, &fallback{policy: kind.policy, local: memory})
	return &Guard{&own, options.Prefix, shared.(*fallback)}, nil
}

// A Limit is a rule for an identity: the client's address, a user, an organisation.
type Limit struct {
	Identity string
	Rule     Rule
	// Route is the template of the route that the limit was declared on, such as "/item/{id}", with the prefix under which it
	// is mounted. A rule without a name is then a limit of that route alone.
	Route string
}

// A Decision is a guard's answer, with what is held for the request.
type Decision struct {
	*Result
	Keys []string // At which the request was decided, one for each limit: for [Limiter.Refund].
	held []*Held
}

// Decide decides on a request by one limit or several: all have room, or nothing is counted anywhere. Leases are held, and
// renewed, until [Decision.End], which is to be called when the response has been sent.
//
// An error that is [ErrUnavailable] is only returned by the policy Closed. All others do not pass by themselves, and no
// policy turns them into "allowed".
func (g *Guard) Decide(ctx context.Context, limits ...Limit) (*Decision, error) {
	if len(limits) == 0 {
		return nil, invalid("a request without a limit needs no decision")
	}
	rules := make([]KeyedRule, len(limits))
	for i, each := range limits {
		if each.Identity == "" {
			return nil, invalid("a request without an identity must not share a quota with others of its kind")
		}
		if lease, ok := each.Rule.(LeaseRule); ok {
			each.Rule = lease.heldBy()
		}
		if err := checked(each.Rule, 0); err != nil {
			return nil, err
		}
		rules[i] = On(g.Key(each), each.Rule)
	}
	began, call := time.Now(), "hit"
	if len(rules) > 1 || rules[0].Rule.options().weight() == 0 {
		// What weighs nothing is checked by RL.ALL alone.
		call = "all"
	}
	result, err := g.limiter.decide(ctx, call, rules, g.limiter.core.timeout)
	switch {
	case err == nil:
		if result.Source == FromServer {
			g.fallback.answered(g.limiter)
		}
	case !errors.Is(err, ErrUnavailable):
		return nil, err
	default:
		g.fallback.failed(g.limiter, err)
		switch g.fallback.policy {
		case Closed:
			return nil, err
		case Local:
			result = g.fallback.local.decide(rules).from(FromLocal)
		default:
			result = (&local{processes: 1, isOpen: true}).decide(rules).from(FromOpen)
		}
		g.limiter.count(Event{Call: call, Keys: keysOf(rules), Result: result}, began)
	}
	decision := &Decision{Result: result, Keys: keysOf(rules)}
	if result.Allowed && result.Source == FromServer {
		for _, each := range rules {
			if lease, ok := each.Rule.(LeaseRule); ok {
				// It is renewed until End, also where the context of the request ends before.
				held := g.limiter.hold(context.WithoutCancel(ctx), each.Key, lease, began.Add(duration(lease.ms)))
				decision.held = append(decision.held, held)
			}
		}
	}
	return decision, nil
}

// Key is the key at which a limit is counted, behind the limiter's own prefix: for [Limiter.Reset] and so on.
func (g *Guard) Key(limit Limit) string {
	if limit.Route == "" || limit.Rule.options().name != "" {
		return KeyFor(g.prefix, limit.Rule, limit.Identity)
	}
	return keyFor(g.prefix, inPolicy.Replace(shorten.Identity(limit.Route)+" "+limit.Rule.described()), limit.Identity)
}

// End gives back what was held for the request. Calling it again does nothing.
func (d *Decision) End() {
	for _, held := range d.held {
		held.Release()
	}
}

var whatHappens = map[Policy]string{
	Open: "let through", Closed: "refused", Local: "limited in memory",
}

// failed: the server was unavailable to a request.
func (f *fallback) failed(l *Limiter, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := l.core.modes.log
	if !l.core.isAvailable() {
		if !f.isAway {
			f.isAway = true
			log.Warn("the server is unavailable, requests are "+whatHappens[f.policy], "limiter", l.core.name, "error", err)
		}
		return
	}
	// Not all of them: of a crowd that is too large, or of a slot on the move.
	if now := time.Now(); now.Sub(f.toldAt) > time.Minute {
		f.toldAt = now
		log.Warn("requests that are not answered in time are "+whatHappens[f.policy], "limiter", l.core.name, "error", err)
	}
}

// answered: the server has answered a request. In a cluster all of its nodes have to.
func (f *fallback) answered(l *Limiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isAway && l.core.isAvailable() {
		f.isAway = false
		l.core.modes.log.Warn("the server is available again", "limiter", l.core.name)
	}
}
