package redisrl

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"
)

// A Rule says what is allowed, without the key. Rules are made by [Sliding], [Fixed], [Throttle], [Lease] and [Calendar].
// They are values: make one once, use it for every key and in any goroutine.
type Rule interface {
	// kind is the rule's word in RL.PEEK and RL.ALL, and behind "RL." the command of its own.
	kind() string
	// words are the rule as the commands take it.
	words() []any
	// form is the word that asks for the long reply.
	form() string
	// policies are those of RateLimit-Policy, shortest window first.
	policies() []policy
	// described is what the keys of adapters have in place of a name.
	described() string
	// check says what keeps the rule from being sent with at least such a cost.
	check(least int64) error
	options() base
}

// A Countable rule counts units, which can be given back: all but a lease.
type Countable interface {
	Rule
	countable()
}

// A Reservable rule can be charged over its limit, and so settled afterwards: those of [Sliding], [Fixed] and [Calendar].
type Reservable interface {
	Countable
	held(cost int64, holder string, lease time.Duration) Reservable
	isForced() bool
}

// A TurnRule gives turns to those who wait ([Limiter.Turn]): those of [Sliding] and [Throttle].
type TurnRule interface {
	Countable
	givesTurns()
}

// A turn is a rule that is asked for a turn within a time.
type turn struct {
	TurnRule
	within time.Duration
}

func (t turn) words() []any { return append(t.TurnRule.words(), "WITHIN", t.within.Milliseconds()) }

func (t turn) check(least int64) error {
	if t.within < 0 || t.within > longestTurn {
		return invalid("a turn is within 0 to an hour, not %v", t.within)
	}
	if isForced(t.TurnRule) {
		return invalid("a request that is forced takes no turn")
	}
	return checked(t.TurnRule, least)
}

// Options of rules, which [Sliding], [Fixed], [Throttle] and [Lease] take as their last arguments.
type (
	// A RuleOption is for every rule: [Name], [Unit].
	RuleOption interface {
		FixedOption
		ThrottleOption
		common(*base)
	}
	// A FixedOption is for [Fixed]: [Anchored], or one for every rule.
	FixedOption interface{ fixed(*FixedRule) }
	// A ThrottleOption is for [Throttle]: [Burst], or one for every rule.
	ThrottleOption interface{ throttle(*ThrottleRule) }
)

// A Name is what the policy is called in HTTP headers and in the keys of adapters: 1 or more printable ASCII characters.
// Without one it is called by its window, such as 60s. With several windows, each one's length is added to the name.
type Name string

// A Unit is what is counted, for the header RateLimit-Policy: "requests" (which is understood), "content-bytes", …
type Unit string

// A Burst is how many requests may come at once beyond the first, 0 to 2^53-2; unless given, the rate's limit less one.
type Burst int64

type anchored struct{}

// Anchored lets a fixed window begin with its first request, and not at a multiple of its length since the epoch.
var Anchored FixedOption = anchored{}

func (n Name) common(b *base) {
	b.name = string(n)
	b.fail(checkText("name", string(n)))
}
func (n Name) fixed(r *FixedRule)       { n.common(&r.base) }
func (n Name) throttle(r *ThrottleRule) { n.common(&r.base) }

func (u Unit) common(b *base) {
	b.unit = string(u)
	b.fail(checkText("unit", string(u)))
}
func (u Unit) fixed(r *FixedRule)       { u.common(&r.base) }
func (u Unit) throttle(r *ThrottleRule) { u.common(&r.base) }

func (n Burst) throttle(r *ThrottleRule) {
	r.burst = int64(n)
	if n < 0 || n >= maxUnits {
		r.fail(invalid("burst must be from 0 to %d, not %d", int64(maxUnits-1), int64(n)))
	}
}

func (anchored) fixed(r *FixedRule) { r.anchored = true }

func checkText(what, text string) error {
	if text == "" || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || '~' < c }) {
		return invalid("a %s is 1 or more printable ASCII characters, not %q", what, text)
	}
	return nil
}

// base is what all rules have in common.
type base struct {
	name, unit string
	cost       int64 // -1 where none is given.
	made       bool  // By one of the functions.
	err        error // The first mistake that was made with the rule.
}

