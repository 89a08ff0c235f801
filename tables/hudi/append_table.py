"""Implements an append-only Hudi table: files are Hudi's own, and carry their instant (TOKEN-2)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from headgate.control_protocol.errors import HeadgateError, Unreachable
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, Refused
from headgate.tables.hudi.base_files import commit_token_of, instant_of_file
from headgate.tables.hudi.commits import HudiCommits, Moved, rolled_back_refusal
from headgate.tables.hudi.jvm import error_text
from headgate.tables.hudi.table_properties import STAGED, HudiLocation
from headgate.tables.hudi.write_client import HudiJava
from headgate.tables.missing_files import find_refusal_for_lost_files
from headgate.tables.storage.file_store import Folder

_STAMPS_OPEN = 8
"""How many of the newest stamps may be of unsettled transactions; mostly two are."""


class HudiSinkTable(HudiCommits):
    """Implements ``SupportsCommitTokens``; the rest is ``HudiCommits``."""

    def __init__(
        self,
        place: HudiLocation,
        sink: SinkName,
        answer: Callable[[Callable[[], None]], None] = lambda call: call(),
        java: Callable[[HudiLocation, str], HudiJava] = HudiJava,
    ) -> None:
        super().__init__(place, sink, answer, java)
        self._stamps: deque[str] = deque(maxlen=_STAMPS_OPEN)

    def new_token(self) -> str:
        _, java = self._open_or_reuse_client()
        self._ensure_first_commit(java)
        self._stamps.append(self._reserve_instant(java))
        return commit_token_of(self._place.location, self._stamps[-1])

    def _on_table_config_changed(self) -> None:
        self._stamps.clear()

    def _instants_of_unsettled_tokens(self) -> Sequence[str]:
        return tuple(self._stamps)

    def _ensure_first_commit(self, java: HudiJava) -> None:
        """Make a first commit if there is none.

        Instants before it count as completed to everyone who lists folders.
        """
        try:
            meta = java.load_meta_client()
            if next(java.completed_commits(meta), None) is None:
                self._make_first_commit(java)
        except HeadgateError:
            raise
        except Exception as error:
            java.close()
            raise Unreachable(
                f"Hudi table {self._place.name} takes no first commit: {error_text(error)}"
            ) from error

    def _make_first_commit(self, java: HudiJava) -> None:
        """Raise ``Moved`` where others have condemned the instant while this process slept.

        To complete it nevertheless would look like a fork (H9). They have opened the timeline, or
        the next try does.
        """
        first = self._reserve_instant(java)

        def require_not_condemned() -> None:
            if first in self._reservations.forbidden_instants():
                raise Moved(rolled_back_refusal(first).reason)

        if refused := self._begin_instant_or_refuse(java, first):
            raise Moved(refused.reason)
        java.commit(first, (), {}, require_not_condemned)

    def _prepare_instant_for(self, attempt: CommitAttempt, java: HudiJava) -> str:
        """Return the instant of the files, which is a single one (TOKEN-2).

        A commit without files takes an instant of its own: files still being written carry the one
        that START has named.
        """
        named = {instant_of_file(file.path) for file in attempt.files}
        assert len(named) <= 1, f"files of several instants: {', '.join(sorted(named))}"
        return named.pop() if named else self._reserve_instant(java)

    def _find_refusal_for_lost_files(
        self,
        attempt: CommitAttempt,
        java: HudiJava,  # noqa: ARG002
    ) -> Refused | None:
        return find_refusal_for_lost_files(self._place.folder, attempt.files)


# Manages files that are staged in our folder below a Hudi table until they become Hudi's.


STAGED_MS_MAX = 24 * 3_600_000
"""A file not committed by this age is never committed: its records are written again."""


def remove_abandoned_staged_files(folder: Folder) -> None:
    """Remove what is too old to be needed, unless a draft names it: then it is pending."""
    files = folder.files_below(STAGED)
    oldest_ms = time.time_ns() // 1_000_000 - STAGED_MS_MAX
    old = [name for name, at_ms in files if name.endswith(".parquet") and at_ms < oldest_ms]
    if old:
        pending = _concatenate_draft_texts(
            folder, [name for name, _ in files if name.endswith(".json")]
        )
        folder.remove_quietly([name for name in old if name.rpartition("/")[2] not in pending])


def _concatenate_draft_texts(folder: Folder, drafts: list[str]) -> str:
    """Return the drafts' content; one that disappears meanwhile was delivered."""
    texts = []
    for name in drafts:
        with suppress(FileNotFoundError):
            texts.append(folder.read(name).decode())
    return "".join(texts)
