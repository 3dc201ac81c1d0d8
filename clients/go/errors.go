package redisrl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrUnavailable is what an error is, by [errors.Is], that means that the server cannot decide now, through no fault of the
// call: it is down, does not answer in time, is loading, busy, out of memory, or failing over. What follows is the
// caller's choice: let the request through, refuse it, or limit it in memory. All other errors do not pass by themselves.
var ErrUnavailable = errors.New("the server is unavailable")

// ErrLost is the cause of a context that ended because its lease did ([Held.Context], [Reservation.Context]).
var ErrLost = errors.New("the lease has ended")

// An ArgumentError says which argument is wrong, and what is accepted.
type ArgumentError struct{ text string }

func (e *ArgumentError) Error() string { return "redisrl: " + e.text }

func invalid(format string, args ...any) *ArgumentError {
	return &ArgumentError{fmt.Sprintf(format, args...)}
}

// A DeniedError is what [Limiter.Wait], [Limiter.Hold] and [Limiter.Reserve] return if the request does not fit. Nothing was counted.
type DeniedError struct {
	// Result is the answer; its RetryAfter says when to ask again.
	Result *Result
}

func (e *DeniedError) Error() string {
	if e.Result.RetryAfter == Never {
		return "redisrl: denied: it can never fit"
	}
	return fmt.Sprintf("redisrl: denied: it fits in %v", e.Result.RetryAfter)
}

var errPanicked = errors.New("the client panicked")

// An unanswered error is of a call that was sent, or may have been, and had no answer: the server may have carried it out.
type unanswered struct{ error }

func (e unanswered) Unwrap() error { return e.error }

func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("redisrl: %w: %w", ErrUnavailable, err)
}

// ended is the error of a call whose context has ended: at its deadline the server was unavailable to it.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return unavailable(ctx.Err())
	}
	return ctx.Err()
}

// unreadable is the error of a reply that is not one of ours. It is never taken for "allowed".
func unreadable(reply any) error {
	return fmt.Errorf("redisrl: the server's reply cannot be read: %.200s", fmt.Sprint(reply))
}

// A meaning is what follows from an error.
type meaning int

const (
	permanent  meaning = iota // The error is the caller's, and says nothing of the server.
	refusesNow                // The server cannot decide now, and has said so.
	lost                      // The connection broke or was not made: the call may have been counted.
	tryAgain                  // Nothing was counted, and the call is sent again.
	missing                   // The server does not have what the mode needs.
	crowded                   // This process had no connection for the call, which was not sent.
	gone                      // The caller has gone, or its hook panicked, which says nothing of the server.
)

var refusals = map[string]bool{
	"BUSY": true, "CLUSTERDOWN": true, "LOADING": true, "MASTERDOWN": true, "MISCONF": true, "NOREPLICAS": true, "OOM": true,
	"READONLY": true, "REDIRECT": true,
}

func meaningOf(err error, cluster bool) meaning {
	var reply redis.Error
	switch {
	case errors.As(err, &reply):
		return meaningOfLine(reply.Error(), cluster)
	case errors.Is(err, context.Canceled), errors.Is(err, errPanicked):
		return gone
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return crowded
	case errors.Is(err, redis.ErrClosed), strings.HasPrefix(err.Error(), "redis: can't parse"):
		return permanent
	}
	return lost
}

func meaningOfLine(line string, cluster bool) meaning {
	code, _, _ := strings.Cut(line, " ")
	switch {
	case code == "TRYAGAIN":
		return tryAgain
	case refusals[code], strings.HasPrefix(line, "ERR max number of clients"), cluster && (code == "MOVED" || code == "ASK"):
		return refusesNow
	case code == "NOSCRIPT", unknownCommand.MatchString(line), strings.HasPrefix(strings.ToLower(line), "err function not found"):
		return missing
	}
	return permanent
}

// hasEnded: the window of a calendar is over on the server's clock.
func hasEnded(err error) bool { return says(err, "ERR the window has ended") }

// isSettled: the holder of a reservation was settled.
func isSettled(err error) bool {
	return says(err, "ERR this hold is settled: a new request takes a new holder")
}

// says tells an error line, to which a server adds where in a script or a function it was raised.
func says(err error, line string) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	rest, found := strings.CutPrefix(reply.Error(), line)
	return found && (rest == "" || rest[0] == '.' || rest[0] == ' ')
}

// Servers that are no Redis, and proxies, have words of their own for a command that they do not know.
var unknownCommand = regexp.MustCompile(`(?i)^ERR .*(unknown command|unsupported command|command is not (available|supported))`)

func isUnknownCommand(err error) bool { return err != nil && unknownCommand.MatchString(err.Error()) }

// isUnsent says that no connection was made for a call.
func isUnsent(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

// isTimeout tells an answer that did not come from a connection that broke.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
