// Package testserver starts servers for the tests: in folders of their own, on free ports, killed at the end.
package testserver

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Modes are the kinds of server there can be.
var Modes = []string{"module", "functions", "script"}

// module is the module's file: MODULE, or what was built in this checkout.
func module(t testing.TB) string {
	if path := os.Getenv("MODULE"); path != "" {
		return path
	}
	_, here, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(here), "../../../../target/release/libredis_rl.so")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the tests need the module (make build), or its path in MODULE: %v", err)
	}
	return path
}

func program(t testing.TB) string {
	if path := os.Getenv("SERVER"); path != "" {
		return path
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("the tests need redis-server or valkey-server in PATH, or its path in SERVER")
	return ""
}

// StartFrozen is Start with a clock that stands.
func StartFrozen(t testing.TB, mode string) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	shim, clock := filepath.Join(t.TempDir(), "clock.so"), filepath.Join(t.TempDir(), "clock")
	source := filepath.Join(filepath.Dir(here), "../../../../tests/support/clock.c")
	if told, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", shim, source).CombinedOutput(); err != nil {
		t.Fatalf("the clock is not built: %v\n%s", err, told)
	}
	must(t, os.WriteFile(clock, binary.NativeEndian.AppendUint64(nil, uint64(time.Now().UnixMicro())), 0o600))
	// For the server alone.
	for name, value := range map[string]string{"LD_PRELOAD": shim, "RL_CLOCK": clock} {
		must(t, os.Setenv(name, value))
		defer os.Unsetenv(name)
	}
	return Start(t, mode, "--jemalloc-bg-thread", "no") // See clock.c.
}

// Start starts a server that has the module, functions, or neither, and returns its address.
func Start(t testing.TB, mode string, arguments ...string) string {
	t.Helper()
	for range 5 {
		if address, ok := start(t, mode, arguments); ok {
			return address
		}
	}
	t.Fatal("the server did not start")
	return ""
}

func start(t testing.TB, mode string, arguments []string) (string, bool) {
	port := freePort(t)
	folder := t.TempDir()
	words := append([]string{
		"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder, "--logfile", filepath.Join(folder, "log"),
	}, arguments...)
	switch mode {
	case "module":
		words = append(words, "--loadmodule", module(t))
	case "script":
		words = append(words, "--rename-command", "FCALL", "", "--rename-command", "FCALL_RO", "")
	}
	server := exec.Command(program(t), words...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill()
		<-ended
	})
	address := net.JoinHostPort("127.0.0.1", port)
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	defer client.Close()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			// Somebody else took the port.
			return "", false
		default:
		}
		if client.Ping(context.Background()).Err() == nil {
			return address, true
		}
	}
	return "", false
}

// Cluster starts three primaries and returns their addresses.
func Cluster(t testing.TB, mode string) []string {
	t.Helper()
	ctx := context.Background()
	var addresses []string
	for i := range 3 {
		address := Start(t, mode, "--cluster-enabled", "yes", "--cluster-node-timeout", "60000")
		client := redis.NewClient(&redis.Options{Addr: address})
		defer client.Close()
		from, to := 16384*i/3, 16384*(i+1)/3-1
		must(t, client.ClusterAddSlotsRange(ctx, from, to).Err())
		must(t, client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		for _, other := range addresses {
			host, port, _ := net.SplitHostPort(other)
			must(t, client.ClusterMeet(ctx, host, port).Err())
		}
		addresses = append(addresses, address)
	}
	Until(t, "the cluster is whole", func() bool {
		for _, address := range addresses {
			client := redis.NewClient(&redis.Options{Addr: address})
			slots, err := client.Do(ctx, "CLUSTER", "SLOTS").Slice()
			info, _ := client.ClusterInfo(ctx).Result()
			_ = client.Close()
			if err != nil || len(slots) != 3 || !strings.Contains(info, "cluster_state:ok") {
				return false
			}
		}
		return true
	})
	return addresses
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
}

// Until asks until something has happened.
func Until(t testing.TB, what string, happens func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !happens(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// freePort is one on which nobody listens, and nobody 10000 above it, for a cluster's bus.
func freePort(t testing.TB) string {
	for {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		port := listener.Addr().(*net.TCPAddr).Port
		_ = listener.Close()
		if port+10_000 > 65_535 {
			continue
		}
		if bus, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+10_000))); err == nil {
			_ = bus.Close()
			return strconv.Itoa(port)
		}
	}
}
