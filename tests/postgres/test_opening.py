"""Opening a store by its URL: options, privileges, and tables that aren't there or are of another release."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import deltastore
from deltastore import FormatError, InvalidInputError, StorageError, StorePathError, UnavailableError
from deltastore.cli import main
from deltastore.langgraph import DeltaSaver
from deltastore.opening import migrate
from deltastore.storage.postgres import address, migrating
from tests.postgres_server import PostgresServer


def schema_of(url: str) -> str:
    return url.rpartition("=")[2]


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url.partition("?")[0]) as admin:
        for statement in statements:
            admin.execute(statement)  # type: ignore[arg-type]


class TestAddress:
    def test_what_is_ours_and_what_is_libpqs(self) -> None:
        found = address.parse("postgresql://u:p@h:1,i:2/d?schema=s&pool_size=3&sslmode=require&connect_timeout=3")
        assert (found.schema, found.pool_size, found.locking) == ("s", 3, None)
        assert found.parameters["host"] == "h,i"
        assert found.parameters["sslmode"] == "require"
        assert found.parameters["connect_timeout"] == "3"
        assert "schema" not in found.parameters
        assert found.location == "postgresql://u@h:1,i:2/d?schema=s"

    def test_options_come_before_the_url(self) -> None:
        found = address.parse("postgres://h/d?schema=s&pool_size=3", schema="t", pool_size=5)
        assert (found.schema, found.pool_size) == ("t", 5)
        assert address.parse("postgresql:///d").schema == "deltastore"

    @pytest.mark.parametrize(
        ("url", "match"),
        [
            ("postgresql://h/d?schema=", "the schema ''"),
            ("postgresql://h/d?schema=Big", "the schema 'Big'"),
            ('postgresql://h/d?schema=a"b', "the schema"),
            ("postgresql://h/d?schema=pg_x", "the schema 'pg_x'"),
            ("postgresql://h/d?schema=" + "x" * 64, "the schema"),
            ("postgresql://h/d?pool_size=0", "pool_size is 0"),
            ("postgresql://h/d?pool_size=many", "pool_size"),
            ("postgresql://h/d?locking=none", "locking is 'none'"),
            ("postgresql://h/d?wrong=1", "can't be read"),
            ("postgresql://[h/d", "can't be read"),
        ],
    )
    def test_what_can_not_be_meant(self, url: str, match: str) -> None:
        with pytest.raises(InvalidInputError, match=match):
            deltastore.open(url)


class TestOptions:
    def test_a_path_has_no_schema(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="schema is for stores on PostgreSQL"):
            deltastore.open(tmp_path / "s", schema="s")
        with pytest.raises(InvalidInputError, match="pool_size is for stores on PostgreSQL"):
            deltastore.open(":memory:", pool_size=2)

    def test_a_url_has_no_max_bytes_and_no_sync_in_between(self) -> None:
        with pytest.raises(InvalidInputError, match="max_bytes"):
            deltastore.open("postgresql://h/d", max_bytes=1 << 30)
        with pytest.raises(InvalidInputError, match="'full' or 'none'"):
            deltastore.open("postgresql://h/d", sync="meta")

    def test_a_saver_from_a_url(self, postgres_url: str, tmp_path: Path) -> None:
        with DeltaSaver.from_url(postgres_url, snapshot_frequency=3, pool_size=2) as saver:
            assert saver.store.log.snapshot_frequency == 3
        with pytest.raises(InvalidInputError, match="no URL"):
            DeltaSaver.from_url(str(tmp_path))
        assert list(tmp_path.iterdir()) == []

    def test_what_a_server_does_for_itself(self, postgres_url: str, tmp_path: Path) -> None:
        with deltastore.open(postgres_url, sync="none") as store:
            store.thread("t").append({"n": 1})
            with pytest.raises(UnavailableError, match="pg_dump"):
                deltastore.backup(store, tmp_path / "backup")
            with pytest.raises(UnavailableError, match="VACUUM"):
                deltastore.shrink(store)
            assert deltastore.check(postgres_url).ok
        assert list(tmp_path.iterdir()) == []

    def test_commits_are_durable_whatever_the_server_does_else(self, postgres_url: str) -> None:
        execute(postgres_url, "ALTER ROLE owner SET synchronous_commit TO off")
        try:
            with deltastore.open(postgres_url) as store, store.log.storage.write() as tx:
                tx.get(b"anything")
                (rows,) = tx._exchange([storage_setting()])  # type: ignore[attr-defined]
                assert rows == [(b"on",)]
        finally:
            execute(postgres_url, "ALTER ROLE owner RESET synchronous_commit")


def storage_setting():
    from deltastore.storage.postgres.wire import Statement

    return Statement(b"SELECT current_setting('synchronous_commit')::bytea")


class TestTables:
    def test_nothing_is_made_unless_it_is_wanted(self, postgres_url: str) -> None:
        with pytest.raises(StorePathError, match="holds no store"):
            deltastore.open(postgres_url, create=False)
        deltastore.open(postgres_url).close()
        deltastore.open(postgres_url, create=False).close()

    def test_stores_of_one_database_know_nothing_of_each_other(self, postgres_url: str) -> None:
        with deltastore.open(postgres_url) as one, deltastore.open(postgres_url, schema="another_one") as other:
            one.thread("t").append({"n": 1})
            assert list(other.threads()) == []

    def test_tables_of_a_newer_release_are_refused(self, postgres_url: str) -> None:
        deltastore.open(postgres_url).close()
        execute(postgres_url, f"INSERT INTO {schema_of(postgres_url)}.migrations (version) VALUES (99)")
        with pytest.raises(FormatError, match=r"version 99.*newer release"):
            deltastore.open(postgres_url)

    def test_without_advisory_locks_they_are_made_once_too(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(migrating, "_WITHOUT_ADVISORY_LOCKS", (b"PostgreSQL",))
        with deltastore.open(postgres_url) as store:
            assert store.log.storage.salt is None  # type: ignore[attr-defined]
            store.thread("t").append({"n": 1})
            assert store.thread("t").state() == {"n": 1}


@pytest.fixture
def limited(postgres: PostgresServer, postgres_url: str) -> Iterator[str]:
    """The URL of a store as a role sees it that may make nothing."""
    execute(postgres_url, "CREATE ROLE app LOGIN")
    yield postgres_url.replace("owner@", "app@")
    execute(postgres_url, "DROP OWNED BY app", "DROP ROLE app")


class TestLockedDown:
    def test_who_may_make_nothing_is_told_what_to_do(self, limited: str) -> None:
        with pytest.raises(StorageError, match="deltastore migrate URL --role ROLE"):
            deltastore.open(limited)

    def test_an_administrator_makes_the_tables(
        self, limited: str, postgres_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["migrate", postgres_url, "--role", "app", "--dry-run"]) == 0
        shown = capsys.readouterr().out
        assert "CREATE TABLE" in shown
        assert 'GRANT USAGE ON SCHEMA "' in shown
        with pytest.raises(StorePathError):
            deltastore.open(postgres_url, create=False)
        assert main(["migrate", postgres_url, "--role", "app", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["found"], done["version"]) == (0, 1)
        assert "".join(f"{statement};\n\n" for statement in done["statements"]) == shown
        with deltastore.open(limited) as store:
            store.thread("t").append({"n": 1})
            assert store.thread("t").state() == {"n": 1}
            assert deltastore.check(store).ok
        assert migrate(postgres_url).statements == ()
        assert main(["migrate", postgres_url]) == 0
        assert "version 1 before, version 1 now" in capsys.readouterr().out

    def test_what_is_printed_does_the_same(self, limited: str, postgres_url: str) -> None:
        execute(postgres_url, *migrate(postgres_url, role="app", dry_run=True).statements)
        with deltastore.open(limited, create=False) as store:
            store.thread("t").append({"n": 1})

    def test_a_path_has_nothing_to_migrate(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["migrate", str(tmp_path)]) == 2
        assert "no URL of a store" in capsys.readouterr().err


def test_commands_take_urls(postgres_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with deltastore.open(postgres_url) as store:
        store.thread("t").append({"m": [1]})
    dump = str(tmp_path / "t.dump")
    for call in (["info"], ["threads"], ["show", "t"], ["log", "t"], ["stats"], ["check"], ["compact"], ["dump", dump]):
        assert main([call[0], postgres_url, *call[1:]]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["info", postgres_url, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["kind"], info["threads"]) == ("postgres", 1)
    assert main(["load", postgres_url, dump, "--skip-existing"]) == 0
    assert main(["info", postgres_url + "none"]) == 5
