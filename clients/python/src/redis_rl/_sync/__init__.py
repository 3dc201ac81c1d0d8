"""For threads. All but `io` is made of what is in `_async`, by hatch_build.py."""
