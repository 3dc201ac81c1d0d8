"""Tests docker/monitoring/ with live servers, an exporter and Prometheus. tests/live/monitoring.rs tests the exporter's script and its user
on every engine.

All processes listen on 127.0.0.1 at free ports, use a temporary folder, and are stopped at the end. The files of docker/monitoring
are used unchanged except for addresses and intervals. Environment: SERVER, EXPORTER, PROMETHEUS, SERVICE (programs), MODULE (the
library). It takes curl with HTTP/2.
"""

import contextlib
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True  # No __pycache__ in the tree.

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "docker/monitoring"
PAGE = (ROOT / "docs/MONITORING.md").read_text()
DASHBOARD = json.loads((SHIPPED / "grafana/redis-rl.json").read_text())
MODULE = os.environ.get("MODULE", str(ROOT / "target/release/libredis_rl.so"))
SERVER = os.environ.get("SERVER", "redis-server")
EXPORTER = os.environ.get("EXPORTER", "prometheus-redis-exporter")
PROMETHEUS = os.environ.get("PROMETHEUS", "prometheus")
SERVICE = os.environ.get("SERVICE", str(ROOT / "envoy/target/debug/redis-rl-envoy"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, check, seconds=60):
    """Returns the first true result of check. Fails with its last result when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = check()
            problem = answer
        except (OSError, Refusal, AssertionError) as error:
            answer, problem = None, repr(error)
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} seconds; last: {problem}")
        time.sleep(0.1)


class Refusal(Exception):
    """A server's error reply."""


class Client:
    """A connection to a server. A pipeline returns errors among its replies; a single call raises its error."""

    def __init__(self, port, user=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.socket.makefile("rb")
        if user:
            self.call("AUTH", *user)

    def send(self, calls):
        out = bytearray()
        for call in calls:
            out += b"*%d\r\n" % len(call)
            for word in call:
                word = str(word).encode()
                out += b"$%d\r\n%s\r\n" % (len(word), word)
        self.socket.sendall(out)
        return [self.reply() for _ in calls]

    def call(self, *words):
        (reply,) = self.send([words])
        if isinstance(reply, Refusal):
            raise reply
        return reply

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"-":
            return Refusal(rest)
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return rest

    def info(self, section):
        """The fields of a section of INFO."""
        return dict(line.split(":", 1) for line in self.call("INFO", section).splitlines() if ":" in line)


def exporters_user():
    """The words of the page's line that creates the exporter's user, and the name and password in it."""
    (line,) = re.findall(r"^127.0.0.1:6379> (ACL SETUSER .*)$", PAGE, re.MULTILINE)
    words = shlex.split(line)
    (password,) = [word[1:] for word in words if word.startswith(">")]
    return words, (words[2], password)


class Bench:
    """The processes of a test."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.processes = {}

    def start(self, name, *command, **environment):
        log = (self.folder / f"{name}.log").open("ab")
        command = [str(word) for word in command]
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment}, cwd=self.folder)
        self.processes[name] = process
        return process

    def stop(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop_all(self):
        for name in list(self.processes):
            self.stop(name)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def server(self, name, port, *options, module=True):
        """Starts a server with the exporter's user and returns a client once it answers."""
        data = self.folder / f"{name}.data"
        data.mkdir(exist_ok=True)
        module = ["--loadmodule", MODULE] if module else []
        self.start(name, SERVER, "--port", port, "--bind", "127.0.0.1", "--dir", data, "--save", "", *module, *options)

        def answers():
            process = self.processes[name]
            assert process.poll() is None, f"{name} has ended:\n{self.log(name)}"
            client = Client(port)
            return client.call("PING") == "PONG" and client

        client = until(f"{name} answers", answers, 20)
        client.call(*exporters_user()[0])
        return client


class Traffic(threading.Thread):
    """Calls of all commands, some hundred a second. A few users make most of them."""

    def __init__(self, port, small, service):
        super().__init__(daemon=True)
        self.port, self.small, self.service = port, small, service
        self.over = threading.Event()
        self.problem = None

    def run(self):
        try:
            client, small = Client(self.port), Client(self.small)
            client.call("ACL", "SETUSER", "nobody", "on", ">nobody", "+ping")
            nobody = Client(self.port, ("nobody", "nobody"))
            # Fill nearly all of its memory.
            small.send([("RL.SLIDING", f"address:{n}", 600, 5) for n in range(14000)])
            begun = time.monotonic()
            chance = random.Random(7)
            step = 0
            while not self.over.is_set():
                client.send(self.calls(chance, step))
                if step % 7 == 0:
                    nobody.send([("RL.FIXED", "key", 60, 10)])
                small.send([("RL.SLIDING", f"address:{step}:{n}", 600, 5) for n in range(40)])
                assert self.service.ask(chance.randint(1, 3))
                assert self.service.ask(chance.randint(1, 3))
                step += 1
                self.over.wait(max(0, begun + step / 10 - time.monotonic()))
        except Exception as error:  # For the main thread to report.
            self.problem = error

    @staticmethod
    def calls(chance, step):
        user = lambda: int(chance.paretovariate(0.6)) % 500
        calls = [("RL.SLIDING", f"user:{user()}", 20, 40) for _ in range(30)]
        calls += [("RL.SLIDING", f"tokens:{user()}", 60, 20000, "COST", chance.randint(1, 4000)) for _ in range(5)]
        calls += [("RL.FIXED", f"address:{user()}", 10, 30) for _ in range(18)]
        calls += [("RL.THROTTLE", f"api:{user()}", 10, 50, 10) for _ in range(12)]
        calls += [("RL.PEEK", f"user:{user()}", "SLIDING", 20, 40) for _ in range(4)]
        for _ in range(6):
            tenant = user()
            keys = [f"{{org{tenant}}}:rate", f"{{org{tenant}}}:day"]
            calls.append(("RL.ALL", 2, *keys, "SLIDING", 10, 20, "FIXED", 86400, 2000))
        calls += [("RL.ACQUIRE", "jobs", 40, 3, f"job-{step}-{n}") for n in range(5)]
        calls += [("RL.RELEASE", "jobs", f"job-{step - 8}-{n}") for n in range(4)]
        if step % 3 == 0:
            calls.append(("RL.REFUND", f"tokens:{user()}", "SLIDING", 60, 20000, "COST", 100))
        if step % 10 == 0:
            calls += [("RL.RESET", f"user:{user()}"), ("RL.FIXED", "key", 60, "much")]
        return calls


class Service:
    """The rate limit service, on the primary."""

    def __init__(self, bench, redis):
        http, debug, metrics, self.grpc = [free_port() for _ in range(4)]
        self.instance = f"127.0.0.1:{metrics}"
        self.file = bench.folder / "root/config/limits.yaml"
        self.file.parent.mkdir(parents=True)
        # Most of the requests are over it.
        limit = "{unit: second, requests_per_unit: 1}"
        self.file.write_text(f"domain: d\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n")
        ports = {"PORT": http, "DEBUG_PORT": debug, "GRPC_PORT": self.grpc, "PROMETHEUS_ADDR": self.instance}
        bench.start(
            "service",
            SERVICE,
            **{name: str(port) for name, port in ports.items()},
            RUNTIME_ROOT=str(self.file.parent.parent),
            REDIS_SOCKET_TYPE="tcp",
            REDIS_URL=f"127.0.0.1:{redis}",
            USE_STATSD="false",
            USE_PROMETHEUS="true",
        )
        until("the service answers", lambda: self.ask(0), 20)

    def ask(self, user):
        """Asks as Envoy does, by gRPC. Returns whether it was answered."""

        def field(number, content):
            return bytes([number << 3 | 2, len(content)]) + content

        entry = field(1, b"user") + field(2, str(user).encode())
        message = field(1, b"d") + field(2, field(1, entry))
        url = f"http://127.0.0.1:{self.grpc}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        command = ["curl", "--silent", "--fail", "--http2-prior-knowledge", *headers, "--data-binary", "@-", url]
        body = b"\0" + len(message).to_bytes(4, "big") + message
        return subprocess.run(command, input=body, stdout=subprocess.DEVNULL).returncode == 0


class Watch:
    """The HTTP API of a Prometheus."""

    def __init__(self, port):
        self.address = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path, **parameters):
        url = self.address + path + "?" + urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(url, timeout=20) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise OSError(f"{url}: {error.read().decode()}") from error

    def now(self, expression):
        """The labels and values in the result of a query."""
        return [(entry["metric"], float(entry["value"][1])) for entry in self.ask("query", query=expression)["result"]]

    def alerts(self):
        """The alerts that are pending or firing, each with its server."""
        return {(one["labels"]["alertname"], one["labels"].get("instance")) for one in self.ask("alerts")["alerts"]}


def changed(text, *changes):
    for old, new in changes:
        assert text.count(old) == 1, f"{old} stands {text.count(old)} times in the file"
        text = text.replace(old, new)
    return text


def variables(watch):
    """The values of the dashboard's variables when Grafana opens it: the first job, all servers."""
    queries = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}

    def values(name, wanted, job=""):
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", queries[name]["query"]["query"]).groups()
        found = watch.ask(f"label/{label}/values", **{"match[]": series.replace("$job", job)})
        assert found == wanted or len(found) == wanted, found
        return found[0]

    job, service = values("job", ["redis-rl"]), values("service", ["redis-rl-envoy"])
    values("instance", 3, job)
    known = {"$job": job, "$service": service, "$instance": queries["instance"]["allValue"]}
    return {**known, "$__rate_interval": "10s"}


