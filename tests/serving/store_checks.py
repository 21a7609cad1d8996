"""What every bucket must do, whichever stands behind the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving import store as stores
from serving.store import Conflict, Store


def check(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and writes, conditions, one winner of many, a file in parts."""
    assert store.get("a/none") is None
    assert store.head("a/none") is None
    first = store.put("a/one", b"1", if_absent=True, metadata={"sha256": "abc"})
    assert store.get("a/one") == (b"1", first)
    head = store.head("a/one")
    assert head is not None
    assert (head.size, head.etag, head.metadata.get("sha256")) == (1, first, "abc")
    with pytest.raises(Conflict):
        store.put("a/one", b"2", if_absent=True)
    second = store.put("a/one", b"2", if_match=first)
    with pytest.raises(Conflict):
        store.put("a/one", b"3", if_match=first)
    with pytest.raises(Conflict):
        store.put("a/gone", b"3", if_match=first)
    assert store.get("a/one") == (b"2", second)
    assert store.get("a/gone") is None

    def race(number: int) -> bool:
        try:
            store.put("a/raced", str(number).encode(), if_absent=True)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        won = [number for number, first in enumerate(pool.map(race, range(20))) if first]
    assert len(won) == 1
    assert store.get("a/raced") is not None
    assert (store.get("a/raced") or (b"",))[0] == str(won[0]).encode()

    path = folder / "large"
    path.write_bytes(bytes(range(256)) * (49 * 1024))  # 12.25 MiB
    monkeypatch.setattr(stores, "PART_BYTES", 5 * stores.MIB)  # S3's least for a part that is not the last
    sent: list[int] = []
    store.upload("a/large", path, if_absent=True, metadata={"sha256": "def"}, progress=sent.append)
    assert sum(sent) == path.stat().st_size
    assert len(sent) == 3
    found = store.get("a/large")
    assert found is not None
    assert found[0] == path.read_bytes()
    with pytest.raises(Conflict):
        store.upload("a/large", path, if_absent=True)
    assert store.list("a/") == ["a/large", "a/one", "a/raced"]
    store.delete("a/large")
    store.delete("a/large")
    assert store.list("a/l") == []
