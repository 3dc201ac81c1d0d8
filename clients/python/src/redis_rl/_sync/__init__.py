"""For threads. All but `io` and `peer` is made of what is in `_async`, by scripts/make_sync.py."""
