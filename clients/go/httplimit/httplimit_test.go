package httplimit_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	redisrl "redis-rl.example/clients/go"
	"redis-rl.example/clients/go/httplimit"
	"redis-rl.example/clients/go/internal/testserver"
)

// limiting is a middleware on a server, at a deadline that holds on a busy machine.
func limiting(t *testing.T, address string, options httplimit.Options) func(http.Handler) http.Handler {
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
	limit, err := httplimit.New(limiter, options)
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

var in = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if decision := httplimit.From(r.Context()); decision != nil {
		w.Header().Set("x-source", string(decision.Source))
	}
	_, _ = w.Write([]byte("in"))
})

func get(handler http.Handler, path, address string, header ...string) *http.Response {
	request := httptest.NewRequest(http.MethodGet, path, nil)
	request.RemoteAddr = address
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Result()
}

const client = "203.0.113.7:4711"

func TestResponses(t *testing.T) {
	handler := limiting(t, testserver.Start(t, "module"), httplimit.Options{Rule: redisrl.Must(redisrl.Sliding("2/hour", redisrl.Name("api")))})(in)
	for range 2 {
		response := get(handler, "/", client)
		if response.StatusCode != 200 || response.Header.Get("x-source") != "server" || response.Header.Get("RateLimit-Policy") != `"api";q=2;w=3600` {
			t.Fatalf("%+v", response)
		}
	}
	denied := get(handler, "/", client)
	var problem redisrl.Problem
	if err := json.NewDecoder(denied.Body).Decode(&problem); err != nil {
		t.Fatal(err)
	}
	if denied.StatusCode != 429 || denied.Header.Get("Content-Type") != "application/problem+json" || denied.Header.Get("Retry-After") == "" ||
		!strings.Contains(denied.Header.Get("RateLimit"), `"api";r=0;t=3`) || problem.Status != 429 || problem.ViolatedPolicies[0] != "api" {
		t.Errorf("%+v, %+v", denied, problem)
	}
	if response := get(handler, "/", "203.0.113.8:1"); response.StatusCode != 200 {
		t.Errorf("another address: %+v", response)
	}
	// What the client writes is not believed.
	if response := get(handler, "/", client, "X-Forwarded-For", "198.51.100.1"); response.StatusCode != 429 {
		t.Errorf("%+v", response)
	}
	if response := get(handler, "/", "@"); response.StatusCode != 403 {
		t.Errorf("without an identity: %+v", response)
	}
}

// What ../cases/defaults.json says of responses.
func TestDefaults(t *testing.T) {
	text, err := os.ReadFile("../../cases/defaults.json")
	if err != nil {
		t.Fatal(err)
	}
	var defaults struct {
		Adapter struct {
			Status          map[string]int
			WithoutIdentity string `json:"without_identity"`
		}
		Problem struct {
			ContentType string `json:"content_type"`
		}
	}
	if err := json.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	rule := redisrl.Must(redisrl.Sliding("0/hour"))
	address := testserver.Start(t, "module")
	closed := redisrl.GuardOptions{WhenUnavailable: redisrl.Closed}
	found := map[string]*http.Response{
		"denied":           get(limiting(t, address, httplimit.Options{Rule: rule})(in), "/", client),
		"unavailable":      get(limiting(t, "127.0.0.1:1", httplimit.Options{Rule: rule, GuardOptions: closed})(in), "/", client),
		"without_identity": get(limiting(t, address, httplimit.Options{Rule: rule})(in), "/", "@"),
	}
	for name, status := range defaults.Adapter.Status {
		response := found[name]
		if response == nil || response.StatusCode != status || response.Header.Get("Content-Type") != defaults.Problem.ContentType {
			t.Errorf("%s: %+v, and not %d", name, response, status)
		}
	}
	if len(defaults.Adapter.Status) != len(found) || defaults.Adapter.WithoutIdentity != "refused" {
		t.Errorf("%+v", defaults)
	}
}

func TestExactOverHTTP(t *testing.T) {
	limit := limiting(t, testserver.Start(t, "module"), httplimit.Options{Rule: redisrl.Must(redisrl.Sliding("50/hour"))})
	server := httptest.NewServer(limit(in))
	defer server.Close()
	server.Client().Transport.(*http.Transport).MaxConnsPerHost = 20
	var allowed, denied atomic.Int64
	var all sync.WaitGroup
	for range 400 {
		all.Add(1)
		go func() {
			defer all.Done()
			response, err := server.Client().Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			_ = response.Body.Close()
			map[int]*atomic.Int64{200: &allowed, 429: &denied}[response.StatusCode].Add(1)
		}()
	}
	all.Wait()
	if allowed.Load() != 50 || denied.Load() != 350 {
		t.Errorf("%d were allowed, %d denied", allowed.Load(), denied.Load())
	}
}

