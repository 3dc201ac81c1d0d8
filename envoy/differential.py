#!/usr/bin/env python3
"""Asks this service and envoyproxy/ratelimit the same questions, and compares every field of every answer.

    ./differential.py [--seed N] [--requests N] [--files N]

It needs Go, redis-server, the module (`make build`; MODULE names another file) and the service (`cargo build`; SERVICE names
another program). envoyproxy/ratelimit is built from the Go module proxy into .er, once.

Files: generated configurations and damaged ones are given to both; each has to be accepted or refused by both. Requests: 70
generated domains are loaded into both, on one Redis, and asked by /json. What differs on purpose (docs/ENVOY.md) is kept out
of the requests: where a limit can deny, a request has one descriptor and one hit.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
KEYS = ["a", "b", "path", "user", "x*", "k.e"]
VALUES = ["", "v", "w", "v1", "foo", "foo1", "foobar", "b", "/x/y", "1.2.3.4", "*", "c|d", "{t}", "%", "ä"]
UNITS = ["hour", "day", "week", "month", "year"]
SCALARS = """5 010 0o10 0x1F 0b11 1_000 -1 4294967295 4294967296 9223372036854775808 5.0 1e3 '5' "5" yes null ~ [5] {a: 5}
2001-01-01 !!int 5|!!str 5|!!float 5|!x 5 +5 0 1__0 08 09 .5 .inf NaN 0b 0x 1:30"""
VALID = """domain: d
descriptors:
  - key: key1
    value: value*
    share_threshold: yes
    descriptors:
      - key: sub
        rate_limit: {unit: day, requests_per_unit: 010, name: x}
        shadow_mode: false
  - key: "q: r"
    rate_limit:
      unit: hour
      requests_per_unit: 1_0
      replaces:
        - name: x
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def peer():
    """The programs of envoyproxy/ratelimit: the service, and what checks a folder of files."""
    subprocess.run([HERE / "peer.sh"], check=True)
    return HERE / ".er/service_cmd", HERE / ".er/config_check_cmd"


def descriptors(depth, charging, indent):
    """Lines of a list of descriptors. charging: limits that are never reached, so that any request can be compared."""
    lines, seen, pad = [], set(), "  " * indent
    for _ in range(random.randint(1, 4)):
        key, value = random.choice(KEYS), random.choice([*VALUES, "", "foo*", "v*", "*"])
        name = f"{key}_{value}" if value else key
        # The version that can be built knows no star inside a value.
        if name in seen or "*" in name[:-1]:
            continue
        seen.add(name)
        lines.append(f"{pad}- key: {json.dumps(key)}")
        if value:
            lines.append(f"{pad}  value: {json.dumps(value)}")
        if random.random() < 0.75:
            limit = {}
            if random.random() < 0.1:
                limit["unlimited"] = True
            else:
                shadow = random.random() < 0.2
                small = random.choice([0, 1, 2, 3, 5, 8])
                limit.update(unit=random.choice(UNITS), requests_per_unit=small if shadow or not charging else 1_000_000)
                if shadow:
                    lines.append(f"{pad}  shadow_mode: true")
            if random.random() < 0.3:
                limit["name"] = f"n{random.randint(0, 3)}"
            if random.random() < 0.2:
                limit["replaces"] = [{"name": name} for name in {f"n{random.randint(4, 7)}", f"n{random.randint(4, 7)}"}]
            if random.random() < 0.1 and "name" not in limit:
                limit["replaces"] = [{"name": f"n{random.randint(0, 3)}"}]
            lines.append(f"{pad}  rate_limit: {json.dumps(limit)}")
        lines += [f"{pad}  {flag}: true" for flag in ("detailed_metric", "value_to_metric") if random.random() < 0.15]
        if name.endswith("*") and random.random() < 0.5:
            lines.append(f"{pad}  share_threshold: true")
        if depth < 2 and random.random() < 0.4:
            lines += [f"{pad}  descriptors:", *descriptors(depth + 1, charging, indent + 2)]
    return lines


