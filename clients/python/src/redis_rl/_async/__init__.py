"""For asyncio. All but `io` has a twin in `_sync`, which hatch_build.py makes."""