def panel_data(watch, panel, known, seconds):
    """Each query of a panel with its result: pairs of labels and samples (time, value)."""
    end = time.time()
    answers = []
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in {**known, "$__range": f"{int(seconds)}s"}.items():
            expression = expression.replace(name, value)
        assert "$" not in expression, expression
        if target["instant"]:
            series = [(entry["metric"], [entry["value"]]) for entry in watch.ask("query", query=expression)["result"]]
        else:
            step = max(1, round(seconds / 120))
            found = watch.ask("query_range", query=expression, start=end - seconds, end=end, step=step)["result"]
            series = [(entry["metric"], entry["values"]) for entry in found]
        answers.append(
            (target, [(labels, [(at, float(value)) for at, value in samples]) for labels, samples in series])
        )
    return answers


# Panels that show zero while all is well.
ZERO = ["Not enforced", "Panics caught", "Replicas behind, bytes", "Replicas behind, seconds", "Not decided"]
# Empty while all is well; checked again when a replica has lost its primary.
EMPTY = "replicas without a link"


def every_panel_has_data(watch, known):
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        for target, series in panel_data(watch, panel, known, 60):
            if target["legendFormat"] == EMPTY:
                continue
            what = f"{panel['title']} ({target['legendFormat']})"
            values = [value for _, samples in series for _, value in samples]
            assert values and all(math.isfinite(value) for value in values), f"{what}: no data: {series}"
            assert panel["title"] in ZERO or any(value != 0 for value in values), f"{what}: all zero"
            names = re.findall(r"{{(\w+)}}", target["legendFormat"])
            assert all(name in labels for labels, _ in series for name in names), f"{what}: {series}"
    return True