def descriptor(charging):
    def entry():
        return {"key": random.choice(KEYS), "value": random.choice(VALUES)}

    made = {"entries": [entry() for _ in range(random.choice([1, 1, 1, 2, 2, 3]))]}
    # Where a limit can deny, another limit at its counter would see what the denials have charged there.
    if charging and random.random() < 0.1:
        made["limit"] = {"requestsPerUnit": 1_000_000, "unit": random.choice(UNITS).upper()}
    if charging and random.random() < 0.2:
        made["hitsAddend"] = str(random.choice([0, 1, 2, 7, 100]))
    return made


def request(domain, charging):
    while True:
        asked = [descriptor(charging) for _ in range(random.randint(1, 4) if charging else 1)]
        # The same counter twice is one of the differences, and a pattern may be shared by any values.
        if len({json.dumps([entry["key"] for entry in each["entries"]]) for each in asked}) == len(asked):
            break
    made = {"domain": domain if random.random() > 0.02 else "nowhere", "descriptors": asked}
    if charging and random.random() < 0.2:
        made["hitsAddend"] = random.choice([0, 1, 2, 5])
    if random.random() < 0.01:
        made["descriptors"] = []
    return json.dumps(made)


class Seconds(int):
    """A time until a reset. Two that differ by a second are equal: the services are asked one after the other."""

    def __eq__(self, other):
        return abs(int(self) - int(other)) <= 1

    def __ne__(self, other):
        return not self == other

    __hash__ = int.__hash__


def answer(connection, body):
    connection.request("POST", "/json", body)
    reply = connection.getresponse()
    text = reply.read().decode()
    if not text.startswith("{"):
        return reply.status, text
    fields = json.loads(text)
    for status in fields.get("statuses", []):
        if "durationUntilReset" in status:
            status["durationUntilReset"] = Seconds(status["durationUntilReset"][:-1])
    headers = {header["key"]: header["value"] for header in fields.pop("responseHeadersToAdd", [])}
    if "RateLimit-Reset" in headers:
        headers["RateLimit-Reset"] = Seconds(headers["RateLimit-Reset"])
    return reply.status, fields, headers


def metrics(port):
    """The counters of the limits that are not 0."""
    found = {}
    for line in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().splitlines():
        name, _, value = line.rpartition(" ")
        # What a deny cache answers, and domains without a configuration, have no fixed name there.
        other = "local_cache" in name or "domain_not_found" in name
        if name.startswith("ratelimit_service_rate_limit") and not other and float(value):
            name, _, labels = name.partition("{")
            found[name, tuple(sorted(labels.rstrip("}").split('",')))] = float(value)
    return found


def compare_requests(count, service, er):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "app", "config")
        config.mkdir(parents=True)
        domains = [(f"domain{number}", number % 2 == 0) for number in range(70)]
        for name, charging in domains:
            text = "\n".join([f"domain: {name}", "descriptors:", *descriptors(0, charging, 1)])
            (config / f"{name}.yaml").write_text(text + "\n")
        redis = free_port()
        module = os.environ.get("MODULE", HERE.parent / "target/release/libredis_rl.so")
        words = ["redis-server", "--port", str(redis), "--save", "", "--loadmodule", str(module), "--dir", folder]
        running = [subprocess.Popen(words, stdout=subprocess.DEVNULL)]
        ports = []
        try:
            for program in (er, service):
                door, grpc, debug, prometheus = (free_port() for _ in range(4))
                ports.append((door, debug, prometheus))
                environment = {
                    **os.environ,
                    "RUNTIME_ROOT": folder,
                    "RUNTIME_SUBDIRECTORY": "app",
                    "USE_STATSD": "false",
                    "USE_PROMETHEUS": "true",
                    "STATS_FLUSH_INTERVAL": "1s",
                    "PROMETHEUS_ADDR": f":{prometheus}",
                    "PORT": str(door),
                    "GRPC_PORT": str(grpc),
                    "DEBUG_PORT": str(debug),
                    "REDIS_SOCKET_TYPE": "tcp",
                    "REDIS_URL": f"127.0.0.1:{redis}",
                    "REDIS_DEADLINE": "5s",
                    "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
                    "LOG_LEVEL": "error",
                }
                running.append(subprocess.Popen([program], env=environment, stderr=subprocess.DEVNULL))
            for door, _, _ in ports:
                deadline = time.monotonic() + 30
                while True:
                    try:
                        urllib.request.urlopen(f"http://127.0.0.1:{door}/healthcheck")
                        break
                    except OSError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.05)
            dumps = [urllib.request.urlopen(f"http://127.0.0.1:{debug}/rlconfig").read() for _, debug, _ in ports]
            same = sorted(dumps[0].splitlines()) == sorted(dumps[1].splitlines())
            print("the configurations are read", "alike" if same else "DIFFERENTLY")
            theirs, ours = (http.client.HTTPConnection("127.0.0.1", each[0]) for each in ports)
            differ, statuses = 0 if same else 1, collections.Counter()
            for _ in range(count):
                body = request(*random.choice(domains))
                expected, got = answer(theirs, body), answer(ours, body)
                statuses[expected[0]] += 1
                if expected != got:
                    differ += 1
                    print(f"request  {body}\n  theirs {expected}\n  ours   {got}")
            # Theirs are flushed every second.
            time.sleep(2.5)
            expected, got = metrics(ports[0][2]), metrics(ports[1][2])
            for name in sorted(expected.keys() | got.keys()):
                if expected.get(name) != got.get(name):
                    differ += 1
                    print(f"metric {name}: theirs {expected.get(name)}, ours {got.get(name)}")
            print(f"{count} requests ({dict(statuses)}), {len(expected)} metrics: {differ} differ")
            return differ
        finally:
            for process in running:
                process.kill()
                process.wait()