func newBase() base { return base{cost: -1, made: true} }

func (b *base) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b base) options() base { return b }

func (b base) check(least int64) error {
	if !b.made {
		return invalid("a rule is made by Sliding, Fixed, Throttle, Lease or Calendar, and not empty")
	}
	if b.err != nil {
		return b.err
	}
	if b.cost != -1 && (b.cost < least || b.cost > maxUnits) {
		return invalid("the cost must be from %d to %d, not %d", least, int64(maxUnits), b.cost)
	}
	return nil
}

// weigh sets a cost. -1 stands for none, so that it cannot be one.
func (b *base) weigh(cost int64) {
	if b.cost = cost; cost < 0 {
		b.fail(invalid("the cost must be from 0 to %d, not %d", int64(maxUnits), cost))
	}
}

func (b base) weight() int64 {
	if b.cost == -1 {
		return 1
	}
	return b.cost
}

// A policy is one of RateLimit-Policy.
type policy struct {
	name  string
	limit int64
	// windowMS is the window's length in milliseconds, -1 for a lease, 0 for a window of the calendar.
	windowMS int64
	unit     string
}

// windowed is what sliding and fixed rules have in common.
type windowed struct {
	base
	windows []window
	force   bool
	hold    *hold
}

// A hold is a reservation's.
type hold struct {
	holder  string
	leaseMS int64
}

// limits are the windows as the commands take them.
func (w windowed) limits() []any {
	words := make([]any, 0, 2*len(w.windows)+6)
	for _, each := range w.windows {
		words = append(words, each.seconds(), each.limit)
	}
	return words
}

func (w windowed) ending(words []any) []any {
	if w.hold != nil {
		words = append(words, "HOLD", w.hold.holder, seconds(w.hold.leaseMS))
	}
	if w.force {
		words = append(words, "FORCE")
	}
	return words
}

// form asks for each of several windows. Only where a request is forced on them can the wait of the whole call not be told
// from those of the windows, as one that had room may have none now.
func (w windowed) form() string {
	if len(w.windows) > 1 && !w.force {
		return "EACH"
	}
	return "FULL"
}

func (w windowed) policies() []policy {
	policies := make([]policy, len(w.windows))
	for i, each := range w.windows {
		name := cmp.Or(w.name, each.seconds()+"s")
		if w.name != "" && len(w.windows) > 1 {
			name += "-" + each.seconds() + "s"
		}
		policies[i] = policy{name, each.limit, each.ms, w.unit}
	}
	return policies
}

func (w windowed) describe(kind string) string {
	texts := make([]string, len(w.windows))
	for i, each := range w.windows {
		texts[i] = fmt.Sprintf("%d/%ss", each.limit, each.seconds())
	}
	return kind + "-" + strings.Join(texts, ",")
}

func (w windowed) isForced() bool { return w.force }

func (w *windowed) reserve(cost int64, holder string, lease time.Duration) {
	w.cost = cost
	ms, err := milliseconds(lease, "the lease of a reservation")
	if err != nil {
		w.fail(err)
	}
	w.hold = &hold{holder, ms}
}

// A SlidingRule is an exact sliding window. See [Sliding].
type SlidingRule struct{ windowed }

// Sliding is an exact sliding window: no stretch of time as long as the window holds more than the limit. With several rates
// ("10/second, 1000/hour") a request has to fit into each, or it counts in none. Give the same rates in every call on a key.
func Sliding(rate Rate, options ...RuleOption) (SlidingRule, error) {
	rule := SlidingRule{windowed{base: newBase()}}
	var err error
	if rule.windows, err = rate.windows(); err != nil {
		return SlidingRule{}, err
	}
	for _, option := range options {
		option.common(&rule.base)
	}
	return rule, rule.err
}

// Cost is the rule for a request that weighs this number of units, 1 to 2^53-1: it fits whole or not at all. A cost of 0 is for
// [Limiter.Peek] and [Limiter.All]: the rule is checked, and nothing is counted.
func (r SlidingRule) Cost(units int64) SlidingRule {
	r.weigh(units)
	return r
}

