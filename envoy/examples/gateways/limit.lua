-- Asks redis-rl-envoy about a request in HAProxy: haproxy.cfg, docs/GATEWAYS.md.

core.register_action("limit", {"http-req"}, function(txn)
    local answer = core.httpclient():get{
        url = "http://127.0.0.1:8080/check/example",
        timeout = 1000,
        headers = {
            ["x-tenant"] = {txn.f:req_hdr("x-tenant")},
            ["x-forwarded-uri"] = {txn.f:pathq()},
            ["x-forwarded-for"] = {txn.f:src()},
        },
    }
    local function header(name) return answer.headers and answer.headers[name] and answer.headers[name][0] or "" end
    txn:set_var("txn.limit_status", answer.status or 0)
    txn:set_var("txn.limit_policy", header("ratelimit-policy"))
    txn:set_var("txn.limit_left", header("ratelimit"))
    txn:set_var("txn.limit_wait", header("retry-after"))
end)
