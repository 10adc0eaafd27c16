"""A store that is open in another process, driven through a pipe; it looks like a Store, a Thread or a DeltaSaver.

The process forks one that holds the store for as long as it is open, and so outlives its being killed. What is passed
and returned is pickled; iterators come back as lists, errors are raised here.
"""

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import deltastore
from deltastore import Store
from deltastore.langgraph import DeltaSaver
from tests.fleet import hear, spawn
from tests.store_machine import SMALL_PACKS

Options = Callable[[], dict[str, Any]]
"""A module's function that returns what to open the store with: reducers have no pickled form."""


# --- the other process ------------------------------------------------------------------------


def serve(options: Options, pipe: Connection) -> None:
    for module, name, value in SMALL_PACKS:
        setattr(module, name, value)
    while True:
        try:
            path, frequency = pipe.recv()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with deltastore.open(path, sync="none", snapshot_frequency=frequency, **options()) as store:
                    pipe.send(("open", None))
                    answer_all(store, pipe)
                code = 0
            finally:
                os._exit(code)
        pipe.send(("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def answer_all(store: Store, pipe: Connection) -> None:
    while True:
        match pipe.recv():
            case ("close",):
                return
            case ("die",):
                os.kill(os.getpid(), signal.SIGKILL)
            case (call, arguments, options):
                pipe.send(answer(call, store, arguments, options))


def answer(call: Callable[..., Any], store: Store, arguments: Any, options: Any) -> tuple[str, Any]:
    try:
        found = call(store, *arguments, **options)
        return "returned", list(found) if isinstance(found, Iterator) else found
    except Exception as error:  # noqa: BLE001 - raised again on the other side
        try:
            pickle.loads(pickle.dumps(error))
        except TypeError:
            error = AssertionError(repr(error))
        return "raised", error


def of_store(store: Store, method: str, *arguments: Any, **options: Any) -> Any:
    found = getattr(store, method)(*arguments, **options)
    return None if method == "copy" else found


def of_thread(store: Store, name: str, namespace: str, method: str, *arguments: Any, **options: Any) -> Any:
    return getattr(store.thread(name, namespace=namespace), method)(*arguments, **options)


def of_saver(store: Store, method: str, *arguments: Any, **options: Any) -> Any:
    if options.get("graph"):
        options["graph"] = options["graph"]()
    return getattr(DeltaSaver(store), method)(*arguments, **options)


# --- this one ---------------------------------------------------------------------------------


class Remote:
    """The other process, with the store open or not."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def open(self, path: str, frequency: int) -> "RemoteStore":
        self.pipe.send((path, frequency))
        assert hear(self.pipe) == ("open", None)
        return RemoteStore(self)

    def close(self) -> None:
        self.pipe.send(("close",))
        assert hear(self.pipe) == ("ended", 0)

    def kill(self) -> None:
        self.pipe.send(("die",))
        assert hear(self.pipe) == ("ended", -signal.SIGKILL)

    def ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.pipe.send((call, arguments, options))
        how, what = hear(self.pipe)
        if how == "raised":
            raise what
        assert how == "returned", (how, what)
        return iter(what) if isinstance(what, list) and call is not of_saver else what


class RemoteStore:
    """A store that the other process has open."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def thread(self, name: str, *, namespace: str = "") -> Any:
        return _Proxy(self.remote, of_thread, name, namespace)

    def saver(self) -> Any:
        return _Proxy(self.remote, of_saver)

    def close(self) -> None:
        self.remote.close()

    def __getattr__(self, method: str) -> Any:
        return getattr(_Proxy(self.remote, of_store), method)


class _Proxy:
    def __init__(self, remote: Remote, call: Callable[..., Any], *prefix: Any) -> None:
        self._remote = remote
        self._call = call
        self._prefix = prefix

    def __getattr__(self, method: str) -> Any:
        def ask(*arguments: Any, **options: Any) -> Any:
            return self._remote.ask(self._call, *self._prefix, method, *arguments, **options)

        return ask


@contextmanager
def other_process(options: Options) -> Iterator[Remote]:
    process, pipe = spawn(serve, options)
    try:
        yield Remote(pipe)
    finally:
        pipe.close()
        process.join(10)
        process.kill()
        process.join()
        process.close()
