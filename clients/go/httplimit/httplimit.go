// Package httplimit limits the requests of net/http handlers.
//
// It asks the limiter before the handler sees a request. An allowed one is passed on, and its response gets the fields
// RateLimit-Policy and RateLimit. A denied one is answered with status 429, these fields, Retry-After, and a problem document
// of the type quota-exceeded.
package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	redisrl "redis-rl.example/clients/go"
)

// Options of the middleware. One of Rule, RuleFor and LimitsFor has to be given.
type Options struct {
	redisrl.GuardOptions
	// Rule is the limit of each request.
	Rule redisrl.Rule
	// RuleFor is the limit of a request, where they differ; nil for a request without a limit.
	RuleFor func(*http.Request) redisrl.Rule
	// LimitsFor are several limits of a request in one decision, in place of a rule and Key. Without any it is not limited.
	LimitsFor func(*http.Request) []redisrl.Limit
	// Key is who is limited: the client's address unless given, see TrustedProxies. Empty for a request without an identity.
	Key func(*http.Request) string
	// Route is the template of a request's route, of which a rule without a name is a limit of its own. Unless given it is the
	// pattern of [http.ServeMux] with the prefixes that [http.StripPrefix] has removed; other routers have theirs.
	Route func(*http.Request) string
	// TrustedProxies are addresses and networks ("10.0.0.0/8") of your proxies, whose X-Forwarded-For is believed: it is read
	// from right to left, up to the first address that is not one of them.
	TrustedProxies []string
	// IPv6Prefix is how many bits of an IPv6 address count: 64 unless given.
	IPv6Prefix int
	// AllowWithoutIdentity lets requests without an identity through. Unless given they are refused with status 403. They never
	// share a quota.
	AllowWithoutIdentity bool
	// OnDenied answers a denied request, whose header fields are set, in place of the problem document.
	OnDenied func(http.ResponseWriter, *http.Request, *redisrl.Decision)
	// OnError answers a request that could not be decided: with status 503 where the server is unavailable and the policy is
	// Closed ([redisrl.ErrUnavailable]), with 500 for errors that do not pass by themselves, such as missing permissions, for
	// which no request is let through. The default tells the client no more than that.
	OnError func(http.ResponseWriter, *http.Request, error)
}

type contextKey struct{}

// From is the decision on a request that the middleware has let through; nil if it was not limited.
func From(ctx context.Context) *redisrl.Decision {
	decision, _ := ctx.Value(contextKey{}).(*redisrl.Decision)
	return decision
}

// New is a middleware. A lease is held, and renewed, until the handler has returned.
//
// Around a handler of a [http.ServeMux] a rule without a name is a limit of that pattern alone, where it is mounted: /item/1
// and /item/2 of "/item/{id}" are one limit. A rule with a name is one limit for all handlers that use the name. Around the
// whole mux a rule is one limit for all requests.
func New(limiter *redisrl.Limiter, options Options) (func(http.Handler) http.Handler, error) {
	guard, err := redisrl.NewGuard(limiter, options.GuardOptions)
	if err != nil {
		return nil, err
	}
	addresses, err := redisrl.NewAddresses(options.TrustedProxies, options.IPv6Prefix)
	if err != nil {
		return nil, err
	}
	if options.Rule != nil {
		if options.RuleFor != nil {
			return nil, errors.New("httplimit: Rule and RuleFor are both given")
		}
		options.RuleFor = func(*http.Request) redisrl.Rule { return options.Rule }
	}
	if (options.RuleFor == nil) == (options.LimitsFor == nil) {
		return nil, errors.New("httplimit: one of Rule, RuleFor and LimitsFor has to be given")
	}
	if options.Key == nil {
		options.Key = func(r *http.Request) string { return addresses.Of(r.RemoteAddr, r.Header.Values("X-Forwarded-For")) }
	}
	if options.Route == nil {
		options.Route = route
	}
	if options.LimitsFor == nil {
		options.LimitsFor = func(r *http.Request) []redisrl.Limit {
			rule := options.RuleFor(r)
			if rule == nil {
				return nil
			}
			return []redisrl.Limit{{Identity: options.Key(r), Rule: rule, Route: options.Route(r)}}
		}
	}
	if options.OnError == nil {
		options.OnError = onError
	}
	if options.OnDenied == nil {
		options.OnDenied = func(w http.ResponseWriter, _ *http.Request, decision *redisrl.Decision) {
			writeProblem(w, decision.Problem())
		}
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			serve(w, r, next, guard, &options)
		})
	}, nil
}

// route tells the same pattern of two muxes that are mounted under different prefixes apart.
func route(r *http.Request) string {
	if asked, err := url.ParseRequestURI(r.RequestURI); err == nil && r.Pattern != "" {
		if mount, isMounted := strings.CutSuffix(asked.Path, r.URL.Path); isMounted && mount != "" {
			return mount + " " + r.Pattern
		}
	}
	return r.Pattern
}

func serve(w http.ResponseWriter, r *http.Request, next http.Handler, guard *redisrl.Guard, options *Options) {
	var limits []redisrl.Limit
	for _, limit := range options.LimitsFor(r) {
		switch {
		case limit.Identity != "":
			limits = append(limits, limit)
		case !options.AllowWithoutIdentity:
			writeProblem(w, &redisrl.Problem{Title: "The request has no address to count by", Status: http.StatusForbidden})
			return
		}
	}
	if len(limits) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	decision, err := guard.Decide(r.Context(), limits...)
	if err != nil {
		// Without an answer a request whose time is over would get an empty one of status 200; a client that has left needs none.
		if !errors.Is(r.Context().Err(), context.Canceled) {
			options.OnError(w, r, err)
		}
		return
	}
	defer decision.End()
	// Another middleware may have fields of its own: both then stand, as one list.
	for name, value := range decision.Headers() {
		w.Header().Add(name, value)
	}
	if !decision.Allowed {
		options.OnDenied(w, r, decision)
		return
	}
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, decision)))
}

func onError(w http.ResponseWriter, _ *http.Request, err error) {
	if errors.Is(err, redisrl.ErrUnavailable) {
		writeProblem(w, &redisrl.Problem{Title: "The rate limiter is not available", Status: http.StatusServiceUnavailable})
		return
	}
	writeProblem(w, &redisrl.Problem{Title: "The request could not be limited", Status: http.StatusInternalServerError})
}

func writeProblem(w http.ResponseWriter, problem *redisrl.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(problem.Status)
	// A client that has gone needs no answer.
	_ = json.NewEncoder(w).Encode(problem)
}
