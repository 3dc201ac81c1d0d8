package redisrl

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const maxKeys = 64

// A library for FUNCTION LOAD and a script for EVALSHA, which have the same core.
var library, script = source("library"), source("script")

//go:embed lua
var lua embed.FS

func source(kind string) string {
	var text strings.Builder
	for _, part := range []string{kind + ".head", "core", kind + ".tail"} {
		embedded, _ := lua.ReadFile("lua/" + part + ".lua")
		text.Write(embedded)
	}
	return text.String()
}

var digest = fmt.Sprintf("%x", sha1.Sum([]byte(script)))

var versionLine = regexp.MustCompile(`-- Version \d+\b`)

// libraryVersion is the version that a function library says it has; 0 for one from before there were versions.
func libraryVersion(code string) int {
	version, _ := strconv.Atoi(strings.TrimPrefix(versionLine.FindString(code), "-- Version "))
	return version
}

// A KeyedRule is a rule at a key, for [Limiter.All]. See [On].
type KeyedRule struct {
	Key  string
	Rule Rule

	// reserved units, for ReserveAll.
	reserved   int64
	isReserved bool
}

// On is a rule at a key.
func On(key string, rule Rule) KeyedRule { return KeyedRule{Key: key, Rule: rule} }

// Reserved is a rule at a key that reserves units, for [Limiter.ReserveAll].
func Reserved(key string, rule Reservable, units int64) KeyedRule {
	return KeyedRule{key, rule, units, true}
}

// A command of the module, in the form that all modes share.
type command struct {
	name  string
	keys  []string
	words []any
	reads bool // It changes nothing.
	again bool // It may be sent again when its reply was lost.
}

func isLease(rule Rule) bool {
	_, ok := rule.(LeaseRule)
	return ok
}

func holdOf(rule Rule) *hold {
	switch rule := rule.(type) {
	case SlidingRule:
		return rule.hold
	case FixedRule:
		return rule.hold
	}
	return nil
}

// checked says what is wrong with a rule that somebody gave.
func checked(rule Rule, least int64) error {
	if rule == nil {
		return invalid("a rule is made by Sliding, Fixed, Throttle, Lease or Calendar, and not nil")
	}
	return rule.check(least)
}

// decisionCommand is that of a call that decides: RL.ALL, RL.PEEK, or the command of the rule.
func decisionCommand(call, prefix string, rules []KeyedRule) (command, error) {
	if len(rules) < 1 || len(rules) > maxKeys {
		return command{}, invalid("a call takes 1 to %d keys, not %d", maxKeys, len(rules))
	}
	var least int64
	isOwn := call != "all" && call != "peek"
	if isOwn {
		least = 1
	}
	made := command{name: strings.ToUpper(call), reads: call == "peek", again: call == "peek"}
	for _, each := range rules {
		if err := checked(each.Rule, least); err != nil {
			return command{}, err
		}
		if each.isReserved && holdOf(each.Rule) == nil {
			return command{}, invalid("units are reserved by ReserveAll")
		}
		made.keys = append(made.keys, prefix+each.Key)
		if isOwn {
			made.name = each.Rule.kind()
		} else {
			made.words = append(made.words, each.Rule.kind())
		}
		made.words = append(made.words, each.Rule.words()...)
		// By a holder the server knows that the call was carried out before. RL.ALL may count units beside a lease.
		made.again = made.again || holdOf(each.Rule) != nil || isOwn && isLease(each.Rule)
	}
	form := "FULL"
	if call != "all" {
		form = rules[0].Rule.form()
	}
	made.words = append(made.words, form)
	return made, nil
}

func refundCommand(key string, rule Countable, at time.Time) (command, error) {
	if err := checked(rule, 1); err != nil {
		return command{}, err
	}
	if fixed, ok := rule.(FixedRule); ok && !at.IsZero() {
		rule = fixed.at(at)
	}
	words := append([]any{rule.kind()}, rule.words()...)
	if ms := at.UnixMilli(); !at.IsZero() {
		if ms < 0 || ms > maxUnits {
			return command{}, invalid("the time of a refund must be from 0 to %d ms after 1970, and is %v", int64(maxUnits), at)
		}
		words = append(words, "AT", ms)
	}
	return command{"REFUND", []string{key}, words, false, false}, nil
}