func TestRoutes(t *testing.T) {
	address := testserver.Start(t, "module")
	limit := limiting(t, address, httplimit.Options{Rule: redisrl.Must(redisrl.Sliding("2/hour"))})
	shared := limiting(t, address, httplimit.Options{Rule: redisrl.Must(redisrl.Sliding("2/hour", redisrl.Name("shared")))})
	mux := http.NewServeMux()
	mux.Handle("GET /item/{id}", limit(in))
	mux.Handle("GET /other", limit(in))
	mux.Handle("GET /a", shared(in))
	mux.Handle("GET /b", shared(in))
	for path, status := range map[string][]int{"/item/": {200, 200, 429}, "/other": {200, 200, 429}} {
		for i, expected := range status {
			each := path
			if path == "/item/" {
				each += string(rune('a' + i))
			}
			if response := get(mux, each, client); response.StatusCode != expected {
				t.Errorf("%s: %d", each, response.StatusCode)
			}
		}
	}
	for i, path := range []string{"/a", "/b", "/a", "/b"} {
		if response := get(mux, path, client); (response.StatusCode == 200) != (i < 2) {
			t.Errorf("%s: %d", path, response.StatusCode)
		}
	}
}

// One mux under two prefixes, or two of the same patterns: each place is a limit of its own.
func TestMounts(t *testing.T) {
	limit := limiting(t, testserver.Start(t, "module"), httplimit.Options{Rule: redisrl.Must(redisrl.Sliding("2/hour"))})
	api := func() http.Handler {
		mux := http.NewServeMux()
		mux.Handle("GET /item/{id}", limit(in))
		return mux
	}
	mux, one := http.NewServeMux(), api()
	mux.Handle("/v1/", http.StripPrefix("/v1", one))
	mux.Handle("/v2/", http.StripPrefix("/v2", one))
	mux.Handle("/v3/", http.StripPrefix("/v3", api()))
	mux.Handle("/", one)
	for _, prefix := range []string{"/v1", "/v2", "/v3", ""} {
		for i, path := range []string{"/item/a", "/item/b?x=1", "/item/%63"} {
			if response := get(mux, prefix+path, client); (response.StatusCode == 200) != (i < 2) {
				t.Errorf("%s%s: %d", prefix, path, response.StatusCode)
			}
		}
	}
}

// A request that has failed may be given back, at the key of its route.
func TestRefund(t *testing.T) {
	limiter, err := redisrl.New(redis.NewClient(&redis.Options{Addr: testserver.Start(t, "module")}), redisrl.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	rule := redisrl.Must(redisrl.Sliding("1/hour"))
	limit, err := httplimit.New(limiter, httplimit.Options{Rule: rule, GuardOptions: redisrl.GuardOptions{Timeout: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /item/{id}", limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		decision := httplimit.From(r.Context())
		if _, err := limiter.Refund(r.Context(), decision.Keys[0], rule, decision.At); err != nil {
			t.Error(err)
		}
	})))
	for range 3 {
		if response := get(mux, "/item/7", client); response.StatusCode != 200 {
			t.Error(response.StatusCode)
		}
	}
}

// Other routers say what a request's route is.
func TestRouteOfARouter(t *testing.T) {
	limit := limiting(t, testserver.Start(t, "module"), httplimit.Options{
		Rule: redisrl.Must(redisrl.Sliding("2/hour")), Route: func(r *http.Request) string { return r.Header.Get("x-template") },
	})
	for _, template := range []string{"/item/{id}", "/other"} {
		for i, path := range []string{"/a", "/b", "/c"} {
			if response := get(limit(in), path, client, "x-template", template); (response.StatusCode == 200) != (i < 2) {
				t.Errorf("%s%s: %d", template, path, response.StatusCode)
			}
		}
	}
}

func TestProxiesAndSeveralLimits(t *testing.T) {
	address := testserver.Start(t, "module")
	handler := limiting(t, address, httplimit.Options{
		Rule: redisrl.Must(redisrl.Sliding("1/hour")), TrustedProxies: []string{"10.0.0.0/8"}, AllowWithoutIdentity: true,
	})(in)
	for _, client := range []string{"198.51.100.1", "198.51.100.2", "2001:db8::1"} {
		if response := get(handler, "/", "10.1.2.3:80", "X-Forwarded-For", client); response.StatusCode != 200 {
			t.Errorf("%s: %d", client, response.StatusCode)
		}
	}
	if response := get(handler, "/", "10.1.2.3:80", "X-Forwarded-For", "2001:db8::2"); response.StatusCode != 429 {
		t.Errorf("the same /64: %d", response.StatusCode)
	}
	for range 3 {
		if response := get(handler, "/", "10.1.2.3:80", "X-Forwarded-For", "unknown"); response.StatusCode != 200 {
			t.Errorf("without an identity: %d", response.StatusCode)
		}
	}
	several := limiting(t, address, httplimit.Options{LimitsFor: func(r *http.Request) []redisrl.Limit {
		if r.URL.Path == "/free" {
			return nil
		}
		return []redisrl.Limit{
			{Identity: r.Header.Get("x-user"), Rule: redisrl.Must(redisrl.Sliding("2/hour", redisrl.Name("user")))},
			{Identity: r.Header.Get("x-user"), Rule: redisrl.Must(redisrl.Fixed("9/hour", redisrl.Name("other")))},
		}
	}})(in)
	for i := range 3 {
		response := get(several, "/", client, "x-user", "7")
		if (response.StatusCode == 200) != (i < 2) || len(strings.Split(response.Header.Get("RateLimit"), ", ")) != 2 {
			t.Errorf("%+v", response)
		}
	}
	if response := get(several, "/free", client); response.StatusCode != 200 || response.Header.Get("RateLimit") != "" {
		t.Errorf("%+v", response)
	}
}

