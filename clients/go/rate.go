package redisrl

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxUnits   = 1<<53 - 1
	maxSeconds = 1<<31 - 1
	maxWindows = 16
)

// A Rate says how much is allowed in what time: "100/minute", "5 per 2 seconds", "100/15min", "200_000/day", and several
// joined by commas. The units are ms, second, minute, hour, day and week. A window is a whole number of milliseconds from
// 0.001 to 2147483647 seconds, a limit is an integer from 0 to 9007199254740991.
type Rate string

// Per is the rate of a limit in a time.
func Per(limit int64, window time.Duration) Rate {
	if window%time.Millisecond == 0 {
		return Rate(fmt.Sprintf("%d/%ss", limit, seconds(window.Milliseconds())))
	}
	return Rate(fmt.Sprintf("%d/%vms", limit, float64(window)/float64(time.Millisecond)))
}

// Rates joins several rates, of which a request has to fit into each.
func Rates(rates ...Rate) Rate {
	texts := make([]string, len(rates))
	for i, rate := range rates {
		texts[i] = string(rate)
	}
	return Rate(strings.Join(texts, ","))
}

// A window holds at most limit units in ms milliseconds. One of the calendar has 0 ms, and the unix time in ms at which it
// ends.
type window struct {
	limit int64
	ms    int64
	ends  int64
}

// seconds is the length as the commands take it, of a window of the calendar its end.
func (w window) seconds() string {
	if w.ends != 0 {
		return "@" + strconv.FormatInt(w.ends, 10)
	}
	return seconds(w.ms)
}

// seconds is a decimal number of seconds: 60, 0.25.
func seconds(ms int64) string {
	text := strconv.FormatInt(ms/1000, 10)
	if rest := ms % 1000; rest != 0 {
		text += strings.TrimRight(fmt.Sprintf(".%03d", rest), "0")
	}
	return text
}

var unitsOfTime = map[string]int64{
	"ms": 1, "millisecond": 1, "milliseconds": 1,
	"s": 1000, "sec": 1000, "secs": 1000, "second": 1000, "seconds": 1000,
	"m": 60_000, "min": 60_000, "mins": 60_000, "minute": 60_000, "minutes": 60_000,
	"h": 3_600_000, "hr": 3_600_000, "hrs": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
	"d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
	"w": 604_800_000, "week": 604_800_000, "weeks": 604_800_000,
}

// windows reads the windows of a rule, and sorts them.
func (r Rate) windows() ([]window, error) {
	var windows []window
	for part := range strings.SplitSeq(string(r), ",") {
		w, err := parseWindow(part)
		if err != nil {
			return nil, err
		}
		windows = append(windows, w)
	}
	if len(windows) > maxWindows {
		return nil, invalid("a rule has 1 to %d windows, not %d", maxWindows, len(windows))
	}
	slices.SortFunc(windows, func(a, b window) int { return cmp.Compare(a.ms, b.ms) })
	for i := range windows[1:] {
		if windows[i].ms == windows[i+1].ms {
			return nil, invalid("each window of a rule must have another length: %q", string(r))
		}
	}
	return windows, nil
}

// What a rate looks like: a limit, and how many units of time. White space is that of ASCII.
var (
	rateForm     = regexp.MustCompile(`^[\t-\r ]*(\d+(?:_\d+)*)` + per + `(?:(\d+)(?:\.(\d{1,3}))?[\t-\r ]*)?([A-Za-z]+)[\t-\r ]*$`)
	calendarForm = regexp.MustCompile(`^[\t-\r ]*(\d+(?:_\d+)*)` + per + `([A-Za-z]+)[\t-\r ]*$`)
)

const per = `(?:[\t-\r ]*/|[\t-\r ]+(?i:per)[\t-\r ])[\t-\r ]*`

func parseWindow(text string) (window, error) {
	found := rateForm.FindStringSubmatch(text)
	if found == nil || unitsOfTime[strings.ToLower(found[4])] == 0 {
		return window{}, invalid("a rate looks like \"100/minute\", \"10/s\" or \"5 per 2 hours\" (ms, second, minute, hour, day, week), not \"%s\"", text)
	}
	ms, err := lengthOf(found[2], found[3], unitsOfTime[strings.ToLower(found[4])])
	if err != nil {
		return window{}, invalid("the window must be from 0.001 to %d seconds, in whole milliseconds, not %q", maxSeconds, text)
	}
	units, err := parseLimit(found[1])
	return window{limit: units, ms: ms}, err
}

// parseLimit reads the digits of a limit.
func parseLimit(digits string) (int64, error) {
	units, err := strconv.ParseInt(strings.ReplaceAll(digits, "_", ""), 10, 64)
	if err != nil || units > maxUnits {
		return 0, invalid("the limit must be an integer from 0 to %d, not %s", int64(maxUnits), digits)
	}
	return units, nil
}

// lengthOf is a number times a unit of time, in milliseconds and without rounding.
func lengthOf(whole, fraction string, unit int64) (int64, error) {
	times, err := strconv.ParseInt(cmp.Or(whole, "1"), 10, 64)
	thousandths, _ := strconv.ParseInt((fraction + "000")[:3], 10, 64)
	exact := times*unit*1000 + thousandths*unit
	if err != nil || times > maxSeconds*1000/unit || exact%1000 != 0 || exact < 1000 || exact > maxSeconds*1_000_000 {
		return 0, strconv.ErrRange
	}
	return exact / 1000, nil
}

// milliseconds of a duration that the commands take.
func milliseconds(d time.Duration, what string) (int64, error) {
	if d < time.Millisecond || d > maxSeconds*time.Second || d%time.Millisecond != 0 {
		return 0, invalid("%s must be from 0.001 to %d seconds, in whole milliseconds, not %s", what, maxSeconds, d)
	}
	return d.Milliseconds(), nil
}
