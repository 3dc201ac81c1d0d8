package redisrl

import (
	"fmt"
	"testing"
	"time"
)

func TestLocal(t *testing.T) {
	memory := &local{processes: 2, counters: map[string]*counter{}}
	decide := func(rules ...KeyedRule) *Result { return memory.decide(rules) }
	for name, rule := range map[string]Rule{
		"sliding":  Must(Sliding("4/hour, 9/day")),
		"calendar": Must(Calendar("5/month", nil, 1)),
		"throttle": Must(Throttle("4/hour")),
	} {
		for i := range 3 {
			result := decide(On(name, rule))
			if result.Allowed != (i < 2) || !result.Allowed && (result.RetryAfter <= 0 || result.RetryAfter == Never) {
				t.Errorf("%s, %d: %+v", name, i, result)
			}
		}
	}
	// Places are not counted.
	lease := On("lease", Must(Lease(2, time.Minute)).Holder("a"))
	for range 5 {
		if result := decide(lease); !result.Allowed || result.Limit != 1 {
			t.Errorf("%+v", result)
		}
	}
	// All or none.
	both := []KeyedRule{On("one", Must(Sliding("9/hour"))), On("throttle", Must(Throttle("4/hour")))}
	if denied := memory.decide(both); denied.Allowed || denied.Index != 1 {
		t.Errorf("%+v", denied)
	}
	if one := memory.decide(both[:1]); one.Used != 1 {
		t.Errorf("%+v", one)
	}
	for i := range 2 * mostLocal {
		decide(On(fmt.Sprint("flood", i), Must(Sliding("9/hour"))))
	}
	if known := len(memory.counters); known != mostLocal {
		t.Errorf("%d counters are kept", known)
	}
	if never := decide(On("heavy", Must(Sliding("8/hour")).Cost(5))); never.RetryAfter != Never {
		t.Errorf("%+v", never)
	}
}
