"""For asyncio. All but `io` and `peer` has a twin in `_sync`, which scripts/make_sync.py makes."""
