package redisrl

import (
	"fmt"
	"testing"
)

type localCase struct {
	Name      string
	Processes int64
	Steps     []struct {
		Rules []struct {
			Key string
			described
		}
		Times  int
		Result struct {
			Allowed bool
			Index   int
			Retry   string
			Each    []struct {
				Allowed     bool
				Limit, Used int64
			}
		}
	}
}

func TestLocal(t *testing.T) {
	var file struct {
		About string
		Cases []localCase
	}
	readCases(t, "local.json", &file)
	for _, each := range file.Cases {
		t.Run(each.Name, func(t *testing.T) {
			memory := &local{processes: each.Processes, counters: map[string]*counter{}}
			for at, step := range each.Steps {
				var rules []KeyedRule
				for _, described := range step.Rules {
					rules = append(rules, On(described.Key, must(described.rule(t))))
				}
				for range max(step.Times, 1) {
					result := memory.decide(rules)
					retry := "later"
					if result.RetryAfter == 0 {
						retry = "none"
					} else if result.RetryAfter == Never {
						retry = "never"
					}
					expected := step.Result
					if result.Allowed != expected.Allowed || retry != expected.Retry || result.Index != expected.Index {
						t.Errorf("step %d: %+v", at, result)
					}
					states := result.Results
					if states == nil {
						states = []Result{*result}
					}
					for i, state := range expected.Each {
						found := states[i]
						if found.Allowed != state.Allowed || found.Limit != state.Limit || found.Used != state.Used {
							t.Errorf("step %d, rule %d: %+v", at, i, found)
						}
					}
				}
			}
		})
	}
}

func TestLocalForgets(t *testing.T) {
	memory := &local{processes: 2, counters: map[string]*counter{}}
	for i := range 2 * mostLocal {
		memory.decide([]KeyedRule{On(fmt.Sprint("flood", i), Must(Sliding("9/hour")))})
	}
	if known := len(memory.counters); known != mostLocal {
		t.Errorf("%d counters are kept", known)
	}
}
