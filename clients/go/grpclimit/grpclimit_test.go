package grpclimit_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	redisrl "redis-rl.example/clients/go"
	"redis-rl.example/clients/go/grpclimit"
	"redis-rl.example/clients/go/internal/testserver"
)

// newServer has the interceptors.
func newServer(t *testing.T, address string, options grpclimit.Options) *grpc.Server {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { _ = client.Close() })
	limiter, err := redisrl.New(client, redisrl.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	limits, err := grpclimit.New(limiter, options)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limits.Unary()), grpc.StreamInterceptor(limits.Stream()))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	return server
}

// serve is a client of a server with the interceptors.
func serve(t *testing.T, address string, options grpclimit.Options) grpc_health_v1.HealthClient {
	t.Helper()
	server := newServer(t, address, options)
	t.Cleanup(server.Stop)
	return clientOf(t, server.Serve)
}

// clientOf is a client of what serves a listener.
func clientOf(t *testing.T, serve func(net.Listener) error) grpc_health_v1.HealthClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = serve(listener) }()
	connection, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return grpc_health_v1.NewHealthClient(connection)
}

func check(t *testing.T, client grpc_health_v1.HealthClient) (metadata.MD, metadata.MD, error) {
	t.Helper()
	var header, trailer metadata.MD
	_, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	return header, trailer, err
}

func TestUnary(t *testing.T) {
	client := serve(t, testserver.Start(t, "module"), grpclimit.Options{Rule: redisrl.Must(redisrl.Sliding("2/hour"))})
	for range 2 {
		header, _, err := check(t, client)
		if err != nil || header.Get("ratelimit-policy")[0] != `"3600s";q=2;w=3600` {
			t.Fatalf("%v, %v", header, err)
		}
	}
	_, trailer, err := check(t, client)
	denied := status.Convert(err)
	if denied.Code() != codes.ResourceExhausted || !strings.Contains(denied.Message(), "3600s") || len(trailer.Get("retry-after")) != 1 {
		t.Fatalf("%v, %v", trailer, err)
	}
	retry, ok := denied.Details()[0].(*errdetails.RetryInfo)
	if !ok || retry.RetryDelay.AsDuration() <= 59*time.Minute {
		t.Errorf("%v", denied.Details())
	}
	// Another method has a limit of its own.
	stream, err := client.Watch(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
}

// Where gRPC and HTTP share a port, a server of net/http hands on the calls.
func TestServerOfNetHTTP(t *testing.T) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	handler := newServer(t, testserver.Start(t, "module"), grpclimit.Options{Rule: redisrl.Must(redisrl.Sliding("2/hour"))})
	server := &http.Server{Handler: handler, Protocols: &protocols}
	t.Cleanup(func() { _ = server.Close() })
	client := clientOf(t, server.Serve)
	for _, expected := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		if _, _, err := check(t, client); status.Code(err) != expected {
			t.Errorf("%v, and not %v", err, expected)
		}
	}
}

func TestStreamsHoldAPlace(t *testing.T) {
	address := testserver.Start(t, "module")
	client := serve(t, address, grpclimit.Options{Rule: redisrl.Must(redisrl.Lease(1, time.Minute, redisrl.Name("streams")))})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := check(t, client); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("a second one: %v", err)
	}
	cancel()
	testserver.Until(t, "the place is free", func() bool {
		_, _, err := check(t, client)
		return err == nil
	})
}

func TestWithoutServer(t *testing.T) {
	rule := redisrl.Must(redisrl.Sliding("1/hour"))
	for policy, code := range map[redisrl.Policy]codes.Code{redisrl.Open: codes.OK, redisrl.Closed: codes.Unavailable} {
		client := serve(t, "127.0.0.1:1", grpclimit.Options{
			Rule: rule, GuardOptions: redisrl.GuardOptions{WhenUnavailable: policy, Timeout: 250 * time.Millisecond},
		})
		for range 3 {
			if _, _, err := check(t, client); status.Code(err) != code {
				t.Errorf("%s: %v", policy, err)
			}
		}
	}
	nobody := serve(t, "127.0.0.1:1", grpclimit.Options{Rule: rule, Key: func(context.Context, string) string { return "" }})
	if _, _, err := check(t, nobody); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
}
