"""For asyncio. All but `io` and `peer` has a twin in `_sync`, which hatch_build.py makes."""
