"""Parts of the SELECTs over a job's tables; texts only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from absflow.columnar.expiry import TOUCHED
from absflow.protocol.checkpoints import StageColumns
from absflow.protocol.lineage import SPAN
from absflow.protocol.recovery.columns import widens
from absflow.storage.facts_sql import completed
from absflow.storage.sql import each, literal, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


__all__ = [
    "as_now",
    "changes",
    "comparable",
    "comparable_state",
    "difference",
    "lineage_of",
    "lineages",
    "newest",
    "stage",
    "states",
    "struct",
    "timers",
]


def newest(
    columns: StageColumns,
    rows: str,
    last: str,
    at: str | None = None,
    expired_upto: str | int | None = None,
) -> str:
    """The state: for each key (and ``at``) the row with the greatest ``last``, unless a deletion.

    Args:
        columns: the stage.
        rows: what to read FROM; its rows of the state history are called ``h``.
        last: where a row's set stands in the lineage.
        at: the checkpoint, if ``rows`` are those of several.
        expired_upto: what was touched last up to then has expired: a column, or microseconds since
            1970 (UTC); None if nothing has.
    """
    names = (*columns.key, *columns.state)
    inner, outer = (f"{at} AS at_checkpoint, ", "at_checkpoint, ") if at else ("", "")
    partition = ", ".join([*([at] if at else []), each("h", columns.key)])
    alive = ""
    if expired_upto is not None:
        if isinstance(expired_upto, int):
            expired_upto = f"timestamp_micros({expired_upto})"
        inner += f"{expired_upto} AS _absflow_expired, "
        alive = f" AND coalesce({quoted(TOUCHED.name)} > _absflow_expired, true)"
    return f"""
        SELECT {outer}{", ".join(map(quoted, names))} FROM (
          SELECT {inner}h.op, {each("h", names)},
                 row_number() OVER (PARTITION BY {partition} ORDER BY {last} DESC) AS _absflow_rank
          FROM {rows})
        WHERE _absflow_rank = 1 AND op = 'upsert'{alive}"""


def lineages(columns: StageColumns, facts: str, only: str) -> str:
    """One row per completed checkpoint with the stage: what to read of it, and what had expired.

    Args:
        columns: the stage.
        facts: the table of facts.
        only: conditions for the checkpoints, each behind an AND.
    """
    upto = ", s.expired_upto" if _expires(columns) else ""
    return f"""
        SELECT checkpoint_id AS at_checkpoint,
               {lineage_of("s.lineage", "compacted")} AS lineage{upto}
        FROM (SELECT checkpoint_id, {stage(columns.stage)} AS s
              FROM ({completed(facts)}) WHERE true {only})
        CROSS JOIN (
          SELECT sort_array(collect_list(set_id), false) AS compacted
          FROM {facts}
          WHERE kind = 'COMPACTED' AND stage = {literal(columns.stage)})
        WHERE s IS NOT NULL"""


def states(columns: StageColumns, history: str, lineages: str) -> str:
    """The state at several checkpoints.

    Args:
        columns: the stage.
        history: its state history.
        lineages: of :func:`lineages`.
    """
    upto = ", expired_upto" if _expires(columns) else ""
    rows = f"""
        (SELECT at_checkpoint, position, named_set{upto}
         FROM ({lineages})
         LATERAL VIEW posexplode(lineage) AS position, named_set) AS l
        JOIN {history} AS h ON h.set_id = l.named_set"""
    expired = "l.expired_upto" if upto else None
    return newest(columns, rows, "l.position", "l.at_checkpoint", expired)


def _expires(columns: StageColumns) -> bool:
    return TOUCHED.name in columns.state


def as_now(columns: StageColumns, schema: StructType, then: StructType) -> str:
    """What to SELECT of state ``h`` in another table, so that it has the columns of now.

    Args:
        columns: the stage, as it is now.
        schema: of its state history.
        then: of the other one, whose key columns have the same names.

    Returns:
        The expressions; empty if the key columns have other types. A column of now that the other
        table does not have, or has with values that it cannot hold, is null.
    """
    if any(then[name].dataType != schema[name].dataType for name in columns.key):
        return ""
    state = []
    for name in columns.state:
        there = f"h.{quoted(name)}"
        was = then[name].dataType if name in then.fieldNames() else None
        if was == (due := schema[name].dataType):
            state.append(there)
        elif was is not None and _holds(due, was):
            state.append(f"CAST({there} AS {due.simpleString()}) AS {quoted(name)}")
        else:
            state.append(f"NULL AS {quoted(name)}")
    return ", ".join([each("h", columns.key), *state])


def _holds(due: DataType, was: DataType) -> bool:
    """Whether every value of a type is one of ``due``, another."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import NumericType

    if not (isinstance(was, NumericType) and isinstance(due, NumericType)):
        return False
    return widens(str(to_arrow_type(was)), str(to_arrow_type(due)))


