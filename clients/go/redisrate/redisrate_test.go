package redisrate

import (
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

// TestPeer runs redis_rate's own tests with this package in its place. They come from the module proxy, and are built once.
func TestPeer(t *testing.T) {
	text, err := exec.Command("go", "mod", "download", "-json", peer+"@v10.0.1").Output()
	var found struct{ Dir string }
	if err != nil || json.Unmarshal(text, &found) != nil {
		t.Skipf("redis_rate could not be fetched: %v", err)
	}
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(t *testing.T, words ...string) string {
		t.Helper()
		command := exec.Command(words[0], words[1:]...)
		command.Dir = folder
		told, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, told)
		}
		return string(told)
	}
	files, err := filepath.Glob(filepath.Join(found.Dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatal("redis_rate has no tests")
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(source), `"`+peer+`"`, `redis_rate "redis-rl.example/clients/go/redisrate"`)
		write(filepath.Base(file), strings.NewReplacer(`":6379"`, "peerAddress", `"localhost:6379"`, "peerAddress").Replace(text))
	}
	write("address_test.go", "package redis_rate_test\n\nimport \"os\"\n\nvar peerAddress = os.Getenv(\"PEER_ADDRESS\")\n")
	here, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	write("go.mod", "module peer\n\ngo 1.24\n\nrequire (\n\tgithub.com/stretchr/testify v1.8.4\n\tredis-rl.example/clients/go v0.0.0\n)\n\nreplace redis-rl.example/clients/go => "+here+"\n")
	run(t, "go", "mod", "tidy")
	run(t, "go", "test", "-c", "-o", "peer.test", ".")
	for _, mode := range testserver.Modes {
		t.Run(mode, func(t *testing.T) {
			// Its tests allow ten milliseconds for several calls: the server's clock stands.
			t.Setenv("PEER_ADDRESS", testserver.StartFrozen(t, mode))
			told := run(t, filepath.Join(folder, "peer.test"), "-test.v")
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
	// A header that an application makes its key of is no long key.
	if _, err := limiter.Allow(ctx, strings.Repeat("x", 60_000), limit); err != nil {
		t.Fatal(err)
	}
	for _, key := range client.Keys(ctx, "*").Val() {
		if len(key) > 200 {
			t.Errorf("a key of %d bytes", len(key))
		}
	}
	for _, wrong := range []Limit{{}, {Rate: 1, Period: time.Second}, {Rate: 1, Burst: 1, Period: time.Microsecond}} {
		if result, err := limiter.Allow(ctx, "k", wrong); err == nil {
			t.Errorf("%+v: %+v", wrong, result)
		}
	}
}