// Force is the rule that counts a request whether it fits or not; the answer still says whether it fitted.
func (r SlidingRule) Force() SlidingRule {
	r.force = true
	return r
}

func (SlidingRule) kind() string        { return "SLIDING" }
func (SlidingRule) countable()          {}
func (SlidingRule) givesTurns()         {}
func (r SlidingRule) described() string { return r.describe("sliding") }

// The cost is always sent, so that the log is stored compactly from its first request on.
func (r SlidingRule) words() []any { return r.ending(append(r.limits(), "COST", r.weight())) }

func (r SlidingRule) held(cost int64, holder string, lease time.Duration) Reservable {
	r.reserve(cost, holder, lease)
	return r
}

// A FixedRule is a counter for each window. See [Fixed] and [Calendar].
type FixedRule struct {
	windowed
	anchored bool
	calendar *calendar
}

// Fixed is one small counter for each window: cheap, and up to twice the limit can pass around a boundary. Windows begin at
// multiples of their length since the epoch, or with their first request if the rule is [Anchored]. A rule with one rate
// and no cost counts the requests that it denies, too.
func Fixed(rate Rate, options ...FixedOption) (FixedRule, error) {
	rule := FixedRule{windowed: windowed{base: newBase()}}
	var err error
	if rule.windows, err = rate.windows(); err != nil {
		return FixedRule{}, err
	}
	for _, option := range options {
		option.fixed(&rule)
	}
	return rule, rule.err
}

// Cost is as of a [SlidingRule].
func (r FixedRule) Cost(units int64) FixedRule {
	r.weigh(units)
	return r
}

// Force is as of a [SlidingRule].
func (r FixedRule) Force() FixedRule {
	r.force = true
	return r
}

func (FixedRule) kind() string { return "FIXED" }
func (FixedRule) countable()   {}

func (r FixedRule) described() string {
	switch {
	case r.calendar != nil:
		return r.calendar.described(r.windows[0].limit)
	case r.anchored:
		return r.describe("anchored")
	}
	return r.describe("fixed")
}

func (r FixedRule) policies() []policy {
	policies := r.windowed.policies()
	if r.calendar != nil && r.name == "" {
		policies[0].name = r.calendar.unit
	}
	return policies
}

func (r FixedRule) words() []any {
	if r.calendar != nil && r.windows[0].ends == 0 {
		r = r.at(time.Now())
	}
	words := r.limits()
	if r.anchored {
		words = append(words, "ANCHORED")
	}
	if r.cost != -1 {
		words = append(words, "COST", r.cost)
	}
	return r.ending(words)
}

func (r FixedRule) held(cost int64, holder string, lease time.Duration) Reservable {
	r.reserve(cost, holder, lease)
	return r
}

// A ThrottleRule is a steady rate. See [Throttle].
type ThrottleRule struct {
	base
	burst, count, period int64
}