def lineage_of(lineage: str, compacted: str) -> str:
    """:func:`absflow.protocol.lineage.lineage_of` as an expression.

    Args:
        lineage: an array of sets.
        compacted: an array of the sets in COMPACTED facts of the stage, the greatest first: of
            those that end together, the one that begins first.
    """

    def begin(set_id: str) -> str:
        return f"((-{set_id}) DIV {SPAN})"

    def end(set_id: str) -> str:
        return f"IF({set_id} > 0, {set_id}, (-{set_id}) % {SPAN})"

    fits = f"array_contains(transform({lineage}, s -> {end('s')}), {begin('c')})"
    longest = f"""get(filter({compacted},
            c -> {end("c")} = {end("named")} AND ({begin("c")} = 0 OR {fits})), 0)"""
    taken = f"""named_struct('at', IF(taken > 0, taken - 1, {begin("taken")}),
                             'read', concat(array(taken), walk.read))"""
    return f"""aggregate(reverse({lineage}),
        named_struct('at', {2**63 - 1}L, 'read', CAST(array() AS array<bigint>)),
        (walk, named) -> IF({end("named")} > walk.at, walk,
            get(transform(array(coalesce({longest}, named)), taken -> {taken}), 0)),
        walk -> walk.read)"""


def changes(
    columns: StageColumns, schema: StructType, histories: Mapping[str, str], lineages: str
) -> str:
    """The changes of every key from checkpoint to checkpoint.

    What a checkpoint brought in are the sets of its lineage that the one before does not begin
    with. If its lineage does not go on from that one (a full snapshot, a compaction), that is the
    whole state, and a live key without a row in it is gone then (``_absflow_gone``). What repeats
    the state before is dropped.

    Args:
        columns: the stage.
        schema: of its state history.
        histories: what to SELECT of each of its state histories, by the table: key columns, then
            state columns, as they are now. No two have a set of one id.
        lineages: a SELECT of (``at_checkpoint``, ``lineage``), one row per checkpoint; each
            follows the one with the next lower id.
    """
    keys = ", ".join(map(quoted, columns.key))
    names = ", ".join(map(quoted, (*columns.key, *columns.state)))
    state = "".join(f", IF(_absflow_lost, NULL, {n}) AS {n}" for n in map(quoted, columns.state))
    by_key = f"OVER (PARTITION BY {keys} ORDER BY checkpoint_id)"
    same = [f"lag(op, 1, 'delete') {by_key} = op"]
    same += [f"lag({x}) {by_key} <=> {x}" for x in comparable_state(columns, schema)]
    newest = f"PARTITION BY _absflow_at, {keys} ORDER BY _absflow_position DESC"
    return f"""
        WITH steps AS (
          SELECT checkpoint_id, full, IF(full, lineage, slice(lineage, size(before) + 1,
                                                              size(lineage))) AS brought
          FROM (SELECT *, NOT coalesce(slice(lineage, 1, size(before)) = before, false) AS full
                FROM (SELECT at_checkpoint AS checkpoint_id, lineage,
                             lag(lineage) OVER (ORDER BY at_checkpoint) AS before
                      FROM ({lineages})))),
        found AS (
          SELECT _absflow_at AS checkpoint_id, op, {names}
          FROM (SELECT *, row_number() OVER ({newest}) AS _absflow_rank
                FROM ({_brought(histories)}))
          WHERE _absflow_rank = 1),
        followed AS (SELECT *, lead(checkpoint_id) {by_key} AS _absflow_next FROM found),
        ended AS (
          SELECT *, get(filter(
              _absflow_full,
              n -> n > checkpoint_id AND (_absflow_next IS NULL OR n < _absflow_next)
            ), 0) AS _absflow_gone
          FROM followed
          CROSS JOIN (SELECT sort_array(collect_list(checkpoint_id)) AS _absflow_full
                      FROM steps WHERE full)),
        compared AS (
          SELECT IF(_absflow_lost, _absflow_gone, checkpoint_id) AS checkpoint_id,
                 IF(_absflow_lost, 'delete', op) AS op, {keys}{state}
          FROM ended
          LATERAL VIEW explode(IF(op = 'upsert' AND _absflow_gone IS NOT NULL,
                                  array(false, true), array(false))) AS _absflow_lost)
        SELECT checkpoint_id, op, {names}
        FROM (SELECT *, {" AND ".join(same)} AS _absflow_same FROM compared)
        WHERE NOT _absflow_same"""


