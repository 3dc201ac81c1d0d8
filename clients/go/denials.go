package redisrl

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"sync"
	"time"
)

const (
	// For how long a denial is remembered at most.
	longestDenial = time.Second
	// Keys that are longer are remembered by a digest.
	longestKey = 64
	// How many are remembered at most, and how many bytes they take, by what is counted of each.
	mostDenials, mostBytes = 10_000, 4 << 20
	bytesOfDenial          = 256
	bytesOfRule            = 192
	bytesOfState           = 96
)

// denials are the denials of the last second, by key. A key belongs to one rule.
type denials struct {
	mu    sync.Mutex
	known map[string]*list.Element
	// order has the youngest at its end.
	order *list.List
	bytes int
}

type denial struct {
	keys    []string
	asked   []asked
	binding int
	until   time.Time
	since   time.Time
	result  *Result
	bytes   int
}

// asked is what a denied rule was.
type asked struct {
	rule string
	cost int64
}

func newDenials() *denials {
	return &denials{known: map[string]*list.Element{}, order: list.New()}
}

func short(key string) string {
	if len(key) <= longestKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return string(sum[:])
}

func shortKeys(rules []KeyedRule) []string {
	keys := make([]string, len(rules))
	for i, each := range rules {
		keys[i] = short(each.Key)
	}
	return keys
}

func isForced(rule Rule) bool {
	forced, ok := rule.(Reservable)
	return ok && forced.isForced()
}

// find is the denial of the same or a lighter request, as it would be answered now.
func (d *denials) find(rules []KeyedRule) *Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) == 0 {
		return nil
	}
	keys := shortKeys(rules)
	for _, key := range keys {
		element := d.known[key]
		if element == nil {
			continue
		}
		found := element.Value.(*denial)
		switch now := time.Now(); {
		case !now.Before(found.until):
			d.remove(key)
		case slices.Equal(keys, found.keys) && found.covers(rules):
			return found.result.later(now.Sub(found.since)).from(FromMemory)
		}
	}
	return nil
}

// covers says whether a request is as heavy as the one that was denied.
func (d *denial) covers(rules []KeyedRule) bool {
	for i, each := range rules {
		denied, cost := d.asked[i], each.Rule.options().weight()
		if isForced(each.Rule) || each.Rule.described() != denied.rule {
			return false
		}
		if i != d.binding || cost == denied.cost {
			continue
		}
		// One that never fits is not told to wait.
		if cost < denied.cost || cost > leastLimit(each.Rule) {
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
	entry := &denial{
		keys: shortKeys(rules), binding: result.Index, result: result, since: time.Now(),
		until: askedAt.Add(min(result.RetryAfter, longestDenial)), bytes: bytesOfDenial,
	}
	for i, each := range rules {
		if isForced(each.Rule) {
			return
		}
		rule := asked{each.Rule.described(), each.Rule.options().weight()}
		entry.asked = append(entry.asked, rule)
		entry.bytes += bytesOfRule + len(entry.keys[i]) + len(rule.rule) + bytesOfState*len(each.Rule.policies())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := entry.keys[result.Index]
	d.remove(key)
	d.known[key] = d.order.PushBack(entry)
	d.bytes += entry.bytes
	for d.order.Len() > mostDenials || d.bytes > mostBytes {
		oldest := d.order.Front().Value.(*denial)
		d.remove(oldest.keys[oldest.binding])
	}
}

// forget is for a key of which something was given back.
func (d *denials) forget(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(short(key))
}

func (d *denials) remove(key string) {
	if element := d.known[key]; element != nil {
		d.bytes -= d.order.Remove(element).(*denial).bytes
		delete(d.known, key)
	}
}
