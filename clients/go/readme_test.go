package redisrl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"redis-rl.example/clients/go/internal/testserver"
)

// The programs of the page are built, and those that end are run. gRPC comes from the module proxy.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	address := testserver.Start(t, "module")
	expected := map[int]string{0: "allowed, 0 of 5 remaining\ndenied, 0 of 5 remaining, again in ", 1: "<nil>\n", 2: "<nil>\n"}
	programs := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(programs) != 6 {
		t.Fatalf("%d programs", len(programs))
	}
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	// The first minute, typed as it is printed, with a server and without one.
	for server, outcome := range map[string]string{address: expected[0], "127.0.0.1:1": "the server is unavailable"} {
		folder = t.TempDir()
		write("main.go", strings.ReplaceAll(programs[0][1], "localhost:6379", server))
		var told []byte
		for _, typed := range regexp.MustCompile("(?m)^    go (.*)$").FindAllStringSubmatch(string(page), -1) {
			command := exec.Command("go", strings.Fields(strings.ReplaceAll(typed[1], "../redis-rl/clients/go", here))...)
			command.Dir = folder
			told, _ = command.CombinedOutput()
		}
		if !strings.Contains(string(told), outcome) || server == address && !strings.Contains(string(told), "mode=module") {
			t.Errorf("the first program says %q", told)
		}
	}
	folder = t.TempDir()
	newClient(t, address, 3).FlushAll(ctx)
	module := "redis-rl.example/clients/go"
	write("go.mod", fmt.Sprintf("module page\n\ngo 1.24.0\n\nrequire (\n\tgoogle.golang.org/grpc v1.76.0\n\t%[1]s v0.0.0\n\t%[1]s/grpclimit v0.0.0\n)\n\n"+
		"replace (\n\t%[1]s => %[2]s\n\t%[1]s/grpclimit => %[2]s/grpclimit\n)\n", module, here))
	for i, program := range programs {
		write(fmt.Sprintf("p%d/main.go", i), strings.ReplaceAll(program[1], "localhost:6379", address))
	}
	run("mod", "tidy")
	run("vet", "./...")
	for i := range programs {
		// The first was run as it is typed.
		if text, ends := expected[i]; ends && i > 0 {
			if told := run("run", fmt.Sprintf("./p%d", i)); !strings.Contains(told, text) {
				t.Errorf("program %d says %q", i, told)
			}
		}
	}
}
