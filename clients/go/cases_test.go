package redisrl

// What all packages have in common, from ../cases.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"redis-rl.example/clients/go/internal/shorten"
)

// readCases reads a file of cases, and fails on a field that is not known here.
func readCases(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "cases", file))
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

type described struct {
	Kind     string
	Zone     *string
	Starts   *json.RawMessage
	Reserved *int64
	Rates    []any
	Rate     any
	Anchored bool
	Burst    *int64
	Limit    int64
	TTL      json.Number
	Holder   string
	Name     *string
	Unit     *string
	Cost     *int64
	Force    bool
}

// rate makes a rate of a case: a text, or a pair of a limit and seconds.
func rate(t *testing.T, given any) Rate {
	t.Helper()
	if text, ok := given.(string); ok {
		return Rate(text)
	}
	pair := given.([]any)
	limit, err := pair[0].(json.Number).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return Per(limit, secondsOf(t, pair[1].(json.Number)))
}

func secondsOf(t *testing.T, number json.Number) time.Duration {
	t.Helper()
	length, err := time.ParseDuration(number.String() + "s")
	if err != nil {
		t.Fatal(err)
	}
	return length
}

func rates(t *testing.T, given []any) Rate {
	t.Helper()
	var all []Rate
	for _, each := range given {
		all = append(all, rate(t, each))
	}
	return Rates(all...)
}

func (d described) rule(t *testing.T) (Rule, error) {
	t.Helper()
	var options []RuleOption
	if d.Name != nil {
		options = append(options, Name(*d.Name))
	}
	if d.Unit != nil {
		options = append(options, Unit(*d.Unit))
	}
	switch d.Kind {
	case "sliding":
		rule, err := Sliding(rates(t, d.Rates), options...)
		if d.Cost != nil {
			rule = rule.Cost(*d.Cost)
		}
		if d.Force {
			rule = rule.Force()
		}
		return rule, err
	case "fixed":
		var fixed []FixedOption
		for _, option := range options {
			fixed = append(fixed, option)
		}
		if d.Anchored {
			fixed = append(fixed, Anchored)
		}
		rule, err := Fixed(rates(t, d.Rates), fixed...)
		if d.Cost != nil {
			rule = rule.Cost(*d.Cost)
		}
		if d.Force {
			rule = rule.Force()
		}
		return rule, err
	case "throttle":
		var throttled []ThrottleOption
		for _, option := range options {
			throttled = append(throttled, option)
		}
		if d.Burst != nil {
			throttled = append(throttled, Burst(*d.Burst))
		}
		rule, err := Throttle(rate(t, d.Rate), throttled...)
		if d.Cost != nil {
			rule = rule.Cost(*d.Cost)
		}
		return rule, err
	case "lease":
		rule, err := Lease(d.Limit, secondsOf(t, d.TTL), options...)
		if d.Holder != "" {
			rule = rule.Holder(d.Holder)
		}
		return rule, err
	}
	if d.Kind == "calendar" {
		name, starts := "UTC", 1
		if d.Zone != nil {
			name = *d.Zone
		}
		zone, err := time.LoadLocation(name)
		if err != nil {
			return nil, err
		}
		if d.Starts != nil {
			if err := json.Unmarshal(*d.Starts, &starts); err != nil {
				t.Fatal(err)
			}
		}
		rule, err := Calendar(rate(t, d.Rate), zone, starts, options...)
		if d.Cost != nil {
			rule = rule.Cost(*d.Cost)
		}
		if d.Force {
			rule = rule.Force()
		}
		return rule, err
	}
	t.Fatalf("a rule of the kind %q is not known here", d.Kind)
	return nil, nil
}

func holdsAll(err error, texts []string) bool {
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			return false
		}
	}
	return true
}

