package main

import (
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	redisrl "redis-rl.example/clients/go"
	"redis-rl.example/clients/go/httplimit"
)

const canServe = "serve memory open closed local several processes cost lease identity local-memory cluster own"

// serve is an application with the middleware, as its page shows it.
func serve(r request) reply {
	client, err := clientOf(r.Connect)
	if err != nil {
		return reply{"outcome": "bug", "error": err.Error()}
	}
	limiter, err := redisrl.New(client, redisrl.Options{Logger: slog.New(logged{})})
	if err != nil {
		return reply{"outcome": "bug", "error": err.Error()}
	}
	rule, err := r.Rule.made(nil, false)
	if err != nil {
		return reply{"outcome": "argument", "error": err.Error()}
	}
	limit, err := httplimit.New(limiter, httplimit.Options{
		GuardOptions: redisrl.GuardOptions{
			WhenUnavailable: redisrl.Policy(r.Policy), Processes: r.Procs, Timeout: length(r.Timeout),
		},
		Key: func(r *http.Request) string { return r.Header.Get("x-key") },
		RuleFor: func(r *http.Request) redisrl.Rule {
			cost, err := strconv.ParseInt(r.Header.Get("x-cost"), 10, 64)
			if sliding, ok := rule.(redisrl.SlidingRule); ok && err == nil {
				return sliding.Cost(cost)
			}
			return rule
		},
	})
	if err != nil {
		return reply{"outcome": "argument", "error": err.Error()}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status(r))
		_, _ = w.Write([]byte("in"))
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status(r))
		for range 20 {
			if _, err := w.Write([]byte("in")); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return reply{"outcome": "bug", "error": err.Error()}
	}
	server := &http.Server{Handler: limit(mux), MaxHeaderBytes: 1 << 20}
	go func() { _ = server.Serve(listener) }()
	told := done(0)
	told["port"] = listener.Addr().(*net.TCPAddr).Port
	return told
}

func status(r *http.Request) int {
	if status, err := strconv.Atoi(r.Header.Get("x-status")); err == nil {
		return status
	}
	return http.StatusOK
}
