package redisrate

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"redis-rl.example/clients/go/internal/testserver"
)

// The version whose tests are run.
const peer = "github.com/go-redis/redis_rate/v10"

// TestPeer runs redis_rate's own tests with this package in its place. They come from the module proxy.
func TestPeer(t *testing.T) {
	text, err := exec.Command("go", "mod", "download", "-json", peer+"@v10.0.1").Output()
	var found struct{ Dir string }
	if err != nil || json.Unmarshal(text, &found) != nil {
		t.Skipf("redis_rate could not be fetched: %v", err)
	}
	for _, mode := range testserver.Modes {
		t.Run(mode, func(t *testing.T) {
			// Its tests allow ten milliseconds for several calls: the server's clock stands.
			_, port, _ := strings.Cut(testserver.StartFrozen(t, mode), ":")
			folder := t.TempDir()
			files, err := filepath.Glob(filepath.Join(found.Dir, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Fatal("redis_rate has no tests")
			}
			for _, file := range files {
				source, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				source = bytes.ReplaceAll(source, []byte(`"`+peer+`"`), []byte(`redis_rate "redis-rl.example/clients/go/redisrate"`))
				source = bytes.ReplaceAll(source, []byte(":6379"), []byte(":"+port))
				if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), source, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			here, err := filepath.Abs("..")
			if err != nil {
				t.Fatal(err)
			}
			module := "module peer\n\ngo 1.24\n\nrequire (\n\tgithub.com/stretchr/testify v1.8.4\n\tredis-rl.example/clients/go v0.0.0\n)\n\nreplace redis-rl.example/clients/go => " + here + "\n"
			if err := os.WriteFile(filepath.Join(folder, "go.mod"), []byte(module), 0o600); err != nil {
				t.Fatal(err)
			}
			run := func(words ...string) string {
				command := exec.Command("go", words...)
				command.Dir = folder
				told, err := command.CombinedOutput()
				if err != nil {
					t.Fatalf("go %s: %v\n%s", strings.Join(words, " "), err, told)
				}
				return string(told)
			}
			run("mod", "tidy")
			told := run("test", "-count=1", "-v", ".")
			if passed := strings.Count(told, "--- PASS"); passed < 6 {
				t.Errorf("%d of its tests have run: %s", passed, told)
			}
		})
	}
}

func TestWaits(t *testing.T) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: testserver.Start(t, "module")})
	defer client.Close()
	limiter := NewLimiter(client)
	limit := Limit{Rate: 10, Burst: 3, Period: 2 * time.Second}
	for i := range 3 {
		if result, err := limiter.Allow(ctx, "k", limit); err != nil || result.Allowed != 1 || result.Remaining != 2-i || result.RetryAfter != -1 {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	result, err := limiter.Allow(ctx, "k", limit)
	if err != nil || result.Allowed != 0 || result.RetryAfter <= 0 || result.RetryAfter > 200*time.Millisecond {
		t.Fatalf("%+v, %v", result, err)
	}
	// Who waits so long is let in.
	time.Sleep(result.RetryAfter)
	if result, err := limiter.AllowAtMost(ctx, "k", limit, 5); err != nil || result.Allowed < 1 || result.Allowed > 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	for _, wrong := range []Limit{{}, {Rate: 1, Period: time.Second}, {Rate: 1, Burst: 1, Period: time.Microsecond}} {
		if result, err := limiter.Allow(ctx, "k", wrong); err == nil {
			t.Errorf("%+v: %+v", wrong, result)
		}
	}
}