func TestRates(t *testing.T) {
	var cases struct {
		About string
		Valid []struct {
			Rates   []any
			Windows [][2]int64
		}
		Invalid []struct {
			Rates []any
			Error []string
			Typed bool
		}
	}
	readCases(t, "rates.json", &cases)
	for _, c := range cases.Valid {
		windows, err := rates(t, c.Rates).windows()
		var found [][2]int64
		for _, each := range windows {
			found = append(found, [2]int64{each.limit, each.ms})
		}
		if err != nil || !reflect.DeepEqual(found, c.Windows) {
			t.Errorf("%q: %v, %v", c.Rates, found, err)
		}
	}
	for _, c := range cases.Invalid {
		// A rule of no rate at all does not compile.
		if c.Typed || len(c.Rates) == 0 {
			continue
		}
		_, err := Sliding(rates(t, c.Rates))
		if !holdsAll(err, c.Error) {
			t.Errorf("%q: %v", c.Rates, err)
		}
	}
}

type wordsCase struct {
	Call    string
	Key     *string
	Keys    []string
	Prefix  string
	Rule    *json.RawMessage
	Rules   []described
	Options struct {
		Cost    *json.Number
		Within  *int64 `json:"within_ms"`
		Timeout *int64 `json:"timeout_ms"`
		Force   bool
		AtMS    *int64 `json:"at_ms"`
		Holder  *string
		Holders []string
		Units   *json.Number
		Actual  *json.Number
		Lease   *json.Number
	}
	NowMS                                   int64 `json:"now_ms"`
	Words, Module, Functions, Script, Error []string
	Typed                                   bool
}

func (c wordsCase) now() time.Time {
	if c.NowMS == 0 {
		return time.Now()
	}
	return time.UnixMilli(c.NowMS)
}

