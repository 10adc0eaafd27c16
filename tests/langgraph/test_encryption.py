"""EncryptedSerializer: what is stored unencrypted was put there by somebody else, and is refused (langgraph#8938)."""

from typing import Any

import pytest
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from deltastore import CodecMismatchError, EncodeError, Store
from deltastore.langgraph import DeltaSaver
from deltastore.storage.memory import MemoryStorage
from tests.langgraph.comparing import checkpoint, config
from tests.langgraph.forging import forge, tag_of
from tests.langgraph.test_saver import Xor, aes


class MyEncrypted(EncryptedSerializer):
    """A subclass of the user's."""


class Careless(EncryptedSerializer):
    """A subclass that leaves bytes unencrypted."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self.serde.dumps_typed(obj) if isinstance(obj, bytes) else super().dumps_typed(obj)


def put(saver: DeltaSaver, value: Any) -> None:
    saver.put(config("t"), checkpoint("1", {"c": "1"}, {"c": value}), {"m": 1}, {"c": "1"})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("make", [lambda: EncryptedSerializer(Xor()), lambda: MyEncrypted(Xor()), aes])
@pytest.mark.parametrize("kind", ["msgpack", "null", "bytes", "json", "pickle", ""])
def test_a_chunk_swapped_for_plain_data_is_refused(make: Any, kind: str, strict: bool) -> None:
    storage, serde = MemoryStorage(), make()
    saver = DeltaSaver(Store(storage), serde=serde, strict=strict)
    put(saver, {"role": "user"})
    name = f"{type(serde).__module__}.{type(serde).__qualname__}\0001\0opaque\0"
    own, forged = (
        tag_of(saver.store, f"{name}msgpack+{'aes' if make is aes else 'xor'}"),
        tag_of(saver.store, name + kind),
    )
    plain = JsonPlusSerializer().dumps_typed({"role": "admin"})[1]
    assert forge(storage, lambda blob: forged + plain if blob[:1] == own else None) == 1
    reader = DeltaSaver(Store(storage), serde=serde, strict=strict)
    for read in (reader.get_tuple, lambda where: list(reader.list(where))):
        with pytest.raises(CodecMismatchError, match=r"unencrypted.*no option"):
            read(config("t"))
    reader.put(config("t", "1"), checkpoint("2", {}, {}), {}, {})
    with pytest.raises(CodecMismatchError, match="unencrypted"):
        reader.get_delta_channel_history(config=config("t", "2"), channels=["c"])


@pytest.mark.parametrize("tag", range(1, 16))
def test_chunks_of_other_serializers_are_refused_too(tag: int) -> None:
    storage = MemoryStorage()
    saver = DeltaSaver(Store(storage), serde=EncryptedSerializer(Xor()))
    put(saver, "secret")
    own = tag_of(saver.store, "langgraph.checkpoint.serde.encrypted.EncryptedSerializer\0001\0opaque\0msgpack+xor")
    plain = JsonPlusSerializer().dumps_typed("forged")[1]
    assert forge(storage, lambda blob: bytes((tag,)) + plain if blob[:1] == own else None) == 1
    with pytest.raises(CodecMismatchError, match="EncryptedSerializer"):
        DeltaSaver(Store(storage), serde=EncryptedSerializer(Xor())).get_tuple(config("t"))


def test_a_serializer_that_leaves_something_unencrypted_is_refused_at_put() -> None:
    saver = DeltaSaver(Store(MemoryStorage()), serde=Careless(Xor()))
    with pytest.raises(EncodeError, match=r"Careless.*unencrypted, as 'bytes'"):
        put(saver, b"secret")
    assert saver.get_tuple(config("t")) is None
    put(saver, [b"inside a list"])
    assert saver.get_tuple(config("t")) is not None


def test_a_changed_ciphertext_is_an_error_of_the_cipher() -> None:
    storage, serde = MemoryStorage(), aes()
    saver = DeltaSaver(Store(storage), serde=serde)
    put(saver, {"role": "user"})
    own = tag_of(saver.store, "langgraph.checkpoint.serde.encrypted.EncryptedSerializer\0001\0opaque\0msgpack+aes")
    assert forge(storage, lambda blob: blob[:-1] + bytes((blob[-1] ^ 1,)) if blob[:1] == own else None) == 1
    with pytest.raises(ValueError, match="MAC"):
        DeltaSaver(Store(storage), serde=serde).get_tuple(config("t"))


class Named(CipherProtocol):
    """A cipher whose name has a plus sign."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "a+b", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "a+b"
        return ciphertext[::-1]


def test_every_cipher_name_is_taken() -> None:
    saver = DeltaSaver(Store(MemoryStorage()), serde=EncryptedSerializer(Named()))
    put(saver, [1, None])
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"c": [1, None]}
