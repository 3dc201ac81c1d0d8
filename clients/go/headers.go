package redisrl

import (
	"fmt"
	"strings"
	"time"
)

// The longest integer of a structured field.
const maxInteger = 999_999_999_999_999

// A Problem is the problem document of a denial (RFC 9457, application/problem+json).
type Problem struct {
	Type             string   `json:"type,omitempty"`
	Title            string   `json:"title"`
	Status           int      `json:"status"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

// An item is a policy with its state.
type item struct {
	policy
	state  *State // nil for a window that is not known.
	denied bool
}

// items are the policies of the answer, with names that differ.
func (r *Result) items() []item {
	var items []item
	if r.Results == nil {
		items = r.own()
	}
	for i := range r.Results {
		for _, each := range r.Results[i].own() {
			// A rule that is forced never denies.
			if forced, ok := r.Results[i].rule.(Reservable); ok && forced.isForced() {
				each.denied = false
			}
			items = append(items, each)
		}
	}
	taken := map[string]bool{}
	for i := range items {
		name := items[i].name
		for n := 2; taken[items[i].name]; n++ {
			items[i].name = fmt.Sprintf("%s-%d", name, n)
		}
		taken[items[i].name] = true
	}
	return items
}

func (r *Result) own() []item {
	policies := r.rule.policies()
	items := make([]item, len(policies))
	for i, policy := range policies {
		items[i].policy = policy
		for j := range r.Each {
			if len(policies) == 1 || r.Each[j].Window == duration(policy.windowMS) {
				items[i].state, items[i].denied = &r.Each[j], !r.Each[j].Allowed
			}
		}
	}
	return items
}

// Violated are the names of the policies that the request did not fit into.
func (r *Result) Violated() []string {
	var names []string
	for _, each := range r.items() {
		if each.denied {
			names = append(names, each.name)
		}
	}
	return names
}

// Headers are the HTTP fields RateLimit-Policy, RateLimit and, with a denial that can fit, Retry-After, after
// draft-ietf-httpapi-ratelimit-headers-11. A result that nobody has decided has no fields ([FromOpen]).
func (r *Result) Headers() map[string]string {
	headers := map[string]string{}
	if r.Source == FromOpen {
		return headers
	}
	if !r.Allowed && r.RetryAfter != Never {
		headers["Retry-After"] = fmt.Sprint(Seconds(r.RetryAfter))
	}
	var policies, limits []string
	for _, each := range r.items() {
		name := quoted(each.name)
		policy := fmt.Sprintf("%s;q=%d", name, min(each.limit, maxInteger))
		if each.unit != "" && each.unit != "requests" {
			policy += ";qu=" + quoted(each.unit)
		}
		if each.windowMS > 0 && each.windowMS%1000 == 0 {
			policy += fmt.Sprintf(";w=%d", each.windowMS/1000)
		}
		policies = append(policies, policy)
		if state := each.state; state != nil {
			limit := fmt.Sprintf("%s;r=%d", name, min(state.Remaining, maxInteger))
			if r.tells(state.NextAfter) {
				limit += fmt.Sprintf(";t=%d", Seconds(state.NextAfter))
			}
			limits = append(limits, limit)
		}
	}
	headers["RateLimit-Policy"] = strings.Join(policies, ", ")
	headers["RateLimit"] = strings.Join(limits, ", ")
	return headers
}

// tells says whether a time until more is free is worth a parameter: not if nothing is used, no more ever comes, or it is
// later than Retry-After.
func (r *Result) tells(next time.Duration) bool {
	if next == 0 || next == Never {
		return false
	}
	return r.Allowed || r.RetryAfter == Never || Seconds(next) <= Seconds(r.RetryAfter)
}

// Problem is the problem document of a denial; nil if the request was allowed.
func (r *Result) Problem() *Problem {
	if r.Allowed {
		return nil
	}
	return &Problem{
		Type:             "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:            "Request cannot be satisfied as assigned quota has been exceeded",
		Status:           429,
		ViolatedPolicies: r.Violated(),
	}
}

// quoted is a string of a structured field.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