func number(t *testing.T, n *json.Number) int64 {
	t.Helper()
	if n == nil {
		return 0
	}
	read, err := n.Int64()
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// keyed are the rules of a case about several keys.
func (c wordsCase) keyed(t *testing.T) ([]KeyedRule, error) {
	t.Helper()
	var rules []KeyedRule
	for i, d := range c.Rules {
		rule, err := d.rule(t)
		if err != nil {
			return nil, err
		}
		if d.Reserved != nil {
			rules = append(rules, Reserved(c.Keys[i], rule.(Reservable), *d.Reserved))
		} else {
			rules = append(rules, On(c.Keys[i], rule))
		}
	}
	return rules, nil
}

// reservation is the command of a case about one.
func (c wordsCase) reservation(t *testing.T, key string, rule Rule) (command, error) {
	t.Helper()
	lease := time.Minute
	if c.Options.Lease != nil {
		lease = secondsOf(t, *c.Options.Lease)
	}
	if c.Call == "reserve_all" {
		rules, err := c.keyed(t)
		if err != nil {
			return command{}, err
		}
		if rules, _, err = reserved(rules, lease, c.now()); err != nil {
			return command{}, err
		}
		return decisionCommand("all", c.Prefix, rules)
	}
	rules, parts, err := reserved([]KeyedRule{Reserved(key, rule.(Reservable), number(t, c.Options.Units))}, lease, c.now())
	switch {
	case err != nil:
		return command{}, err
	case c.Call == "reserve":
		return decisionCommand("hit", "", rules)
	}
	return settleCommand(key, parts[0].rule, number(t, c.Options.Actual))
}

func (c wordsCase) command(t *testing.T) (command, error) {
	t.Helper()
	key := c.Prefix
	if c.Key != nil {
		key += *c.Key
	}
	var rule Rule
	if c.Rule != nil {
		var d described
		decoder := json.NewDecoder(bytes.NewReader(*c.Rule))
		decoder.DisallowUnknownFields()
		decoder.UseNumber()
		if err := decoder.Decode(&d); err != nil {
			t.Fatalf("%s: %v", *c.Rule, err)
		}
		if c.Options.Cost != nil {
			cost, err := c.Options.Cost.Int64()
			if err != nil {
				t.Fatal(err)
			}
			d.Cost = &cost
		}
		d.Force = d.Force || c.Options.Force
		var err error
		if rule, err = d.rule(t); err != nil {
			return command{}, err
		}
	}
	if fixed, ok := rule.(FixedRule); ok && c.NowMS != 0 {
		rule = fixed.at(c.now())
	}
	switch c.Call {
	case "reserve", "reserve_all", "settle", "cancel":
		return c.reservation(t, key, rule)
	case "hit", "wait":
		if turns, ok := rule.(TurnRule); ok && c.Call == "wait" {
			rule = turn{turns, 0}
		}
		return decisionCommand("hit", "", []KeyedRule{On(key, rule)})
	case "turn":
		return decisionCommand("hit", "", []KeyedRule{On(key, turn{rule.(TurnRule), time.Duration(*c.Options.Within) * time.Millisecond})})
	case "peek":
		return decisionCommand("peek", "", []KeyedRule{On(key, rule)})
	case "all":
		rules, err := c.keyed(t)
		if err != nil {
			return command{}, err
		}
		return decisionCommand("all", c.Prefix, at(rules, c.now()))
	case "refund":
		var at time.Time
		if c.Options.AtMS != nil {
			at = time.UnixMilli(*c.Options.AtMS)
		}
		return refundCommand(key, rule.(Countable), at)
	case "reset":
		if rule == nil {
			return resetCommand(key, nil)
		}
		return resetCommand(key, []Rule{rule})
	case "acquire":
		lease := rule.(LeaseRule)
		if c.Options.Holder != nil {
			lease = lease.Holder(*c.Options.Holder)
		}
		return decisionCommand("hit", "", []KeyedRule{On(key, lease)})
	case "release":
		return releaseCommand(key, c.Options.Holders)
	}
	t.Fatalf("the call %q is not known here", c.Call)
	return command{}, nil
}

func (c command) text(mode Mode) []string {
	words, _ := c.sent(mode, false, true)
	texts := make([]string, len(words))
	for i, word := range words {
		texts[i] = strings.ReplaceAll(fmt.Sprint(word), digest, "SHA1")
		if i > 0 && words[i-1] == any("HOLD") && holders.MatchString(texts[i]) {
			texts[i] = "HOLDER"
		}
	}
	return texts
}

var holders = regexp.MustCompile("^[0-9a-f]{32}$")

type wordsCases struct {
	About                 string
	Valid, Modes, Invalid []wordsCase

	Reserve        []wordsCase
	ReserveModes   []wordsCase `json:"reserve_modes"`
	ReserveInvalid []wordsCase `json:"reserve_invalid"`

	Calendar        []wordsCase
	CalendarEnded   []wordsCase `json:"calendar_ended"`
	CalendarInvalid []wordsCase `json:"calendar_invalid"`
}

func (c wordsCases) all() []wordsCase { return slices.Concat(c.Valid, c.Reserve, c.Calendar) }

func TestWords(t *testing.T) {
	var cases wordsCases
	readCases(t, "words.json", &cases)
	for _, c := range cases.all() {
		command, err := c.command(t)
		if err != nil || !reflect.DeepEqual(command.text(Module), c.Words) {
			t.Errorf("%q: %q, %v", c.Words, command.text(Module), err)
		}
	}
	for _, c := range cases.CalendarEnded {
		rules := []KeyedRule{}
		if c.Call == "all" {
			rules, _ = c.keyed(t)
		} else {
			var d described
			if err := json.Unmarshal(*c.Rule, &d); err != nil {
				t.Fatal(err)
			}
			rule, err := d.rule(t)
			if err != nil {
				t.Fatal(err)
			}
			rules = append(rules, On(*c.Key, rule))
		}
		rules = at(rules, c.now())
		rules = at(rules, earliestEnd(rules))
		if command, err := decisionCommand(c.Call, "", rules); err != nil || !reflect.DeepEqual(command.text(Module), c.Words) {
			t.Errorf("%q: %q, %v", c.Words, command.text(Module), err)
		}
	}
	for _, c := range cases.CalendarInvalid {
		var d described
		decoder := json.NewDecoder(bytes.NewReader(*c.Rule))
		decoder.UseNumber()
		if err := decoder.Decode(&d); err != nil {
			t.Fatal(err)
		}
		// A zone is Go's own, of which an empty name is UTC.
		if c.Typed || d.Zone != nil && *d.Zone == "" {
			continue
		}
		if _, err := d.rule(t); !holdsAll(err, c.Error) {
			t.Errorf("%s: %v", *c.Rule, err)
		}
	}
	for _, c := range slices.Concat(cases.Modes, cases.ReserveModes) {
		command, err := c.command(t)
		if err != nil {
			t.Errorf("%q: %v", c.Module, err)
		}
		for mode, words := range map[Mode][]string{Module: c.Module, Functions: c.Functions, Script: c.Script} {
			if found := command.text(mode); !reflect.DeepEqual(found, words) {
				t.Errorf("%q: %q", words, found)
			}
			sent, first := command.sent(mode, false, true)
			if sent[first] != command.keys[0] {
				t.Errorf("%q: the first key is not at %d", words, first)
			}
		}
	}
	for _, c := range slices.Concat(cases.Invalid, cases.ReserveInvalid) {
		if c.Typed {
			continue
		}
		if _, err := c.command(t); !holdsAll(err, c.Error) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// plain makes of a reply of a case what go-redis makes of one.
func plain(t *testing.T, reply any) any {
	t.Helper()
	switch reply := reply.(type) {
	case json.Number:
		number, err := reply.Int64()
		if err != nil {
			t.Fatal(err)
		}
		return number
	case []any:
		items := []any{}
		for _, each := range reply {
			items = append(items, plain(t, each))
		}
		return items
	case map[string]any:
		items := map[any]any{}
		for name, each := range reply {
			items[name] = plain(t, each)
		}
		return items
	}
	return reply
}

// told writes a result as the cases do.
func told(r *Result) map[string]any {
	fields := toldState(r.State)
	var each []any
	for _, state := range r.Each {
		each = append(each, toldState(state))
	}
	if r.Results != nil {
		fields["index"] = float64(r.Index)
		each = nil
		for _, result := range r.Results {
			each = append(each, toldState(result.State))
		}
	}
	fields["each"] = each
	return fields
}

func toldState(s State) map[string]any {
	fields := map[string]any{
		"allowed": s.Allowed, "limit": float64(s.Limit), "used": float64(s.Used), "remaining": float64(s.Remaining),
		"window_ms": float64(s.Window.Milliseconds()), "at_ms": float64(s.At.UnixMilli()),
	}
	for name, wait := range map[string]time.Duration{"retry": s.RetryAfter, "next": s.NextAfter, "reset": s.ResetAfter} {
		fields[name+"_after"], fields[name+"_after_ms"] = nil, nil
		if wait != Never {
			fields[name+"_after"], fields[name+"_after_ms"] = float64(Seconds(wait)), float64(wait.Milliseconds())
		}
	}
	return fields
}

func normal(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var read any
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

func TestReplies(t *testing.T) {
	var cases struct {
		About           string
		Valid, Calendar []struct {
			Name, Call      string
			Rule            *described
			Rules           []described
			RESP2, RESP3    any
			Result, Problem any
			Headers         map[string]string
		}
		Settle []struct {
			Name   string
			Reply  any
			Result string
		}
		SettleInvalid []struct {
			Name  string
			Reply any
		} `json:"settle_invalid"`
		Numbers []struct {
			Name, Call    string
			Reply, Result any
		}
		Invalid []struct {
			Name, Call string
			Rule       *described
			Rules      []described
			Reply      any
		}
	}
	readCases(t, "replies.json", &cases)
	read := func(call string, rule *described, rules []described, reply any) (*Result, error) {
		if rule != nil {
			made, err := rule.rule(t)
			if err != nil {
				t.Fatal(err)
			}
			if call == "turn" {
				made = turn{made.(TurnRule), time.Minute}
			}
			return readRule(made, plain(t, reply))
		}
		var all []KeyedRule
		for _, each := range rules {
			made, err := each.rule(t)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, On("k", made))
		}
		return readAll(all, plain(t, reply))
	}
	for _, c := range cases.Settle {
		var argument *ArgumentError
		_, err := readSettlement(plain(t, c.Reply))
		if (c.Result == "done") != (err == nil) || (c.Result == "error") != errors.As(err, &argument) {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	for _, c := range cases.SettleInvalid {
		if _, err := readSettlement(plain(t, c.Reply)); err == nil || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	for _, c := range slices.Concat(cases.Valid, cases.Calendar) {
		for _, reply := range []any{c.RESP2, c.RESP3} {
			result, err := read(c.Call, c.Rule, c.Rules, reply)
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
				continue
			}
			told := told(result)
			if c.Call == "turn" {
				told["wait_ms"] = result.Wait.Milliseconds()
				for i, each := range told["each"].([]any) {
					each.(map[string]any)["wait_ms"] = result.Each[i].Wait.Milliseconds()
				}
			}
			if expected, found := normal(t, c.Result), normal(t, told); !reflect.DeepEqual(expected, found) {
				t.Errorf("%s: %v, and not %v", c.Name, found, expected)
			}
			if found := result.Headers(); !reflect.DeepEqual(found, c.Headers) {
				t.Errorf("%s: %v, and not %v", c.Name, found, c.Headers)
			}
			if expected, found := normal(t, c.Problem), normal(t, result.Problem()); !reflect.DeepEqual(expected, found) {
				t.Errorf("%s: %v, and not %v", c.Name, found, expected)
			}
		}
	}
	for _, c := range cases.Numbers {
		reply := plain(t, c.Reply)
		var found any
		switch c.Call {
		case "refund":
			refund, err := readRefund(reply)
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
				continue
			}
			found = map[string]any{"refunded": refund.Refunded, "used": refund.Used, "ttl": Seconds(refund.TTL)}
		default:
			number, err := readNumber(reply)
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
				continue
			}
			found = number
		}
		if expected := normal(t, c.Result); !reflect.DeepEqual(expected, normal(t, found)) {
			t.Errorf("%s: %v, and not %v", c.Name, found, expected)
		}
	}
	for _, c := range cases.Invalid {
		var err error
		switch c.Call {
		case "refund":
			_, err = readRefund(plain(t, c.Reply))
		case "release", "reset":
			_, err = readNumber(plain(t, c.Reply))
		default:
			_, err = read(c.Call, c.Rule, c.Rules, c.Reply)
		}
		if err == nil || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	// Told in a few words, however long it is.
	if _, err := readNumber(make([]any, 100_000)); err == nil || len(err.Error()) > 1000 {
		t.Errorf("%d bytes", len(err.Error()))
	}
}

func TestErrors(t *testing.T) {
	var cases struct {
		About string
		Lines []struct {
			Line                                 string
			Unavailable, Retry, Permanent, Probe bool
			Cluster                              *bool
		}
		Meanings []struct {
			Line  string
			Means *string
		}
	}
	readCases(t, "errors.json", &cases)
	for _, c := range cases.Meanings {
		means := map[bool]string{hasEnded(serverError(c.Line)): "ended", isSettled(serverError(c.Line)): "settled"}[true]
		if expected := c.Means; means != "" != (expected != nil) || expected != nil && *expected != means {
			t.Errorf("%q means %q", c.Line, means)
		}
	}
	for _, c := range cases.Lines {
		clusters := []bool{true, false}
		if c.Cluster != nil {
			clusters = []bool{*c.Cluster}
		}
		for _, cluster := range clusters {
			found := meaningOf(serverError(c.Line), cluster)
			expected := permanent
			switch {
			case c.Retry:
				expected = tryAgain
			case c.Unavailable:
				expected = refusesNow
			case c.Probe:
				expected = missing
			}
			if found != expected || c.Permanent != (found == permanent) {
				t.Errorf("%q, cluster %v: %v, and not %v", c.Line, cluster, found, expected)
			}
		}
	}
	// Servers that are no Redis, and proxies, have words of their own for a command that they do not know.
	for _, line := range []string{"ERR Command is not available: 'FCALL'. See the page", "ERR unsupported command 'rl.peek'"} {
		if found := meaningOf(serverError(line), false); found != missing || !isUnknownCommand(serverError(line)) {
			t.Errorf("%q: %v", line, found)
		}
	}
}

func TestCalendar(t *testing.T) {
	var cases struct {
		About string
		Zones map[string]map[string]json.RawMessage
	}
	readCases(t, "calendar.json", &cases)
	for name, units := range cases.Zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		var changes []int64
		if err := json.Unmarshal(units["changes"], &changes); err != nil {
			t.Fatal(err)
		}
		for unit, text := range units {
			if unit == "changes" {
				continue
			}
			var runs [][]int64
			if err := json.Unmarshal(text, &runs); err != nil {
				t.Fatal(err)
			}
			unit, from, found := strings.Cut(unit, ":")
			starts := 1
			if found {
				starts, _ = strconv.Atoi(from)
			}
			rule := Must(Calendar(Rate("5/"+unit), zone, starts))
			for _, run := range runs {
				begins := run[0] * 1000
				for _, minutes := range run[1:] {
					ends := begins + minutes*60_000
					times := []int64{begins, ends - 1}
					for _, change := range changes {
						for _, ms := range []int64{change*1000 - 1, change * 1000, change*1000 + 1} {
							if begins <= ms && ms < ends {
								times = append(times, ms)
							}
						}
					}
					for _, ms := range times {
						if found := rule.at(time.UnixMilli(ms)).windows[0].ends; found != ends {
							t.Fatalf("%s, %s from %d: the period of %d ends at %d, and not at %d", name, unit, starts, ms, found, ends)
						}
					}
					begins = ends
				}
			}
		}
	}
}

type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

func TestKeys(t *testing.T) {
	var cases struct {
		About string
		Keys  []struct {
			Rule        described
			Prefix      *string
			Identity    any
			Policy, Key string
		}
		Halves    []any // Texts of Go have none.
		Addresses []struct {
			Peer       *string
			Forwarded  []string
			Trusted    []string
			IPv6Prefix int `json:"ipv6_prefix"`
			Identity   *string
		}
		Calendar []struct {
			Rule                  described
			Identity, Policy, Key string
		}
		Invalid []struct {
			Trusted    []string
			IPv6Prefix *int `json:"ipv6_prefix"`
		}
	}
	readCases(t, "keys.json", &cases)
	for _, c := range cases.Keys {
		rule, err := c.Rule.rule(t)
		if err != nil {
			t.Fatal(err)
		}
		prefix := "rl:"
		if c.Prefix != nil {
			prefix = *c.Prefix
		}
		identity, isText := c.Identity.(string)
		if !isText {
			for _, part := range c.Identity.([]any) {
				times, _ := part.([]any)[1].(json.Number).Int64()
				identity += strings.Repeat(part.([]any)[0].(string), int(times))
			}
		}
		if policy, key := policyOf(rule), KeyFor(prefix, rule, identity); policy != c.Policy || key != c.Key {
			t.Errorf("%q, %q, and not %q, %q", policy, key, c.Policy, c.Key)
		}
	}
	for _, c := range cases.Calendar {
		rule, err := c.Rule.rule(t)
		if err != nil {
			t.Fatal(err)
		}
		if policy, key := policyOf(rule), KeyFor("rl:", rule, c.Identity); policy != c.Policy || key != c.Key {
			t.Errorf("%q, %q, and not %q, %q", policy, key, c.Policy, c.Key)
		}
	}
	for _, c := range cases.Addresses {
		addresses, err := NewAddresses(c.Trusted, c.IPv6Prefix)
		if err != nil {
			t.Fatal(err)
		}
		peer, expected := "", ""
		if c.Peer != nil {
			peer = *c.Peer
		}
		if c.Identity != nil {
			expected = *c.Identity
		}
		if found := addresses.Of(peer, c.Forwarded); found != expected {
			t.Errorf("%+v of %q: %q, and not %q", c, peer, found, expected)
		}
	}
	for _, c := range cases.Invalid {
		bits := 0
		// Where it is not given it is 64, so that 0 cannot be refused.
		if c.IPv6Prefix != nil {
			if bits = *c.IPv6Prefix; bits == 0 {
				continue
			}
		}
		if _, err := NewAddresses(c.Trusted, bits); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if found := new(Addresses).Of("[2001:db8::1]:80", nil); found != "2001:db8::/64" {
		t.Errorf("the zero value: %q", found)
	}
}

// What a user can meet without having chosen it. What only responses show is in the tests of httplimit.
func TestProxyAsADualStackSocketNamesIt(t *testing.T) {
	addresses := must(NewAddresses([]string{"::ffff:10.0.0.1"}, 0))
	if found := addresses.Of("10.0.0.1:4711", []string{"203.0.113.7"}); found != "203.0.113.7" {
		t.Error(found)
	}
}

func TestDefaults(t *testing.T) {
	ms := time.Duration.Milliseconds
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	var hooked []string
	limiter := must(New(client, Options{Hook: func(event Event) { hooked = event.Keys }}))
	guard := must(NewGuard(limiter, GuardOptions{}))
	prefixed := must(New(client, Options{Prefix: "p:", Hook: limiter.hook}))
	_, _ = prefixed.Hit(ctx, "k", Must(Sliding("1/s")))
	key := map[bool]string{true: "without the prefix"}[reflect.DeepEqual(hooked, []string{"k"})]
	holder := map[bool]string{true: holders.String()}[holders.MatchString(randomName())]
	mode := map[Mode]string{Auto: "auto"}[limiter.Mode()]
	result := resultOf(Must(Sliding("1/s")), []State{{RetryAfter: time.Second}})
	problem := result.Problem()
	var headers []string
	for name := range result.Headers() {
		headers = append(headers, name)
	}
	slices.Sort(headers)
	found := map[string]any{
		"limiter": map[string]any{
			"name": limiter.core.name, "prefix": limiter.prefix, "mode": mode, "timeout_ms": ms(limiter.core.timeout), "deny_cache": limiter.remembers,
		},
		"adapter": map[string]any{
			"prefix": guard.prefix, "timeout_ms": ms(guard.limiter.core.timeout), "when_unavailable": guard.fallback.policy,
			"ipv6_prefix": defaultIPv6Prefix, "deny_cache": guard.limiter.remembers,
		},
		"deny_cache": map[string]any{"entries": mostDenials, "bytes": mostBytes, "believed_at_most_ms": ms(longestDenial)},
		"identity":   map[string]any{"longest_bytes": shorten.Longest, "kept_bytes": shorten.Kept, "mark": shorten.Mark},
		// The second is played by TestACertificateThatFails.
		"breaker": map[string]any{"pause_ms": ms(breakerPause), "certificate_that_fails": "unavailable"},
		"local":   map[string]any{"counters": mostLocal},
		"mode":    map[string]any{"modes": []any{mode, Module, Functions, Script}, "probed_again_ms": ms(probeEvery)},
		"wait": map[string]any{
			"outage_poll_ms": ms(outagePoll), "turn_at_most_ms": ms(longestTurn), "last_call_share_of_timeout": 1.0 / lastCallShare,
		},
		"hold": map[string]any{
			"first_poll_ms": ms(firstPoll), "longest_poll_ms": ms(longestPoll), "outage_poll_ms": ms(outagePoll),
			"last_call_share_of_timeout": 1.0 / lastCallShare, "renewals_a_lease": renewals,
		},
		"reservation": map[string]any{
			"remembered_at_least_ms": ms(leastMemory), "renewals_a_lease": renewals, "holder": holder,
		},
		"hook":    map[string]any{"key": key},
		"headers": headers,
		"problem": map[string]any{"type": problem.Type, "title": problem.Title},
	}
	var expected map[string]any
	readCases(t, "defaults.json", &expected)
	delete(expected, "about")
	// TestLeavingACallUnderWay plays it.
	if leaves := fmt.Sprint(expected["caller_leaves"]); leaves != "map[hit:stays charged turn:given back]" {
		t.Errorf("a caller that leaves: %s", leaves)
	}
	delete(expected, "caller_leaves")
	adapter, reservation := expected["adapter"].(map[string]any), expected["reservation"].(map[string]any)
	delete(adapter, "status")
	delete(adapter, "without_identity")
	delete(expected["problem"].(map[string]any), "content_type")
	// A caller always says for how long.
	delete(reservation, "lease_ms")
	names := expected["headers"].([]any)
	slices.SortFunc(names, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	if expected, found := normal(t, expected), normal(t, found); !reflect.DeepEqual(expected, found) {
		t.Errorf("%v, and not %v", found, expected)
	}
}
