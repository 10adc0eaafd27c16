"""Benchmarks: the workloads, their recorded saver calls, and scripts that measure savers with them.

Run from the project's root in the environment that tools/test or tools/demo makes:
`.venv/bin/python -m bench.size --help`. Results are committed in bench/results/.
"""
