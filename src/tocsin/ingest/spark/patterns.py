"""Regular expressions that one record can stop, tried out before a job begins.

An overflow of the stack inside `rlike` ends the JVM, and a pattern that tries many ways never returns; either way the
same record comes back at each restart. So each pattern is run in the JVM of the job, on a thread whose stack is that of
a task, on texts as long as a record may be (ADR 0017).
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.source import Source, numbered_groups
from tocsin.ingest.hostile_text import hostile_texts
from tocsin.quality.suites.row_rules import RowRule
from tocsin.quality.suites.suite_catalog import FOLDER
from tocsin.spark.engine import jvm
from tocsin.spark.plan_tree import Node

LONGEST_SECONDS = 5.0
_SHOWN = 60
_ON_TEXT = {"RLike", "StringSplit"} | {
    f"RegExp{name}" for name in ("Extract", "ExtractAll", "Replace", "InStr", "Count", "SubStr")
}


def check_source(spark: SparkSession, source: Source, rules: tuple[RowRule, ...]) -> None:
    """Try the patterns of `source`, those to ignore, and those of its `rules`.

    ConfigError, where a retry does not help, if one is none for Java, overflows its stack or takes too long.
    """
    faults, file = [], f"sources/{source.name}.toml"
    for pattern in source.patterns:
        faults += _faults(spark, rf"\A(?:{numbered_groups(pattern)[0]})\z", source, file, "pattern")
    for pattern in source.ignore:
        faults += _faults(spark, pattern, source, file, "ignore")
    for rule in rules:
        if "regex" in rule.rule.kwargs:
            where = f"{FOLDER}/{source.name}.rows.json"
            faults += _faults(spark, rule.rule.kwargs["regex"], source, where, f"{rule.name}.regex")
    if faults:
        raise ConfigError(faults)


def check_function(plan: Node, spark: SparkSession, function: tuple[Path, str], source: Source) -> None:
    """Try the patterns in `plan`, made by the `function` of a file: its path and its name. Errors as `check_source`."""
    faults = []
    for pattern in sorted(set(_literal_patterns(plan))):
        faults += _faults(spark, pattern, source, str(function[0]), function[1])
    if faults:
        raise ConfigError(faults)


def _literal_patterns(tree: Node) -> Iterator[str]:
    for node in tree.walk():
        for top in node.expressions():
            for expression in top.walk():
                if expression.kind in _ON_TEXT and len(expression.children) > 1:
                    pattern = expression.children[1]
                    if pattern.kind == "Literal" and pattern.fields.get("value") is not None:
                        yield str(pattern.fields["value"])


def _faults(spark: SparkSession, pattern: str, source: Source, where: str, key: str) -> list[Fault]:
    refusal = _refusal(spark, pattern, source.max_bytes)
    return [Fault(where, refusal, key=key)] if refusal else []


def _refusal(spark: SparkSession, pattern: str, longest: int) -> str:
    compile_ = spark.sparkContext._gateway.jvm.java.util.regex.Pattern.compile  # type: ignore[union-attr]  # no stubs
    try:
        compiled = compile_(pattern)
    except IllegalArgumentException as error:
        return f"is not a Java regular expression: {str(error).splitlines()[0]}"
    now: list[str] = []
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run() -> None:
        for text in hostile_texts(pattern, longest):
            now[:] = [text]
            try:
                compiled.matcher(text).find()
            except Py4JJavaError as error:
                if "StackOverflowError" not in str(error):
                    raise
                answers.put(_overflows(pattern, text))
                return
            answers.put("")

    def run_quietly() -> None:
        with contextlib.suppress(Exception):  # the JVM has ended meanwhile: the job reports that itself
            run()
        answers.put("done")

    threading.Thread(target=run_quietly, name="pattern", daemon=True).start()
    while (answer := _await_answer(answers)) == "":
        pass
    if answer is None:
        return _endless(pattern, now[0] if now else "")
    return "" if answer == "done" else answer


def _await_answer(answers: queue.SimpleQueue[str]) -> str | None:
    """Wait for the next answer; None when it takes more than LONGEST_SECONDS of CPU time: the machine may be busy."""
    began = _cpu_seconds()
    while True:
        try:
            return answers.get(timeout=LONGEST_SECONDS)
        except queue.Empty:
            if _cpu_seconds() - began >= LONGEST_SECONDS:
                return None


def _cpu_seconds() -> float:
    """Read the CPU time of the JVM."""
    taken = psutil.Process(jvm.process_id()).cpu_times()
    return taken.user + taken.system


def _overflows(pattern: str, text: str) -> str:
    return (
        f"{_quoted(pattern)} overflows Java's stack on {_described(text)}, which would end the job; make the repeated "
        'group possessive, (...)*+ for (...)*, or write it without alternatives, as in [^"]*'
    )


def _endless(pattern: str, text: str) -> str:
    return (
        f"{_quoted(pattern)} takes more than {LONGEST_SECONDS:.0f} s on {_described(text)}, which would stop the job; "
        "begin it with ^, make its repeats possessive or bounded, as in [^ ]{1,200}+, or lower max_bytes of the source"
    )


def _described(text: str) -> str:
    return f"{len(text.encode()):,} bytes like {_quoted(text)}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
