"""The rules of put, read and delete over any storage, behind `engine.Log`.

Imports codec, storage, reducers, ulid and errors; never the store or what stands above it.
"""
