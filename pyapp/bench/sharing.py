"""The bench of sharing: what two models cost that hold a GPU's memory for good, and what they cost when they share it.

Each pair of models does rounds of photo to copy in four setups: ``held`` (each model in a pool of its own, for good),
and ``roomy``, ``tight`` and ``small`` (leases in one pool of that budget: both fit; they overlap; the language model
is streamed). What is measured is posted as rows of plain data. Times in ms, amounts in bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.engine import Engine
from ..engine.language import NAME as LANGUAGE
from ..engine.sizing import overlap
from ..engine.vision import NAME as VISION
from ..errors import OutOfMemory, TandemError
from ..gpu.probe import probe
from .options import Options
from .pairs import Needs, Pair, budgets_of, needs_of, open_pair, quiet
from .rounds import Hosts, Round, Switch, full_load, photo_to_copy, switch

Post = Callable[[str], Any]
Row = dict[str, Any]
LOADS = 3
"""Full loads of each model, whose median is the rate."""
SAME_LOGITS = 1e-3
"""Two placements may differ by the order of a sum."""
PICTURE = np.random.default_rng(5).integers(0, 256, (224, 224, 3), np.uint8)


async def run(query: str, base: str, post: Post) -> None:
    """Measures what ``query`` (JSON: ``Options.of``) asks for, and posts each row as JSON. Never raises: what goes
    wrong is a row with ``error``. ``base`` is the site's address."""
    try:
        options = Options.of(json.loads(query))
        found = await probe(options.adapter)
        post(json.dumps({"adapter": found.adapter, "software": found.software, "tier": found.tier}))
        for name in options.pairs:
            try:
                await _run_pair(name, options, base, lambda row: post(json.dumps(row)))
            except Exception as error:
                post(json.dumps({"bench": "sharing", "pair": name, **_error_of(error)}))
    except Exception as error:
        post(json.dumps({"bench": "sharing", **_error_of(error)}))


async def _run_pair(name: str, options: Options, base: str, post: Callable[[Row], Any]) -> None:
    pair = await open_pair(name, options, base)
    try:
        needs = needs_of(pair, (await probe(options.adapter)).device_limits())
        budgets = budgets_of(pair, needs)
        wanted: dict[str, Round] = {}
        for setup in options.budgets:
            row: Row = {"bench": "sharing", "pair": name, "setup": setup, "budget": budgets[setup]}
            try:
                row |= await _run_setup(pair, setup, needs, budgets[setup], options, wanted)
            except Exception as error:
                row |= _error_of(error)
            post(row)
    finally:
        await pair.close()


async def _run_setup(
    pair: Pair, setup: str, needs: Needs, budget: int, options: Options, wanted: dict[str, Round]
) -> Row:
    """What is said of one setup: that the models cannot be loaded in its budget, or how they did."""
    start = time.perf_counter()
    try:
        hosts = await _load(pair, setup, needs, budget, options.adapter)
    except OutOfMemory as refusal:
        return {"refused": refusal.message, "need": refusal.details.get("need", 0)}
    try:
        loaded = time.perf_counter() - start
        return {"load_ms": loaded * 1000, **await _measure(hosts, pair, options, wanted)}
    finally:
        await hosts.close()


async def _measure(hosts: Hosts, pair: Pair, options: Options, wanted: dict[str, Round]) -> Row:
    """Rounds, switches by themselves, and full loads. ``wanted``: the first round of all by what the cache holds its
    values in, which decides the last bits of a text; every other one must agree with it."""
    ids = [(7919 * i + 13) % pair.language.config.vocab for i in range(options.prompt)]
    # The first one is slower, once, and counts for what it says only.
    first = await photo_to_copy(hosts, PICTURE, ids, options.tokens)
    about = _what(hosts)
    reference = wanted.setdefault(about["cache"], first)
    rounds: list[Round] = []
    failures: list[str] = []
    done, start = 0, time.perf_counter()
    while done < options.rounds and (not done or time.perf_counter() - start < options.seconds):
        done += 1
        try:
            rounds.append(await photo_to_copy(hosts, PICTURE, ids, options.tokens))
        except TandemError as error:
            failures.append(error.message)
    failures += ["another answer" for each in (first, *rounds) if not _agree(each, reference)]
    apart = await _in_turns(switch, hosts, done)
    # In turns as well, so that the store's bytes are as far away as a switch finds them.
    loads = await _in_turns(full_load, hosts, LOADS)
    row = {**about, "rounds": done, "tokens": options.tokens, **_figures(rounds)}
    for model in apart:
        row |= _switches(model, apart[model], [getattr(each, f"to_{model}") for each in rounds], loads[model])
    failures += hosts.errors()
    return {**row, "peak": hosts.peak, "failures": len(failures), "failed": sorted(set(failures))[:3]}


