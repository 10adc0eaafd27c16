"""What is kept: deletions, copies and tags, as LangGraph's savers offer them, and more.

Imports reading, deletions and configs. The invariant: each thread is changed in one transaction, and what stays reads
as before.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory

from deltastore.errors import InvalidInputError, ThreadNotFoundError
from deltastore.langgraph.base import off_loop
from deltastore.langgraph.configs import address, config_of, id_of, run_name, several, thread_name
from deltastore.langgraph.reading import ReadingSaver
from deltastore.log import rows
from deltastore.store import check_name

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

    from deltastore.log import choosing


class KeepingSaver(ReadingSaver):
    """The methods that delete, copy and tag."""

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces; an unknown one is none. Its bytes go with the next compaction."""
        self._log.keeping.delete_thread(thread_name(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, off the event loop."""
        await off_loop(self.delete_thread, thread_id)

    def delete_for_runs(
        self, run_ids: Sequence[str], *, erase: bool = False, graph: "Pregel[Any, Any, Any, Any] | None" = None
    ) -> None:
        """Delete the checkpoints whose metadata names one of these runs, with their writes, in all threads.

        Metadata have a `run_id` where it was given in a config's `configurable` or `metadata`, not at its top.
        Each thread in one transaction, its sub-graph calls included; unknown runs are none. What the history of other
        checkpoints' delta channels needs stays, hidden; with `erase` nothing stays, and `graph`, which wrote the
        threads, folds what would be lacking. Reads the metadata of all checkpoints of the store.

        Raises InvalidInputError, InvalidIdError, BrokenChainError; with `erase` also ContentionError, and
        CheckpointNotFoundError where a history that would have to be folded is lost already.
        """
        from deltastore.langgraph import deletions  # whoever puts and reads needs none of it
        from deltastore.log import choosing

        runs = frozenset(map(run_name, several(run_ids, "run_ids")))
        if not runs:
            return
        for row in self._log.all_threads():
            found = deletions.of_runs(self._log, self._codec, row.name, runs)
            if found:
                self._delete(row.name, partial(choosing.these, found), erase, graph)

    async def adelete_for_runs(
        self, run_ids: Sequence[str], *, erase: bool = False, graph: "Pregel[Any, Any, Any, Any] | None" = None
    ) -> None:
        """Delete runs, off the event loop."""
        await off_loop(self.delete_for_runs, run_ids, erase=erase, graph=graph)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces, writes and tags under a new id; an unknown one is none.

        Raises ThreadExistsError where the new id is in use.
        """
        source, target = thread_name(source_thread_id), thread_name(target_thread_id)
        with suppress(ThreadNotFoundError):
            self._log.keeping.copy_thread(source, target)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, off the event loop."""
        await off_loop(self.copy_thread, source_thread_id, target_thread_id)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        erase: bool = False,
        graph: "Pregel[Any, Any, Any, Any] | None" = None,
    ) -> None:
        """Delete all checkpoints of threads but the latest of each namespace and the tagged ones.

        Strategy `"delete"` deletes the threads. Each thread in one transaction; unknown ones are none. A sub-graph
        call's namespace goes with the root checkpoint it started from. What the history of kept delta channels needs
        stays, hidden; with `erase` nothing stays, and `graph`, which wrote the threads, folds what would be lacking.

        Raises InvalidInputError, InvalidIdError, BrokenChainError; with `erase` also ContentionError, and
        CheckpointNotFoundError where a history that would have to be folded is lost already.
        """
        from deltastore.log import choosing

        threads = [thread_name(thread_id) for thread_id in several(thread_ids, "thread_ids")]
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInputError(f"strategy {strategy!r}; expected 'keep_latest' or 'delete'")
        for thread in threads:
            if strategy == "delete":
                self._log.keeping.delete_thread(thread)
            else:
                self._delete(thread, choosing.all_but_latest, erase, graph)

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        erase: bool = False,
        graph: "Pregel[Any, Any, Any, Any] | None" = None,
    ) -> None:
        """Prune threads, off the event loop."""
        await off_loop(self.prune, thread_ids, strategy=strategy, erase=erase, graph=graph)

    def _delete(
        self,
        thread: str,
        choose: "Callable[..., choosing.Choose]",
        erase: bool,
        graph: "Pregel[Any, Any, Any, Any] | None",
    ) -> None:
        from deltastore.langgraph import deletions

        def history(namespace: str, id_: str, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
            return self.get_delta_channel_history(config=config_of(thread, namespace, id_), channels=channels)

        deletions.delete(self._log, self._codec, thread, choose, erase=erase, graph=graph, history=history)

    def tag(self, config: RunnableConfig, name: str) -> RunnableConfig:
        """Give the config's checkpoint, the latest without id, a name that keeps it from being pruned.

        Within a namespace of a thread a name stands for one checkpoint: giving it again moves it. Returns the
        checkpoint's config. Raises ThreadNotFoundError, CheckpointNotFoundError, InvalidIdError, FrontMismatchError.
        """
        thread, namespace = address(config)
        id_ = self._log.keeping.tag(thread, namespace, id_of(config), check_name(name, "tag"), rows.LANGGRAPH)
        return config_of(config["configurable"]["thread_id"], namespace, id_)

    async def atag(self, config: RunnableConfig, name: str) -> RunnableConfig:
        """Give a checkpoint a name, off the event loop."""
        return await off_loop(self.tag, config, name)

    def untag(self, config: RunnableConfig, name: str) -> bool:
        """Take a name away in the config's namespace; tell whether it was given."""
        thread, namespace = address(config)
        return self._log.keeping.untag(thread, namespace, check_name(name, "tag"))

    async def auntag(self, config: RunnableConfig, name: str) -> bool:
        """Take a name away, off the event loop."""
        return await off_loop(self.untag, config, name)

    def tags(self, config: RunnableConfig) -> dict[str, RunnableConfig]:
        """Return the names given in the config's namespace, each with its checkpoint's config."""
        thread, namespace = address(config)
        found = self._log.keeping.tags(thread, namespace)
        return {name: config_of(config["configurable"]["thread_id"], namespace, id_) for name, id_ in found.items()}

    async def atags(self, config: RunnableConfig) -> dict[str, RunnableConfig]:
        """Return the names given, off the event loop."""
        return await off_loop(self.tags, config)
