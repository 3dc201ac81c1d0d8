package redisrl

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// calendar is what a window of the calendar is made of.
type calendar struct {
	unit   string
	zone   *time.Location
	starts int
}

// the longest start of each unit, which begins at 1.
var mostStarts = map[string]int{"day": 1, "week": 7, "month": 31, "year": 12}

// Calendar is a fixed window of the calendar: a limit a "day", "week", "month" or "year", such as "5_000_000/month", in a
// time zone (UTC where it is nil). It starts at 1 unless it is above: the day of a month (1 to 31, of a month that is too
// short its last), the day of a week (1, Monday, to 7), or the month of a year. Windows go by the clocks of the processes
// that ask.
func Calendar(rate Rate, zone *time.Location, starts int, options ...RuleOption) (FixedRule, error) {
	limit, unit, err := rate.calendar()
	if err != nil {
		return FixedRule{}, err
	}
	if zone == nil {
		zone = time.UTC
	}
	if zone == time.Local {
		return FixedRule{}, invalid("the zone of a calendar must have a name: use time.LoadLocation, and not time.Local")
	}
	if starts < 1 || starts > mostStarts[unit] {
		return FixedRule{}, invalid("starts must be from 1 to %d for a %s, not %d", mostStarts[unit], unit, starts)
	}
	rule := FixedRule{windowed: windowed{base: newBase(), windows: []window{{limit: limit}}}, calendar: &calendar{unit, zone, starts}}
	for _, option := range options {
		option.common(&rule.base)
	}
	return rule, rule.err
}

// calendar reads a limit and a unit of the calendar.
func (r Rate) calendar() (limit int64, unit string, err error) {
	if found := calendarForm.FindStringSubmatch(string(r)); found != nil {
		unit = strings.TrimSuffix(strings.ToLower(found[2]), "s")
		limit, err = parseLimit(found[1])
	}
	if mostStarts[unit] == 0 {
		err = invalid("the rate of a calendar looks like \"1000/day\", with day, week, month or year, not \"%s\"", strings.TrimSpace(string(r)))
	}
	return limit, unit, err
}

func (c *calendar) described(limit int64) string {
	text := fmt.Sprintf("calendar-%d/%s %s", limit, c.unit, c.zone)
	if c.starts != 1 {
		text += fmt.Sprintf(" %d", c.starts)
	}
	return text
}

// end is when the period ends in which a time lies: where the next one begins.
func (c *calendar) end(at time.Time) time.Time {
	local := at.In(c.zone)
	year, month, day := local.Date()
	var next func(n int) time.Time
	switch c.unit {
	case "day":
		next = func(n int) time.Time { return c.begins(year, month, day+n) }
	case "week":
		monday := day - (int(local.Weekday())+6)%7
		next = func(n int) time.Time { return c.begins(year, month, monday+c.starts-1+7*(n-1)) }
	case "month":
		next = func(n int) time.Time {
			first := time.Date(year, month+time.Month(n-1), 1, 0, 0, 0, 0, time.UTC)
			return c.begins(first.Year(), first.Month(), min(c.starts, first.AddDate(0, 1, -1).Day()))
		}
	default:
		next = func(n int) time.Time { return c.begins(year+n-1, time.Month(c.starts), 1) }
	}
	for n := 0; ; n++ {
		if begins := next(n); begins.After(at) {
			return begins
		}
	}
}

// begins is the first moment of a local day. There may be no midnight, or two of them.
func (c *calendar) begins(year int, month time.Month, day int) time.Time {
	noon := time.Date(year, month, day, 12, 0, 0, 0, c.zone)
	isThatDay := func(t time.Time) bool {
		y, m, d := t.In(c.zone).Date()
		return y == noon.Year() && m == noon.Month() && d == noon.Day()
	}
	// A day is not longer than 26 hours, and begins not later than at 3 in the morning.
	from, to := noon.Add(-16*time.Hour).Unix(), noon.Unix()
	for to-from > 1 {
		if middle := (from + to) / 2; isThatDay(time.Unix(middle, 0)) {
			to = middle
		} else {
			from = middle
		}
	}
	return time.Unix(to, 0)
}

// at is the rule with the period in which a time lies.
func (r FixedRule) at(t time.Time) FixedRule {
	if r.calendar != nil && r.made {
		r.windows = slices.Clone(r.windows)
		r.windows[0].ends = r.calendar.end(t).UnixMilli()
	}
	return r
}

// at are the rules with the periods of calendars in which a time lies.
func at(rules []KeyedRule, t time.Time) []KeyedRule {
	rules = slices.Clone(rules)
	for i, each := range rules {
		if fixed, ok := each.Rule.(FixedRule); ok {
			rules[i].Rule = fixed.at(t)
		}
	}
	return rules
}

// earliestEnd is that of the calendars among some rules; zero without a calendar.
func earliestEnd(rules []KeyedRule) (earliest time.Time) {
	for _, each := range rules {
		if fixed, ok := each.Rule.(FixedRule); ok && fixed.calendar != nil {
			if end := time.UnixMilli(fixed.windows[0].ends); earliest.IsZero() || end.Before(earliest) {
				earliest = end
			}
		}
	}
	return earliest
}

// isHeld says whether some rules are those of a reservation.
func isHeld(rules []KeyedRule) bool {
	return slices.ContainsFunc(rules, func(each KeyedRule) bool { return holdOf(each.Rule) != nil })
}
