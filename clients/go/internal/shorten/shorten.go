// Package shorten keeps the keys of adapters short, whatever a client sends.
package shorten

import (
	"crypto/sha256"
	"fmt"
	"unicode/utf8"
)

const (
	// Identities that are longer, in bytes, are their beginning with this mark and a digest.
	Longest, Kept = 512, 64
	Mark          = "%sha256:"
)

// Identity is an identity that is not too long for a key, as a header may be.
func Identity(text string) string {
	if len(text) <= Longest {
		return text
	}
	end := Kept
	for end < Kept+utf8.UTFMax-1 && !utf8.RuneStart(text[end]) {
		end++
	}
	return fmt.Sprintf("%s%s%x", text[:end], Mark, sha256.Sum256([]byte(text)))
}