// Throttle is a steady rate with a burst: the generic cell rate algorithm, with the arguments of redis-cell's CL.THROTTLE. It
// takes one rate, of which a request comes back every window / limit. A window that is not whole seconds is scaled up to
// whole ones: "5/500ms" is 10 a second.
func Throttle(rate Rate, options ...ThrottleOption) (ThrottleRule, error) {
	windows, err := rate.windows()
	if err != nil {
		return ThrottleRule{}, err
	}
	if len(windows) != 1 {
		return ThrottleRule{}, invalid("a throttle takes one rate, not %d", len(windows))
	}
	limit, ms := windows[0].limit, windows[0].ms
	if limit == 0 {
		return ThrottleRule{}, invalid("the limit of a throttle must be from 1 to %d, not 0", int64(maxUnits))
	}
	scale := 1000 / gcd(ms, 1000)
	if ms*scale/1000 > maxSeconds {
		return ThrottleRule{}, invalid("the window of a throttle must be at most %d s in whole seconds, not %q", maxSeconds, rate)
	}
	rule := ThrottleRule{newBase(), limit - 1, limit * scale, ms * scale / 1000}
	for _, option := range options {
		option.throttle(&rule)
	}
	if limit > maxUnits/scale || rule.count/1_000_000_000 > rule.period || rule.count > rule.period*1_000_000_000 {
		rule.fail(invalid("the rate of a throttle must be at most one request a nanosecond, not %q", rate))
	}
	return rule, rule.err
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Cost is as of a [SlidingRule].
func (r ThrottleRule) Cost(units int64) ThrottleRule {
	r.weigh(units)
	return r
}

func (ThrottleRule) kind() string { return "THROTTLE" }
func (ThrottleRule) form() string { return "FULL" }
func (ThrottleRule) countable()   {}
func (ThrottleRule) givesTurns()  {}

func (r ThrottleRule) words() []any {
	words := []any{r.burst, r.count, r.period}
	if r.cost != -1 {
		words = append(words, r.cost)
	}
	return words
}

// The window is the time in which an empty bucket fills, which the server rounds up to milliseconds.
func (r ThrottleRule) policies() []policy {
	interval, ms := (r.period*1_000_000_000+r.count-1)/r.count, int64(maxUnits)
	if r.burst < (math.MaxInt64-999_999)/interval {
		ms = (interval*(r.burst+1) + 999_999) / 1_000_000
	}
	return []policy{{cmp.Or(r.name, seconds(ms)+"s"), r.burst + 1, ms, r.unit}}
}

func (r ThrottleRule) described() string {
	return fmt.Sprintf("throttle-%d-%d/%ds", r.burst, r.count, r.period)
}

// A LeaseRule limits how many hold something at a time. See [Lease].
type LeaseRule struct {
	base
	limit, ms int64
	holder    string
	// wanted says that a Hold or a Wait is under way or has the lease: a late reply to an earlier call by the same holder does not
	// end it. It is nil where the caller has named the holder, and may have renewed what it holds.
	wanted *atomic.Bool
}

// Lease is at most this number of holders at a time: concurrent requests, jobs, connections. A lease ends when it is released, or
// by itself after ttl (0.001 to 2147483647 seconds), so that a client that dies blocks nobody for longer. Acquiring again
// with the same holder renews it.
func Lease(limit int64, ttl time.Duration, options ...RuleOption) (LeaseRule, error) {
	if limit < 0 || limit > maxUnits {
		return LeaseRule{}, invalid("the limit must be an integer from 0 to %d, not %d", int64(maxUnits), limit)
	}
	ms, err := milliseconds(ttl, "the ttl of a lease")
	if err != nil {
		return LeaseRule{}, err
	}
	rule := LeaseRule{base: newBase(), limit: limit, ms: ms}
	for _, option := range options {
		option.common(&rule.base)
	}
	return rule, rule.err
}

// Holder is the lease of one holder. [Limiter.Acquire] and [Limiter.Hold] make a random name unless there is one.
func (r LeaseRule) Holder(name string) LeaseRule {
	if r.holder = name; name == "" {
		r.fail(invalid("the holder of a lease must have a name"))
	}
	return r
}

// heldBy is the lease with a holder.
func (r LeaseRule) heldBy() LeaseRule {
	r.holder, r.wanted = cmp.Or(r.holder, randomName()), &atomic.Bool{}
	return r
}

func (LeaseRule) kind() string   { return "ACQUIRE" }
func (LeaseRule) form() string   { return "FULL" }
func (r LeaseRule) words() []any { return []any{r.limit, seconds(r.ms), r.holder} }

func (r LeaseRule) check(least int64) error {
	if r.made && r.err == nil && r.holder == "" {
		return invalid("the lease needs a holder: give it one, or call Acquire or Hold")
	}
	return r.base.check(least)
}

func (r LeaseRule) policies() []policy {
	return []policy{{cmp.Or(r.name, seconds(r.ms)+"s"), r.limit, -1, cmp.Or(r.unit, "concurrent-requests")}}
}

func (r LeaseRule) described() string { return fmt.Sprintf("lease-%d/%ss", r.limit, seconds(r.ms)) }

// Must is the rule, and panics if there is an error: for rules that are constants of a program.
func Must[R Rule](rule R, err error) R {
	if err != nil {
		panic(err)
	}
	return rule
}
