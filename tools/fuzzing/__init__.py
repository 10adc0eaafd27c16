"""Coverage-guided search of the decoders, for `tools/fuzz`."""
