"""Upkeep of a store: work that no put or read does. Imports store and below; never imported by them."""
