"""Benchmarks: the workloads, their recorded saver calls, and scripts that measure savers with them.

tools/bench runs all that docs/benchmarks.md is made of. A script alone, from the project's root in the environment that
the scripts in tools/ make: `.venv/bin/python -m bench.compare --help`. Results are committed in bench/results/.
"""