func TestACostOf0ChecksAndCountsNothing(t *testing.T) {
	rule := redisrl.Must(redisrl.Sliding("1/hour"))
	handler := limiting(t, testserver.Start(t, "module"), httplimit.Options{RuleFor: func(r *http.Request) redisrl.Rule {
		if r.URL.Path == "/free" {
			return rule.Cost(0)
		}
		return rule
	}})(in)
	for i, path := range []string{"/free", "/free", "/", "/", "/free"} {
		if response := get(handler, path, client); (response.StatusCode == 200) != (i < 3) {
			t.Errorf("%d, %s: %d", i, path, response.StatusCode)
		}
	}
}

func TestPlaces(t *testing.T) {
	handler := limiting(t, testserver.Start(t, "module"), httplimit.Options{Rule: redisrl.Must(redisrl.Lease(1, time.Minute))})
	inside, leave := make(chan struct{}), make(chan struct{})
	slow := handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(inside)
		<-leave
	}))
	ended := make(chan struct{})
	go func() {
		get(slow, "/", client)
		close(ended)
	}()
	<-inside
	if response := get(handler(in), "/", client); response.StatusCode != 429 || response.Header.Get("RateLimit-Policy") != `"60s";q=1;qu="concurrent-requests"` {
		t.Errorf("%+v", response)
	}
	close(leave)
	<-ended
	if response := get(handler(in), "/", client); response.StatusCode != 200 {
		t.Errorf("%+v", response)
	}
}

// The fields of two middlewares are one list.
func TestOneInAnother(t *testing.T) {
	address := testserver.Start(t, "module")
	outer := limiting(t, address, httplimit.Options{Rule: redisrl.Must(redisrl.Sliding("9/hour", redisrl.Name("outer")))})
	inner := limiting(t, address, httplimit.Options{Rule: redisrl.Must(redisrl.Sliding("1/hour", redisrl.Name("inner")))})
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests} {
		response := get(outer(inner(in)), "/", client)
		fields := strings.Join(response.Header.Values("RateLimit-Policy"), ", ")
		if response.StatusCode != status || fields != `"outer";q=9;w=3600, "inner";q=1;w=3600` {
			t.Errorf("%d %s", response.StatusCode, fields)
		}
	}
}

func TestErrors(t *testing.T) {
	var told error
	rule := redisrl.Must(redisrl.Sliding("9/hour"))
	for policy, status := range map[redisrl.Policy]int{redisrl.Open: 200, redisrl.Closed: 503, redisrl.Local: 200} {
		handler := limiting(t, "127.0.0.1:1", httplimit.Options{
			Rule: rule, GuardOptions: redisrl.GuardOptions{WhenUnavailable: policy, Timeout: 250 * time.Millisecond},
		})(in)
		response := get(handler, "/", client)
		if response.StatusCode != status || status == 200 && response.Header.Get("x-source") != string(policy) {
			t.Errorf("%s: %+v", policy, response)
		}
	}
	// A server that says nothing, and a request whose time is over before that of the limiter.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	slow := limiting(t, silent.Addr().String(), httplimit.Options{
		Rule: rule, GuardOptions: redisrl.GuardOptions{WhenUnavailable: redisrl.Closed},
	})(in)
	late, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	recorder := httptest.NewRecorder()
	slow.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(late))
	if recorder.Code != http.StatusServiceUnavailable || recorder.Body.Len() == 0 {
		t.Errorf("%d %q", recorder.Code, recorder.Body)
	}
	handler := limiting(t, testserver.Start(t, "module"), httplimit.Options{
		RuleFor: func(*http.Request) redisrl.Rule { return rule.Cost(0).Cost(-1) },
		OnError: func(w http.ResponseWriter, _ *http.Request, err error) {
			told = err
			w.WriteHeader(599)
		},
	})(in)
	if response := get(handler, "/", client); response.StatusCode != 599 || told == nil {
		t.Errorf("%+v, %v", response, told)
	}
	limiter, err := redisrl.New(redis.NewClient(&redis.Options{}), redisrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range []httplimit.Options{
		{}, {Rule: rule, RuleFor: func(*http.Request) redisrl.Rule { return nil }}, {Rule: rule, TrustedProxies: []string{"localhost"}},
		{Rule: rule, GuardOptions: redisrl.GuardOptions{WhenUnavailable: "perhaps"}}, {Rule: rule, IPv6Prefix: 129},
	} {
		if _, err := httplimit.New(limiter, options); err == nil {
			t.Errorf("%+v is accepted", options)
		}
	}
}
