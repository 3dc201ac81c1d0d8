#!/usr/bin/env bash
# Lints the Helm chart in deploy/helm, renders it with each of its values files, and holds what comes out to the schemas of
# Kubernetes as far as scripts/check-manifests.py can.
#
#   scripts/test-deploy.sh
#
# HELM names the program. Without one, it is built with Go into target/tools, once, in about two minutes. Where there is no Go
# either, or Go can fetch nothing, the chart is not tested, and the script says so.
set -euo pipefail
cd "$(dirname "$0")/.."

chart=deploy/helm/redis-rl-envoy
fail() { printf 'deploy: %s\n' "$*" >&2; exit 1; }

helm=${HELM:-$(command -v helm || true)}
if [ -z "$helm" ]; then
    helm=$PWD/target/tools/helm
    if [ ! -x "$helm" ] && command -v go >/dev/null; then
        echo 'deploy: building helm into target/tools, once' >&2
        GOBIN=$PWD/target/tools go install helm.sh/helm/v3/cmd/helm@v3.22.0 || true
    fi
    if [ ! -x "$helm" ]; then
        echo 'deploy: THE HELM CHART IS NOT TESTED: there is no helm here, and none could be built with Go' >&2
        exit 0
    fi
fi
"$helm" version --template 'deploy: helm {{.Version}}{{"\n"}}'

# The oldest that the chart is for. A helm that was built with `go install` knows no version by itself.
kubernetes=(--kube-version 1.30.0)
rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
for values in "$chart"/values-*.yaml; do
    "$helm" lint --quiet --strict "${kubernetes[@]}" --values "$values" "$chart"
    "$helm" template limits "$chart" "${kubernetes[@]}" --namespace envoy-gateway-system \
        --values "$values" >"$rendered/$(basename "$values")"
done
scripts/check-manifests.py "$rendered"/*.yaml

# Each template was rendered at least once, else a part of the chart was not checked.
for template in "$chart"/templates/*.yaml; do
    grep -q "^# Source: .*/$(basename "$template")\$" "$rendered"/*.yaml || fail "$template: no values file renders it"
done

# holds FILE LINE: the line is in what a values file renders.
holds() { grep -q -F -- "$2" "$rendered/$1" || fail "$1: does not render '$2'"; }
# The names that Envoy AI Gateway has in its code.
holds values-envoy-ai-gateway.yaml '  name: envoy-ai-gateway-ratelimit'
holds values-envoy-ai-gateway.yaml '{name: grpc, port: 8081,'
holds values-envoy-ai-gateway.yaml '{name: CONFIG_GRPC_XDS_NODE_ID, value: "envoy-ai-gateway-ratelimit"}'
# Large numbers are not written as 1e+06.
holds values-example.yaml '{name: DENY_CACHE, value: "1000000"}'
holds values-example.yaml 'requests_per_unit: 1000000}'

# refused WORDS ARGUMENT ...: the chart does not render, and says why.
refused() {
    local words=$1
    shift
    if "$helm" template limits "$chart" "${kubernetes[@]}" "$@" >"$rendered/refused" 2>&1; then fail "rendered with $*"; fi
    grep -q -- "$words" "$rendered/refused" || fail "$*: $(cat "$rendered/refused")"
}
refused 'all requests would pass'
refused 'give one of them' --set xds.url=x:1 --set 'limits.a\.yaml=domain: a'
refused 'must be a string' --set 'limits.a\.yaml.domain=a'
echo 'deploy: the chart renders with each of its values files'
