// Package grpclimit limits the calls of gRPC servers. It is a module of its own, so that redisrl does not depend on gRPC.
//
// A denied call ends with the code RESOURCE_EXHAUSTED, a google.rpc.RetryInfo with the time after which it fits, and the
// fields of HTTP (ratelimit-policy, ratelimit, retry-after) in its trailer. An allowed one has the first two in its header.
package grpclimit

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	redisrl "redis-rl.example/clients/go"
)

// Options of the interceptors. One of Rule and LimitsFor has to be given.
type Options struct {
	redisrl.GuardOptions
	// Rule is the limit of each call. A rule without a name is a limit of each method by itself.
	Rule redisrl.Rule
	// LimitsFor are the limits of a call in one decision, by its method (/package.Service/Method), in place of Rule and Key.
	// Without any it is not limited.
	LimitsFor func(ctx context.Context, method string) []redisrl.Limit
	// Key is who is limited: the client's address unless given, see TrustedProxies. Empty for a call without an identity.
	Key func(ctx context.Context, method string) string
	// TrustedProxies are addresses and networks ("10.0.0.0/8") of your proxies, whose x-forwarded-for is believed.
	TrustedProxies []string
	// IPv6Prefix is how many bits of an IPv6 address count: 64 unless given.
	IPv6Prefix int
	// AllowWithoutIdentity lets calls without an identity through. Unless given they end with PERMISSION_DENIED. They never
	// share a quota.
	AllowWithoutIdentity bool
}

// A Limiter has interceptors, which share what they remember.
type Limiter struct {
	guard   *redisrl.Guard
	options Options
}

// New makes interceptors that decide by a limiter. A lease is held, and renewed, until the call has ended.
//
// While the server is unavailable the policy Closed ends calls with UNAVAILABLE. Errors that do not pass by themselves, such as
// missing permissions, end them with INTERNAL, whatever the policy.
func New(limiter *redisrl.Limiter, options Options) (*Limiter, error) {
	guard, err := redisrl.NewGuard(limiter, options.GuardOptions)
	if err != nil {
		return nil, err
	}
	addresses, err := redisrl.NewAddresses(options.TrustedProxies, options.IPv6Prefix)
	if err != nil {
		return nil, err
	}
	if (options.Rule == nil) == (options.LimitsFor == nil) {
		return nil, errors.New("grpclimit: one of Rule and LimitsFor has to be given")
	}
	if options.Key == nil {
		options.Key = func(ctx context.Context, _ string) string {
			if client, ok := peer.FromContext(ctx); ok {
				return addresses.Of(client.Addr.String(), metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"))
			}
			return ""
		}
	}
	if options.LimitsFor == nil {
		options.LimitsFor = func(ctx context.Context, method string) []redisrl.Limit {
			return []redisrl.Limit{{Identity: options.Key(ctx, method), Rule: options.Rule, Route: method}}
		}
	}
	return &Limiter{guard, options}, nil
}

// Unary is the interceptor of calls with one request and one response.
func (l *Limiter) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		decision, err := l.decide(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		defer decision.End()
		return handler(ctx, request)
	}
}

// Stream is the interceptor of streams. A stream counts once, when it begins.
func (l *Limiter) Stream() grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		decision, err := l.decide(stream.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		defer decision.End()
		return handler(server, stream)
	}
}

// decide is the decision on a call, empty for a call without a limit, or the error that ends it.
func (l *Limiter) decide(ctx context.Context, method string) (*redisrl.Decision, error) {
	var limits []redisrl.Limit
	for _, limit := range l.options.LimitsFor(ctx, method) {
		switch {
		case limit.Identity != "":
			limits = append(limits, limit)
		case !l.options.AllowWithoutIdentity:
			return nil, status.Error(codes.PermissionDenied, "the call has no address to count by")
		}
	}
	if len(limits) == 0 {
		return &redisrl.Decision{}, nil
	}
	decision, err := l.guard.Decide(ctx, limits...)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, redisrl.ErrUnavailable):
		return nil, status.Error(codes.Unavailable, "the rate limiter is not available")
	case err != nil:
		return nil, status.Error(codes.Internal, "the call could not be limited")
	}
	fields := metadata.MD{}
	for name, value := range decision.Headers() {
		fields.Set(strings.ToLower(name), value)
	}
	if decision.Allowed {
		// Where there is no stream, as in tests of handlers, there are no headers.
		_ = grpc.SetHeader(ctx, fields)
		return decision, nil
	}
	_ = grpc.SetTrailer(ctx, fields)
	denied := status.New(codes.ResourceExhausted, "quota exceeded: "+strings.Join(decision.Violated(), ", "))
	if decision.RetryAfter != redisrl.Never {
		if detailed, err := denied.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(decision.RetryAfter)}); err == nil {
			denied = detailed
		}
	}
	return nil, denied.Err()
}
