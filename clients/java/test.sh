#!/bin/sh
# Checks formatting, lints and tests the package, on live servers. MODULE is the module's file
# (target/release/libredis_rl.so of the repository unless set), SERVER the server. Arguments go to Maven.
set -eu
cd "$(dirname "$0")"

if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
    printf '\n%s\n%s\n\n' '*** THERE IS NO JDK OR NO MAVEN HERE: THE PACKAGE FOR JAVA IS NOT TESTED ***' \
        '*** (a JDK from 17 on, and Maven from 3.8 on) ***' >&2
    exit 0
fi
# What Maven and the tests run is not run for long enough to be compiled well.
export MAVEN_OPTS="${MAVEN_OPTS:--XX:TieredStopAtLevel=1}"
maven() { mvn --batch-mode --no-transfer-progress "$@"; }

maven verify "$@"
# As they were compiled, with the oldest Lettuce and Jedis; meanwhile:
maven --activate-profiles oldest --projects redis-rl -Dtest=LiveTest,ClusterTest surefire:test \
    >redis-rl/target/oldest.log 2>&1 &
oldest=$!
trap 'kill "$oldest" 2>/dev/null || true' EXIT
# What was compiled against Boot 3.5 on Boot 4, with the same tests.
maven --activate-profiles boot-4 --projects redis-rl-spring-boot-starter --also-make -Dmaven.main.skip \
    -Dspotless.check.skip -Dtest='redisrl.spring.*Test' -Dsurefire.failIfNoSpecifiedTests=false test
passed=0
wait "$oldest" || passed=$?
cat redis-rl/target/oldest.log
exit "$passed"
