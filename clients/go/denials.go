package redisrl

import (
	"container/list"
	"sync"
	"time"
)

const (
	longestDenial = time.Second // For how long a denial is remembered at most.
	// How many are remembered at most, and how many bytes they take, by what is counted of each.
	mostDenials, mostBytes = 10_000, 4 << 20
	bytesOfDenial          = 256
	bytesOfRule            = 256
	bytesOfState           = 128
)

// denials are those of a guard's last second, by key. A key belongs to one rule, and its length is bounded.
type denials struct {
	mu    sync.Mutex
	known map[string]*list.Element
	order *list.List // The youngest is at its end.
	bytes int
}

type denial struct {
	rules  []KeyedRule
	result *Result
	since  time.Time
	until  time.Time
	bytes  int
}

func newDenials() *denials {
	return &denials{known: map[string]*list.Element{}, order: list.New()}
}

func isForced(rule Rule) bool {
	forced, ok := rule.(Reservable)
	return ok && forced.isForced()
}

// find is the denial of the same or a heavier request, as it would be answered now.
func (d *denials) find(rules []KeyedRule) *Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, each := range rules {
		element := d.known[each.Key]
		if element == nil {
			continue
		}
		found := element.Value.(*denial)
		switch now := time.Now(); {
		case !now.Before(found.until):
			d.remove(each.Key)
		case found.covers(rules):
			return found.result.later(now.Sub(found.since)).from(FromMemory)
		}
	}
	return nil
}

// covers says whether a request is as heavy as the one that was denied.
func (d *denial) covers(rules []KeyedRule) bool {
	if len(rules) != len(d.rules) {
		return false
	}
	for i, each := range rules {
		denied, cost := d.rules[i], each.Rule.options().weight()
		least := denied.Rule.options().weight()
		if isForced(each.Rule) || each.Key != denied.Key || each.Rule.described() != denied.Rule.described() {
			return false
		}
		// One that never fits is not told to wait.
		if i == d.result.Index && cost != least && (cost < least || cost > leastLimit(each.Rule)) {
			return false
		}
	}
	return true
}

func leastLimit(rule Rule) int64 {
	least := int64(maxUnits)
	for _, policy := range rule.policies() {
		least = min(least, policy.limit)
	}
	return least
}

// remember keeps a denial. It ends by when it was asked for, which is not later than it was decided. The waits that are
// told of it count from now, which is not earlier, so that none of them is too short.
func (d *denials) remember(rules []KeyedRule, result *Result, askedAt time.Time) {
	// A holder may have a lease already, and is then let in whatever the limit.
	if isLease(rules[result.Index].Rule) {
		return
	}
	until := askedAt.Add(min(result.RetryAfter, longestDenial))
	entry := &denial{rules: rules, result: result, since: time.Now(), until: until, bytes: bytesOfDenial}
	for _, each := range rules {
		if isForced(each.Rule) {
			return
		}
		entry.bytes += bytesOfRule + len(each.Key) + bytesOfState*len(each.Rule.policies())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := rules[result.Index].Key
	d.remove(key)
	d.known[key] = d.order.PushBack(entry)
	d.bytes += entry.bytes
	for d.order.Len() > mostDenials || d.bytes > mostBytes {
		oldest := d.order.Front().Value.(*denial)
		d.remove(oldest.rules[oldest.result.Index].Key)
	}
}

// forget is for a key of which something was given back.
func (d *denials) forget(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(key)
}

func (d *denials) remove(key string) {
	if element := d.known[key]; element != nil {
		d.bytes -= d.order.Remove(element).(*denial).bytes
		delete(d.known, key)
	}
}