def every_field_arrives(watch, servers):
    """Prometheus has exactly the fields of INFO rl, under the names and labels on the page."""
    for instance, client in servers.items():
        expected = {}
        for field, value in client.info("rl").items():
            words = re.fullmatch("rl_(.+)_(allowed|denied)", field)
            if words:
                cmd, outcome = words.groups()
                expected["redis_rl_decisions_total", f"rl.{cmd}", outcome, None] = float(value)
            elif field == "rl_version":
                expected["redis_rl_info", None, None, value] = 1
            elif field == "rl_enforce":
                expected["redis_rl_enforce", None, None, None] = float(value)
            else:
                expected[f"redis_{field}_total", None, None, None] = float(value)
        expected["redis_rl_loaded", None, None, None] = 1
        found = {}
        for labels, value in watch.now(
            f'{{__name__=~"redis_rl_.+", __name__!="redis_rl_clock_seconds", instance="{instance}"}}'
        ):
            name, *rest = (labels.pop(label, None) for label in ("__name__", "cmd", "outcome", "version"))
            assert labels == {"job": "redis-rl", "instance": instance}, labels
            found[name, *rest] = value
        assert found == expected, f"{instance}: Prometheus {found}, INFO rl {expected}"
    assert not watch.now('redis_script_values{key=~"rl_.*"}')
    return True