def _brought(histories: Mapping[str, str]) -> str:
    """The rows of the sets that each of ``steps`` has brought in, from all tables.

    One join for each table: through a union of tables Spark would not leave partitions out.
    """
    return " UNION ALL ".join(
        f"""SELECT s.checkpoint_id AS _absflow_at, s.position AS _absflow_position, h.op, {whole}
            FROM (SELECT checkpoint_id, position, named
                  FROM steps LATERAL VIEW posexplode(brought) AS position, named) AS s
            JOIN {history} AS h ON h.set_id = s.named"""
        for history, whole in histories.items()
    )


def timers(columns: StageColumns, state: str, domains: Mapping[str, str]) -> str:
    """The timers in a state: one row each.

    Args:
        columns: the stage.
        state: a SELECT of its state.
        domains: the column of the state that has the timers of each domain.
    """
    keys = each("state", columns.key)
    parts = (
        f"SELECT {keys}, {literal(domain)} AS domain, timer.time, timer.name "
        f"FROM state LATERAL VIEW explode({quoted(column)}) AS timer"
        for domain, column in domains.items()
    )
    return f"WITH state AS ({state}) {' UNION ALL '.join(parts)}"


def difference(
    before: str, old: StageColumns, after: str, columns: StageColumns, schema: StructType | None
) -> str:
    """The keys whose state is not the same in two SELECTs, with both.

    Args:
        before: the one, whose rows are of the stage as ``old``.
        old: the stage then; its key columns are those of ``columns``.
        after: the other, whose rows are of the stage as ``columns``.
        columns: the stage.
        schema: of its state history; None if the state columns are not the same.
    """
    same_key = " AND ".join(f"a.{k} <=> b.{k}" for k in map(quoted, columns.key))
    keys = ", ".join(f"coalesce(a.{k}, b.{k}) AS {k}" for k in map(quoted, columns.key))
    was, now = (
        struct((n, f"{side}.{quoted(n)}") for n in of.state)
        for side, of in (("a", old), ("b", columns))
    )
    equal = "false"
    if schema is not None:
        states = (comparable_state(columns, schema, side) for side in ("a.", "b."))
        equal = " AND ".join(f"{x} <=> {y}" for x, y in zip(*states, strict=True))
    return f"""
        SELECT CASE WHEN a._absflow_there IS NULL THEN 'added'
                    WHEN b._absflow_there IS NULL THEN 'removed'
                    ELSE 'changed' END AS op, {keys},
               IF(a._absflow_there, {was}, NULL) AS before,
               IF(b._absflow_there, {now}, NULL) AS after
        FROM (SELECT *, true AS _absflow_there FROM ({before})) AS a
        FULL OUTER JOIN (SELECT *, true AS _absflow_there FROM ({after})) AS b ON {same_key}
        WHERE a._absflow_there IS NULL OR b._absflow_there IS NULL OR NOT ({equal or "true"})"""


def comparable_state(columns: StageColumns, schema: StructType, side: str = "") -> list[str]:
    """The state columns (of the table ``side``) as values that ``<=>`` takes."""
    return [comparable(f"{side}{quoted(n)}", schema[n].dataType) for n in columns.state]


def comparable(value: str, type_: DataType) -> str:
    """``value`` with every map in it as the sorted array of its entries: ``<=>`` takes no map."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if "map<" not in type_.simpleString():
        return value
    if isinstance(type_, MapType):
        entry = struct([("key", "e.key"), ("value", comparable("e.value", type_.valueType))])
        return f"array_sort(transform(map_entries({value}), e -> {entry}))"
    if isinstance(type_, ArrayType):
        return f"transform({value}, e -> {comparable('e', type_.elementType)})"
    assert isinstance(type_, StructType)
    parts = [(f.name, comparable(f"{value}.{quoted(f.name)}", f.dataType)) for f in type_]
    return f"IF({value} IS NULL, NULL, {struct(parts)})"


def struct(parts: Iterable[tuple[str, str]]) -> str:
    """A struct of (name, value) pairs."""
    return "named_struct(" + ", ".join(f"{literal(n)}, {value}" for n, value in parts) + ")"


def stage(name: str) -> str:
    """A stage's part of the manifest in the column ``stages``; null if it has none."""
    return f"get(filter(stages, s -> s.stage = {literal(name)}), 0)"
