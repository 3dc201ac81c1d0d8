#!/usr/bin/env bash
# Tests docker/monitoring/: the rules with promtool, and all of it with live servers, an exporter and a Prometheus.
#
# It needs the rate limit service, built in envoy/ (SERVICE names another). PROMETHEUS, PROMTOOL and EXPORTER select programs other
# than those in the PATH. Missing programs are extracted from Debian's packages into a cache, without installing them: the packages
# would start services on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/redis-rl/monitoring

say() { printf 'monitoring: %s\n' "$*" >&2; }

# program NAME PACKAGE ...: the path of the program; if it is missing, extracted from the first of the packages that has it.
program() {
    local name=$1 package
    shift
    if command -v "$name"; then return; fi
    for package in "$@"; do
        if [ ! -x "$cache/usr/bin/$name" ] && apt-cache show "$package" >/dev/null 2>&1; then
            say "there is no $name here: taking it out of Debian's package $package, into $cache"
            mkdir -p "$cache/packages"
            (cd "$cache/packages" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2)
            dpkg-deb -x "$cache"/packages/"$package"_*.deb "$cache"
            rm -rf "$cache/packages"
        fi
    done
    [ -x "$cache/usr/bin/$name" ] || { say "there is no $name here, nor a Debian package with it (apt-get update?)"; exit 1; }
    echo "$cache/usr/bin/$name"
}

PROMETHEUS=${PROMETHEUS:-$(program prometheus prometheus)}
PROMTOOL=${PROMTOOL:-$(program promtool promtool prometheus)}
EXPORTER=${EXPORTER:-$(program prometheus-redis-exporter prometheus-redis-exporter)}
export PROMETHEUS EXPORTER
"$PROMETHEUS" --version 2>&1 | sed -n 's/^\(prometheus, version [^ ]*\).*/monitoring: \1/p'
"$EXPORTER" --version 2>&1 | sed -n 's/.*msg="\(Redis Metrics Exporter [^ ]*\).*/monitoring: \1/p'

"$PROMTOOL" check config docker/monitoring/prometheus.yml
"$PROMTOOL" test rules docker/monitoring/alerts_test.yml
exec python3 scripts/monitoring/live.py