def the_page_tells_all(watch, exporter, instance):
    """The page names all metrics and alerts, its queries return results, and curl gets from the exporter what it shows."""
    path, word, shown = re.search(r"# curl -s '127.0.0.1:9121(.*)' \| grep (\w+)\n *(.*)", PAGE).groups()
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter}{path.replace('127.0.0.1:6379', instance)}") as reply:
        (line,) = [line for line in reply.read().decode().splitlines() if word in line]
    # Name and labels; the number, and the file that it is from, are those of the day.
    labels, line = (re.sub(r'filename="[^"]*",| \d+$', "", text) for text in (shown, line))
    assert line == labels, f"the exporter shows {line}, the page {labels}"
    (queries,) = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
    for query in queries.splitlines():
        assert query.startswith("#") or watch.now(query), f"no answer to: {query}"
    names = [name for name in watch.ask("label/__name__/values") if name.startswith("redis_rl_")]
    names = [re.sub("_(bucket|count|sum)$", "", name) for name in names]
    rows = re.findall(r"^\| (`redis_rl_[^|]+)\|", PAGE, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(redis_rl_\w+)", row)}
    assert told == set(names), f"the page has {sorted(told)}, Prometheus {sorted(names)}"
    rules = [rule for group in watch.ask("rules")["groups"] for rule in group["rules"]]
    for rule in rules:
        assert rule["health"] == "ok", rule
    alerts = {rule["name"]: rule for rule in rules if rule["type"] == "alerting"}
    headings = re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(alerts), f"the page has {sorted(headings)}, the rules {sorted(alerts)}"
    tests = (SHIPPED / "alerts_test.yml").read_text()
    for name, rule in alerts.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, rule
        assert rule["annotations"]["runbook"] == f"docs/MONITORING.md#{name.lower()}", rule
        firing = re.search(rf"alertname: {name}\n? *,? *exp_alerts:", tests)
        assert firing and f"alertname: {name}}}" in tests, f"{name}: no test that it fires, or none that it does not"


class Site:
    """A primary, its replica, a cluster of one node with too little memory, the exporter and Prometheus."""

    def __init__(self, bench):
        self.bench = bench
        self.ports = {name: free_port() for name in ("primary", "replica", "small")}
        self.instances = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        memory = ["--maxmemory-policy", "volatile-ttl", "--maxmemory"]
        cluster = ["--cluster-enabled", "yes", "--cluster-port", free_port()]
        self.clients = {
            "primary": bench.server("primary", self.ports["primary"], *memory, "64mb"),
            "replica": bench.server(
                "replica", self.ports["replica"], "--replicaof", "127.0.0.1", self.ports["primary"]
            ),
            "small": bench.server("small", self.ports["small"], *memory, "4mb", *cluster),
        }
        self.clients["small"].call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until("the cluster is up", lambda: self.clients["small"].call("CLUSTER", "INFO").startswith("cluster_state:ok"))
        self.service = Service(bench, self.ports["primary"])
        self.exporter_port = free_port()
        self.exporter()
        shutil.copy(SHIPPED / "alerts.yml", bench.folder)
        text = (SHIPPED / "prometheus.yml").read_text()
        targets = "\n".join(f"          - {instance}" for instance in self.instances.values())
        text = changed(
            text,
            ("          - redis-rl:6379", targets),
            ("redis-exporter:9121", f"127.0.0.1:{self.exporter_port}"),
            ("targets: []", f"targets: [{self.service.instance}]"),
            ("  scrape_interval: 15s", "  scrape_interval: 1s"),
            ("  evaluation_interval: 15s", "  evaluation_interval: 1s"),
        )
        (bench.folder / "prometheus.yml").write_text(text)
        port = free_port()
        bench.start(
            "prometheus",
            PROMETHEUS,
            f"--config.file={bench.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={bench.folder / 'prometheus.data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        self.watch = Watch(port)
        until("Prometheus has scraped all servers", lambda: len(self.watch.now("redis_rl_loaded == 1")) == 3)
        until("Prometheus has scraped the service", lambda: self.watch.now("redis_rl_redis_available == 1"))

    def exporter(self, script=True):
        user, password = exporters_user()[1]
        script = ["--script", SHIPPED / "rl.lua"] if script else []
        listen = ["--web.listen-address", f"127.0.0.1:{self.exporter_port}"]
        self.bench.start("exporter", EXPORTER, *script, *listen, REDIS_USER=user, REDIS_PASSWORD=password)


def the_files_work_together(folder):
    with contextlib.ExitStack() as ending:
        bench = Bench(folder)
        ending.callback(bench.stop_all)
        site = Site(bench)
        watch = site.watch
        traffic = Traffic(site.ports["primary"], site.ports["small"], site.service)
        traffic.start()
        ending.callback(traffic.over.set)
        until("every panel has data", lambda: every_panel_has_data(watch, variables(watch)), 120)
        evicting = ("RateLimiterEvicting", site.instances["small"])
        until("the server with little memory raises its alert", lambda: evicting in watch.alerts())
        raised = watch.alerts()
        assert traffic.problem is None, traffic.problem
        traffic.over.set()
        traffic.join()
        expected = {"RateLimiterEvicting", "RateLimiterMemory", "RateLimiterErrors", "RateLimiterRefused"}
        # On a machine that is busy the service may wait longer for Redis than it should.
        busy = {"RateLimitServiceSlow", "RateLimitServiceErrors"}
        assert {name for name, _ in raised} <= expected | busy, raised
        assert ("RateLimiterEvicting", site.instances["primary"]) not in raised, raised
        servers = {site.instances[name]: client for name, client in site.clients.items()}
        until("every field arrives", lambda: every_field_arrives(watch, servers))
        the_page_tells_all(watch, site.exporter_port, site.instances["primary"])
        assert [labels["instance"] for labels, _ in watch.now("redis_cluster_state == 1")] == [site.instances["small"]]
        log = bench.log("exporter")
        assert "level=error" not in log, f"the exporter's user lacks a right:\n{log}"
        print("monitoring: metrics, panels and the page passed", flush=True)

        # Alerts fire when something goes wrong.
        instances = {**site.instances, "service": site.service.instance}

        def raises(name, server):
            until(f"{name} of {server}", lambda: (name, instances[server]) in watch.alerts())

        site.service.file.write_text("domain: [")
        raises("RateLimitServiceConfigRefused", "service")

        site.clients["replica"].call("CONFIG", "SET", "rl.enforce", "no")
        raises("RateLimiterNotEnforced", "replica")
        bench.stop("small")
        bench.server("small", site.ports["small"], module=False)
        raises("RateLimiterWithoutModule", "small")
        bench.stop("primary")
        raises("RateLimiterDown", "primary")
        raises("RateLimiterReplicaCutOff", "replica")
        raises("RateLimitServiceWithoutRedis", "service")
        bench.stop("service")
        raises("RateLimitServiceDown", "service")
        (panel,) = [panel for panel in DASHBOARD["panels"] if panel["title"] == "Replicas behind, seconds"]
        answers = {target["legendFormat"]: series for target, series in panel_data(watch, panel, variables(watch), 60)}
        assert answers[EMPTY], answers
        bench.stop("exporter")
        site.exporter(script=False)
        raises("RateLimiterUnwatched", "replica")
        bench.stop("exporter")
        raises("RateLimiterDown", "replica")
        print("monitoring: alerts on live servers passed", flush=True)


def main():
    folder = tempfile.mkdtemp(prefix="redis-rl-monitoring.")
    try:
        the_files_work_together(folder)
    except BaseException:
        for log in sorted(pathlib.Path(folder).glob("*.log")):
            end = log.read_text(errors="replace").splitlines()[-15:]
            print(f"---- {log.name}, its end:", *end, sep="\n", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