func settleCommand(key string, rule Reservable, actual int64) (command, error) {
	if err := checkActual(actual); err != nil {
		return command{}, err
	}
	words := append([]any{rule.kind()}, rule.words()...)
	return command{"SETTLE", []string{key}, append(words, "ACTUAL", actual), false, true}, nil
}

func checkActual(actual ...int64) error {
	for _, units := range actual {
		if units < 0 || units > maxUnits {
			return invalid("the actual units must be from 0 to %d, not %d", int64(maxUnits), units)
		}
	}
	return nil
}

func resetCommand(key string, rules []Rule) (command, error) {
	var words []any
	for _, rule := range rules {
		if lease, ok := rule.(LeaseRule); ok {
			rule = lease.heldBy()
		}
		if err := checked(rule, 0); err != nil {
			return command{}, err
		}
		if fixed, ok := rule.(FixedRule); ok {
			if fixed.windows[0].ends == 0 {
				fixed = fixed.at(time.Now())
			}
			for _, each := range fixed.windows {
				if length := any(each.seconds()); !slices.Contains(words, length) {
					words = append(words, length)
				}
			}
		}
	}
	if words != nil {
		// A hold that stayed would later give back units of requests that came after the reset.
		words = append(words, "HOLD")
	}
	return command{"RESET", []string{key}, words, false, true}, nil
}

func releaseCommand(key string, holders []string) (command, error) {
	if len(holders) == 0 || slices.Contains(holders, "") {
		return command{}, invalid("Release needs a holder, and each of them a name")
	}
	words := make([]any, len(holders))
	for i, holder := range holders {
		words[i] = holder
	}
	return command{"RELEASE", []string{key}, words, false, true}, nil
}

// sent is the command for a server of this mode, and the position of its first key. With whole, the script itself goes and
// not its digest. readOnly says of a script that only reads that it does, which replicas want to hear, and which Redis 6.2
// does not know.
func (c command) sent(mode Mode, whole, readOnly bool) ([]any, int8) {
	var words []any
	switch mode {
	case Functions:
		name := "FCALL"
		if c.reads {
			name = "FCALL_RO"
		}
		words = []any{name, "rl_" + strings.ToLower(c.name), len(c.keys)}
	case Script:
		suffix := ""
		if c.reads && readOnly {
			suffix = "_RO"
		}
		words = []any{"EVALSHA" + suffix, digest, len(c.keys)}
		if whole {
			words = []any{"EVAL" + suffix, script, len(c.keys)}
		}
	default:
		words = []any{"RL." + c.name}
		if c.name == "ALL" {
			words = append(words, len(c.keys))
		}
	}
	first := int8(len(words))
	for _, key := range c.keys {
		words = append(words, key)
	}
	// The script is one for all commands, and its first argument the command's name.
	if mode == Script {
		words = append(words, strings.ToLower(c.name))
	}
	return append(words, c.words...), first
}

// A once is a command that go-redis does not send again, whatever the client's MaxRetries: the call may have been counted.
type once struct {
	*redis.Cmd
	isWritten *atomic.Bool
}

// The key of the values of contexts by which a call hears that a command of it is written.
type written struct{}

func newOnce(ctx context.Context, words ...any) *once {
	isWritten, isKnown := ctx.Value(written{}).(*atomic.Bool)
	if !isKnown {
		isWritten = new(atomic.Bool)
	}
	return &once{redis.NewCmd(ctx, words...), isWritten}
}

func (*once) NoRetry() bool { return true }

// Args is what go-redis writes, when there is a connection. (A hook may ask for them before.)
func (o *once) Args() []any {
	o.isWritten.Store(true)
	return o.Cmd.Args()
}

// randomName is a holder that is nobody else's.
func randomName() string {
	var bytes [16]byte
	_, _ = rand.Read(bytes[:]) // It never fails.
	return fmt.Sprintf("%x", bytes)
}
