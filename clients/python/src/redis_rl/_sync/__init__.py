"""For threads. All but `io` and `peer` is made of what is in `_async`, by hatch_build.py."""
