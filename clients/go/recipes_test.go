package redisrl_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisrl "redis-rl.example/clients/go"
	"redis-rl.example/clients/go/internal/testserver"
)

// A transport that waits for the turn of each request.
type limited struct {
	next    http.RoundTripper
	limiter *redisrl.Limiter
	quota   redisrl.Rule
}

func (l limited) RoundTrip(request *http.Request) (*http.Response, error) {
	if _, err := l.limiter.Wait(request.Context(), "calls", l.quota); err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	return l.next.RoundTrip(request)
}

// The transport above is the one of docs/OUTBOUND.md, and keeps the rate.
func TestOutboundRecipe(t *testing.T) {
	page, err := os.ReadFile("../../docs/OUTBOUND.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("recipes_test.go")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(page)
	if shown == nil || !strings.Contains(string(source), string(shown[1])) {
		t.Fatal("the page shows another transport")
	}
	client := redis.NewClient(&redis.Options{Addr: testserver.Start(t, "module")})
	defer client.Close()
	limiter, err := redisrl.New(client, redisrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var lock sync.Mutex
	var calls []time.Time
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		calls = append(calls, time.Now())
	}))
	defer provider.Close()
	caller := http.Client{Transport: limited{http.DefaultTransport, limiter, redisrl.Must(redisrl.Sliding("5/second"))}}
	var all sync.WaitGroup
	for range 15 {
		all.Add(1)
		go func() {
			defer all.Done()
			response, err := caller.Get(provider.URL)
			if err != nil {
				t.Error(err)
				return
			}
			response.Body.Close()
		}()
	}
	all.Wait()
	// What is not sent is closed, as a transport has to: a caller that writes it would wait for ever.
	leaving, leave := context.WithCancel(context.Background())
	leave()
	body, writer := io.Pipe()
	request, _ := http.NewRequestWithContext(leaving, http.MethodPost, provider.URL, body)
	if _, err := (limited{http.DefaultTransport, limiter, redisrl.Must(redisrl.Sliding("5/second"))}).RoundTrip(request); err == nil {
		t.Error("it was sent")
	}
	if _, err := writer.Write([]byte("x")); err == nil {
		t.Error("the body is open")
	}
	if took := calls[len(calls)-1].Sub(calls[0]); len(calls) != 15 || took < 1900*time.Millisecond {
		t.Fatalf("%d calls in %v", len(calls), took)
	}
}
