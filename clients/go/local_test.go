package redisrl

import (
	"testing"
	"time"
)

func TestLocal(t *testing.T) {
	memory := newLocal(2)
	for name, rule := range map[string]Rule{
		"sliding":  Must(Sliding("4/hour, 9/day")),
		"calendar": Must(Calendar("5/month", nil, 1)),
		"throttle": Must(Throttle("4/hour")),
	} {
		for i := range 3 {
			result := memory.decide([]KeyedRule{On(name, rule)})
			if result.Allowed != (i < 2) || result.Source != FromLocal || !result.Allowed && (result.RetryAfter <= 0 || result.RetryAfter == Never) {
				t.Errorf("%s, %d: %+v", name, i, result)
			}
		}
	}
	lease := Must(Lease(2, time.Minute))
	if first := memory.decide([]KeyedRule{On("lease", lease.Holder("a"))}); !first.Allowed {
		t.Errorf("%+v", first)
	}
	if second := memory.decide([]KeyedRule{On("lease", lease.Holder("b"))}); second.Allowed {
		t.Errorf("%+v", second)
	}
	memory.release("lease", lease.Holder("a"))
	if second := memory.decide([]KeyedRule{On("lease", lease.Holder("b"))}); !second.Allowed {
		t.Errorf("%+v", second)
	}
	// All or none.
	both := []KeyedRule{On("one", Must(Sliding("9/hour"))), On("lease", lease.Holder("c"))}
	if denied := memory.decide(both); denied.Allowed || denied.Index != 1 {
		t.Errorf("%+v", denied)
	}
	if one := memory.decide(both[:1]); one.Used != 1 {
		t.Errorf("%+v", one)
	}
	if never := memory.decide([]KeyedRule{On("heavy", Must(Sliding("8/hour")).Cost(5))}); never.RetryAfter != Never {
		t.Errorf("%+v", never)
	}
}
