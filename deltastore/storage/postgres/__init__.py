"""The storage on PostgreSQL: the same rows in one table, for stores that many machines share.

`storage.py` is the handle, `transaction.py` and `writing.py` what it gives; they know the server through `pool.py` and
`wire.py` alone. Needs psycopg (the extra `postgres`), so it is imported only by whoever opens such a store.
"""
