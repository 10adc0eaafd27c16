"""zstd contexts are handed from thread to thread, never used by two at once, and don't pile up."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from deltastore.codec import primitives as pr
from deltastore.codec.contexts import MAX_IDLE, Contexts
from deltastore.codec.dictionary import Dictionary, train
from deltastore.errors import ChecksumError

THREADS, ROUNDS = 8, 40


def test_what_was_given_back_is_taken_again_by_whichever_thread() -> None:
    contexts = Contexts(object)
    first = contexts.take()
    assert contexts.take() is not first
    contexts.give(first)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(contexts.take).result() is first


def test_no_more_than_a_few_wait() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    contexts = Contexts(make)
    for context in [contexts.take() for _ in range(3 * MAX_IDLE)]:
        contexts.give(context)
    again = {contexts.take() for _ in range(MAX_IDLE)}
    assert len(again) == MAX_IDLE
    assert len(made) == 3 * MAX_IDLE
    assert contexts.take() == len(made) - 1


@pytest.mark.parametrize("with_dictionary", [False, True])
def test_threads_beside_each_other_get_what_they_packed(with_dictionary: bool) -> None:
    chance = random.Random("contexts")
    words = [chance.randbytes(6).hex() for _ in range(200)]

    def text() -> bytes:
        return " ".join(chance.choices(words, k=chance.randrange(1, 4_000))).encode()

    dictionary = None
    if with_dictionary:
        content = train([text() for _ in range(100)], 16 * 1024)
        assert content is not None
        dictionary = Dictionary(1, content)
    plain = [[text() for _ in range(ROUNDS)] for _ in range(THREADS)]

    def there_and_back(texts: list[bytes]) -> list[bytes]:
        packed = [pr.pack(text, dictionary=dictionary) for text in texts]
        return [pr.unpack(one, lambda _: dictionary) for one in packed]  # type: ignore[arg-type,return-value]

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(there_and_back, plain)) == plain


def test_a_context_that_failed_leaves_those_after_it_unharmed() -> None:
    packed = pr.pack(b"x" * 1_000)
    for damaged in (packed[:-1], packed[:-3] + b"abc", packed + b"y"):
        with pytest.raises(ChecksumError):
            pr.unpack(damaged)
        assert pr.unpack(packed) == b"x" * 1_000
