"""Reports what a catalog does that nobody here has seen: ``headgate check --catalog``.

Each line says what was tried and what was answered. The last one says whether a sink may hold its
lock there. It makes two scratch tables, names them before, and removes them after; the sink's own
tables are neither read nor written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import (
    CatalogRefused,
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.operations.check.check import Check, Questions, State
from headgate.operations.check.table import NotChecked
from headgate.runtime.sink_tables import open_tables_creating_nothing
from headgate.tables.iceberg.catalog_trial import CatalogTrial
from headgate.tables.storage.store_write_check import require_writable_store

_NEEDED = frozenset({"files", "claim", "stale commit", "moved tag"})
"""Without these no sink runs there; all else limits what it can do, or for how long it is safe."""


@dataclass(slots=True)
class _Advice:
    """What a person has to write or to know, gathered while questions are asked."""

    lines: list[str] = field(default_factory=list)


def check_catalog_by_trial(
    settings: SinkSettings, announce: Callable[[str], None] = lambda _: None
) -> tuple[Check, ...]:
    """Ask the catalog of a sink file. Raises nothing foreseeable.

    ``announce`` is told what is about to be made, so that it is known if this process is killed.
    """
    questions, advice = Questions(settings), _Advice()
    with ExitStack() as stack:
        trials: list[CatalogTrial] = []
        questions.ask("catalog", lambda: _open_and_describe_trial(settings, stack, trials))
        if trials:
            (trial,) = trials
            stack.callback(_ask_to_drop_scratch_tables, questions, trial)
            announce(f"tables {' and '.join(trial.names)} will be created, and dropped again")
            questions.ask("scratch tables", lambda: _create_scratch_tables(trial))
            if len(trial.made) == len(trial.names):
                _ask_by_trial(questions, trial, advice)
    questions.ask("verdict", lambda: _require_catalog_can_hold_lock(questions.answers, advice))
    return tuple(questions.answers)


def _open_and_describe_trial(
    settings: SinkSettings, stack: ExitStack, into_trials: list[CatalogTrial]
) -> str:
    """Open a trial, which ``stack`` closes; add it to ``into_trials``, and say what it will make.

    Raises ``NotChecked``.
    """
    tables = stack.enter_context(open_tables_creating_nothing(settings))
    catalog = tables.require_catalog_format().catalog
    namespace = settings.table.identifier.rpartition(".")[0]
    trial = CatalogTrial(catalog, namespace, f"headgate_check_{secrets.token_hex(4)}")
    if not trial.namespace_exists_or_unknown():
        raise NotChecked(
            f"namespace {namespace} is not there, and a trial makes none: create it, or name "
            "another one in table.identifier"
        )
    into_trials.append(trial)
    return f"{trial.describe_catalog()}; to be made and removed: {' and '.join(trial.names)}"


def _create_scratch_tables(trial: CatalogTrial) -> str:
    try:
        location = trial.create_scratch_tables()
    except MissingRights as error:
        raise NotChecked(
            f"{error.message}; so nothing else is tried: run it with a principal that may create "
            "and drop tables in this namespace (a sink whose tables exist needs neither)"
        ) from None
    return f"both were created; the first at {location}"


def _ask_to_drop_scratch_tables(questions: Questions, trial: CatalogTrial) -> None:
    """Remove the tables as the last thing, whatever came before; say so if one stays."""
    if trial.made:
        questions.ask("clean-up", lambda: _drop_scratch_tables(trial))


def _drop_scratch_tables(trial: CatalogTrial) -> str:
    made = " and ".join(trial.made)
    stay = trial.drop_tables_finding_unpurged_locations()
    files = f"; it has no purge, so files may stay at {' and '.join(stay)}" if stay else ""
    return f"dropped: {made}{files}"


def _ask_by_trial(questions: Questions, trial: CatalogTrial, advice: _Advice) -> None:
    questions.ask("keys", lambda: _check_vended_credentials(trial, advice))
    questions.ask("files", lambda: _check_file_write(trial))
    questions.ask("claim", lambda: _check_first_claim(trial))
    if not questions.are_asked_and_not_wrong("claim"):
        return
    questions.ask("tag", lambda: _check_tag_retention(trial, advice))
    questions.ask(
        "stale commit", lambda: f"refused, as it must be: {trial.require_refusal_of_stale_commit()}"
    )
    questions.ask(
        "moved tag", lambda: f"refused, as it must be: {trial.require_refusal_after_moved_tag()}"
    )
    questions.ask("several tables", lambda: _check_joint_commit(trial, advice))


def _check_vended_credentials(trial: CatalogTrial, advice: _Advice) -> str:
    given = trial.vended_credentials()
    if given.signs_remotely:
        raise CatalogRefused(
            "it signs each request to the store itself, and gives out no keys",
            "let it vend credentials (HG-120)",
        )
    if not given.secret_names:
        return "none came with the table: files are reached with those of the sink file or machine"
    advice.lines.append("keys come with each table, and are renewed: the sink file needs none")
    return f"these came with the table: {', '.join(given.secret_names)}"


def _check_file_write(trial: CatalogTrial) -> str:
    path = require_writable_store(*trial.file_properties_and_location())
    return f"{path} was written, read and removed again"


def _check_first_claim(trial: CatalogTrial) -> str:
    trial.require_first_claim_kept()
    return "one commit with a snapshot, its properties, a branch and a tag; all came back as sent"


def _check_tag_retention(trial: CatalogTrial, advice: _Advice) -> str:
    if trial.is_tag_retention_kept():
        return "it is kept for ever, whatever the table says of other refs"
    age_ms = trial.tag_retention_ms()
    advice.lines.append(
        "the catalog does not keep the tag's own retention: set no history.expire.max-ref-age-ms "
        "on the sink's tables, and switch off what expires refs there"
    )
    raise NotChecked(
        "its retention was sent as for ever, and is "
        + ("not told" if age_ms is None else f"{age_ms / 86_400_000:.0f} days")
    )


def _check_joint_commit(trial: CatalogTrial, advice: _Advice) -> str:
    try:
        offered = trial.try_joint_commit()
    except CatalogRefused as error:
        advice.lines.append("leave tables.atomic off")
        raise NotChecked(error.message) from None
    except HeadgateError as error:
        raise NotChecked(error.message) from None
    if not offered:
        advice.lines.append("leave tables.atomic off")
        raise NotChecked("it commits to one table at a time, which is enough for every sink")
    advice.lines.append("tables.atomic may be set")
    return "two tables at once, or none of them if one is refused"


def _require_catalog_can_hold_lock(answers: Sequence[Check], advice: _Advice) -> str:
    asked = {answer.what: answer for answer in answers}
    text = f" Besides: {'; '.join(advice.lines)}" if advice.lines else ""
    wrong = {answer.what for answer in answers if answer.state is State.WRONG}
    away = {what for what in wrong if asked[what].exit_code == Unreachable.exit_code}
    if refused := sorted(_NEEDED & (wrong - away)):
        raise CatalogRefused(
            f"a sink cannot hold its lock here: {', '.join(refused)}",
            "send this report to those who run the catalog; docs/guides/catalogs.md lists others",
        )
    if untried := sorted(_NEEDED & away | _NEEDED - asked.keys()):
        raise NotChecked(f"not known: {', '.join(untried)} had no answer or no try.{text}")
    others = sorted(wrong - _NEEDED)
    but = f" once this is mended: {', '.join(others)}" if others else ""
    return f"a sink may hold its lock here{but}.{text}"
