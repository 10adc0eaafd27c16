"""What tools/upstream_suite runs."""