def files(count):
    """Generated configurations: every kind of value at every place, and a valid one with a few characters changed."""
    limit = "    rate_limit:\n      unit: minute\n      requests_per_unit: 5\n"
    start = "domain: d\ndescriptors:\n  - key: a\n"
    places = [
        start + "    rate_limit:\n      unit: minute\n      requests_per_unit: {}\n",
        start + "    rate_limit:\n      unit: {}\n      requests_per_unit: 5\n",
        start + "    rate_limit:\n      unlimited: {}\n",
        start + "    shadow_mode: {}\n" + limit,
        "domain: d\ndescriptors:\n  - key: {}\n" + limit,
        start + "    value: {}\n" + limit,
        "domain: {}\n",
        start + "    rate_limit: {}\n",
        "domain: d\ndescriptors: {}\n",
        start + "    descriptors: {}\n",
        start + limit + "      replaces: {}\n",
        start + "    {}: x\n",
        "unit: {}\n" + start,
    ]
    scalars = [scalar for part in SCALARS.split("|") for scalar in ([part] if part.startswith("!") else part.split())]
    made = [place.replace("{}", scalar) for place in places for scalar in scalars]
    while len(made) < count:
        text = list(VALID)
        for _ in range(random.choice([1, 1, 2, 3])):
            at, how = random.randrange(len(text)), random.random()
            if how < 0.4:
                text[at] = random.choice("\n :-[]{}'\"#&*!|>%@`,?ab0")
            elif how < 0.7:
                del text[at]
            else:
                text.insert(at, random.choice("\n :-[]{}'\"#&*!|>%@`,?ab0"))
        made.append("".join(text))
    return random.sample(made, count)


def compare_files(count, service, check):
    differ = accepted = 0
    environment = {**os.environ, "USE_STATSD": "false"}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "c.yaml")
        for text in files(count):
            path.write_text(text)
            theirs = subprocess.run([check, "-config_dir", folder], capture_output=True, env=environment)
            ours = subprocess.run([service, "--check", folder], capture_output=True, text=True)
            accepted += theirs.returncode == 0
            if (theirs.returncode == 0) != (ours.returncode == 0):
                differ += 1
                reason = theirs.stderr.decode(errors="replace").splitlines()[:1]
                print(f"file     {text!r}\n  theirs {theirs.returncode} {reason}\n  ours   {ours.stdout.strip()}")
    print(f"{count} files, {accepted} of them accepted: {differ} differ")
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=500)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    service = os.environ.get("SERVICE", HERE / "target/debug/redis-rl-envoy")
    er, check = peer()
    differ = compare_files(arguments.files, service, check) + compare_requests(arguments.requests, service, er)
    raise SystemExit(1 if differ else 0)


if __name__ == "__main__":
    main()
