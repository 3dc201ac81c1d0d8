package redisrl

import (
	"cmp"
	"net/netip"
	"strings"

	"redis-rl.example/clients/go/internal/shorten"
)

const defaultIPv6Prefix = 64 // How many bits of an address count.

// KeyFor is the key at which an adapter counts an identity under a rule, for [Limiter.Peek], [Limiter.Reset] and so on: the
// prefix ("rl:" unless the adapter has another), the policy and the identity in a hash tag. Other rules have other keys, and
// all of one identity lie in one slot of a cluster.
func KeyFor(prefix string, rule Rule, identity string) string {
	return keyFor(prefix, policyOf(rule), identity)
}

func keyFor(prefix, policy, identity string) string {
	return prefix + policy + ":{" + shorten.Identity(inIdentity.Replace(identity)) + "}"
}

// policyOf is what the rule is called in keys: its name, else its kind with its limits and windows.
func policyOf(rule Rule) string {
	return inPolicy.Replace(cmp.Or(rule.options().name, rule.described()))
}

var (
	inIdentity = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
	inPolicy   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", ":", "%3A")
)

// Addresses read who a request counts for: the address of its client. The zero value trusts no proxies.
type Addresses struct {
	trusted []netip.Prefix
	// ipv6Prefix is 0 where it was not given.
	ipv6Prefix int
}

// NewAddresses takes the addresses and networks of your proxies ("10.0.0.0/8"), whose X-Forwarded-For is believed, and how
// many bits of an IPv6 address count: 64 where it is 0, as one client usually has at least that.
func NewAddresses(trusted []string, ipv6Prefix int) (*Addresses, error) {
	if ipv6Prefix < 0 || ipv6Prefix > 128 {
		return nil, invalid("the bits of an IPv6 address that count must be from 1 to 128, not %d", ipv6Prefix)
	}
	addresses := &Addresses{ipv6Prefix: ipv6Prefix}
	for _, text := range trusted {
		network, err := netip.ParsePrefix(text)
		if address, single := netip.ParseAddr(text); single == nil {
			address = address.Unmap()
			network, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return nil, invalid("a trusted proxy is an address or a network such as 10.0.0.0/8, not %q", text)
		}
		addresses.trusted = append(addresses.trusted, network.Masked())
	}
	return addresses, nil
}

// Of is the identity of a request with this peer and these lines of X-Forwarded-For; empty if it has none.
func (a *Addresses) Of(peer string, forwarded []string) string {
	address, ok := readAddress(peer)
	if !ok {
		return ""
	}
	if lines := strings.Join(forwarded, ","); strings.Trim(lines, ",") != "" && a.trusts(address) {
		// The last proxy has added the last address. Of a trusted one, the address before it is believed, too.
		texts := strings.Split(lines, ",")
		for i := len(texts) - 1; i >= 0 && a.trusts(address); i-- {
			if address, ok = readAddress(strings.TrimSpace(texts[i])); !ok {
				return ""
			}
		}
	}
	if address.Is4() || a.ipv6Prefix == 128 {
		return address.String()
	}
	network, err := address.Prefix(cmp.Or(a.ipv6Prefix, defaultIPv6Prefix))
	if err != nil {
		return ""
	}
	return network.String()
}

func (a *Addresses) trusts(address netip.Addr) bool {
	for _, network := range a.trusted {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// readAddress reads an address, with a port or in brackets as X-Forwarded-For may have it. An IPv4 address in IPv6 form is
// one of IPv4, and zones do not count.
func readAddress(text string) (netip.Addr, bool) {
	if with, err := netip.ParseAddrPort(text); err == nil {
		return with.Addr().Unmap().WithZone(""), true
	}
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		text = text[1 : len(text)-1]
	}
	address, err := netip.ParseAddr(text)
	return address.Unmap().WithZone(""), err == nil
}