async def _in_turns(
    turn: Callable[[Hosts, str], Awaitable[Switch]], hosts: Hosts, times: int
) -> dict[str, list[Switch]]:
    """``turn`` of each model, by model. The language model has had the last one."""
    taken: dict[str, list[Switch]] = {VISION: [], LANGUAGE: []}
    for _ in range(times):
        for model in taken:
            taken[model].append(await turn(hosts, model))
    return taken


async def _load(pair: Pair, setup: str, needs: Needs, budget: int, adapter: str) -> Hosts:
    """Raises ``OutOfMemory`` for models that cannot both be held in the budget."""
    if setup != "held":
        engine = await Engine.of_models(await probe(adapter), budget, pair.language, pair.vision, quiet)
        return Hosts(engine, engine)
    if needs.language + needs.vision > budget:
        raise OutOfMemory(
            f"Held for good, the models take {needs.language} and {needs.vision} bytes, and the budget is {budget}; "
            "let them share, or choose smaller models.",
            need=needs.language + needs.vision,
            budget=budget,
        )
    writer = await Engine.of_models(await probe(adapter), needs.language, pair.language, None, quiet)
    try:
        looker = await Engine.of_models(await probe(adapter), needs.vision, None, pair.vision, quiet)
    except BaseException:
        await writer.close()
        raise
    return Hosts(writer, looker)


def _what(hosts: Hosts) -> Row:
    """What is where."""
    language, vision = hosts.language.residency.sets[LANGUAGE], hosts.vision.residency.sets[VISION]
    shared = hosts.language is hosts.vision
    return {
        "context": hosts.language.context,
        "cache": next(each["kv"] for each in hosts.language.decisions if each["model"] == LANGUAGE),
        "language_bytes": language.nbytes,
        "vision_bytes": vision.nbytes,
        "overlap": overlap([language.placement, vision.placement]) if shared else 0,
        "streamed": sum(language.blocks[index].nbytes for index in language.placement.streamed),
    }


def _figures(rounds: Sequence[Round]) -> Row:
    return {
        "moved_per_round": _percentile([each.moved for each in rounds], 50),
        "picture_ms": _percentile([each.picture * 1000 for each in rounds], 50),
        "first_token_ms": _percentile([each.first * 1000 for each in rounds], 50),
        "first_token_p95_ms": _percentile([each.first * 1000 for each in rounds], 95),
        "tokens_per_s": _percentile([each.rate for each in rounds], 50),
    }


def _switches(model: str, apart: Sequence[Switch], inside: Sequence[Switch], loads: Sequence[Switch]) -> Row:
    """Switches to ``model`` by themselves, those ``inside`` the rounds, and the rate of ``loads`` that they are held
    to."""
    rate = _percentile([each.moved / each.seconds for each in loads], 50)
    seconds, moved = _percentile([each.seconds for each in apart], 50), _percentile([each.moved for each in apart], 50)
    return {
        f"to_{model}_ms": seconds * 1000,
        f"to_{model}_p95_ms": _percentile([each.seconds * 1000 for each in apart], 95),
        f"to_{model}_moved": moved,
        f"to_{model}_in_round_ms": _percentile([each.seconds * 1000 for each in inside], 50),
        f"{model}_rate": rate,
        f"to_{model}_ratio": seconds * rate / moved if moved else None,
    }


def _agree(one: Round, other: Round) -> bool:
    return one.ids == other.ids and bool(np.abs(one.logits - other.logits).max() <= SAME_LOGITS)


def _percentile(values: Sequence[float], percent: float) -> float:
    """By the nearest rank, so that it is one of the ``values``; 0 of none."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if values else 0.0


def _error_of(error: Exception) -> Mapping[str, Any]:
    return {"error": error.message if isinstance(error, TandemError) else f"{type(error).__name__}: {error}"}
