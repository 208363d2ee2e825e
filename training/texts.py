"""What the small model reads: conversations drawn from a seed, in the shape of the prompts of a default run.

Every text is made here or by :mod:`prefixscope.prompts` and :mod:`prefixscope.shapes`, so there is no licence but our
own. Two thirds are the shapes of a default run, of other seeds; the rest has other words, so that the model reads
what stands in front of it instead of reciting.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from prefixscope import prompts, shapes
from prefixscope.shapes import pick

FIRST_SEED = 10_000_000
"""Training texts have seeds from here on; those of a run are far below, so no prompt of a run was ever trained on."""

END = "\0"  # stands for the end-of-answer token while a conversation is still text

_PEOPLE = (
    "Mara|Tom|the captain|an old friend|the baker|our teacher|Lena|the driver|a young nurse|the gardener|Paul|my sister"
)
_DID = (
    "walked to|looked at|came back from|wrote about|asked for|forgot|painted|opened|sat beside|dreamed of|talked about|"
    "cleaned"
)
_THINGS = (
    "the harbour|a green door|the small garden|the last train|a letter|the river|an empty house|the market|a red boat|"
    "the old bridge|a warm kitchen|the library"
)
_TIMES = (
    "in the morning|after lunch|before the rain|on a quiet Sunday|late at night|in early spring|once more|"
    "without a word"
)
_WORDS = (
    "amber|basin|cedar|delta|ember|fjord|grove|haven|inlet|juniper|kettle|lantern|meadow|nickel|orchard|pebble|quarry|"
    "ripple|saddle|timber|umbra|velvet|willow|yonder|zephyr"
)
_KEYS = "name|path|size|mode|owner|level|target|source|count|state"
_TAGS = "item|book|server|host|user|entry|note|part"
_COMMANDS = "grep -n|sed -i|chmod 640|cat|cp|rm -f|wc -l|tail -n 20"
_FILES = "/var/log/messages|/etc/hosts|/tmp/report.txt|config.yaml|notes.md|main.py|data.json|/etc/fstab"

_FACTS = (
    (
        "What is a prefix cache?",
        "A prefix cache keeps the keys and values of a prompt, so that the next prompt with the same beginning is not "
        "computed again.",
    ),
    ("What is a hit?", "A hit is the part of a prompt whose blocks were found in the cache."),
    ("What is a block?", "A block holds the keys and values of a fixed number of tokens, for one group of layers."),
    ("What does a drafter do?", "A drafter guesses the next tokens, and the target model checks them all in one step."),
    (
        "What is a sliding window?",
        "A layer with a sliding window sees only the last tokens, so older blocks can be given back.",
    ),
    ("What is a warm prompt?", "A warm prompt was sent before, and its beginning is still in the cache."),
    ("What is a cold prompt?", "A cold prompt is sent for the first time, so every token is computed."),
    ("What is retention?", "Retention decides which blocks stay in the cache when a request is done."),
    ("Who are you?", "I am a very small model that reads bytes. I know little, but I answer in words."),
    ("Hello!", "Hello. Give me a log, some code or a list of rules, and I will go on with it."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: what the user sends and what the model should answer; ``END`` closes a finished answer."""

    question: str
    answer: str


def conversation(draw: random.Random, room: int, marked: float = 1.0) -> list[Turn]:
    """One conversation of about ``room`` characters at most, of a kind drawn by weight.

    ``marked`` is how often code, markup and tool calls come, against their weight: a drafter sees little of them.
    """
    weights = [weight * (marked if kind in _MARKED else 1) for weight, kind in _KINDS]
    at = draw.random() * sum(weights)
    for weight, (_, kind) in zip(weights, _KINDS, strict=True):
        at -= weight
        if at < 0:
            return kind(draw, max(120, room))
    return _KINDS[0][1](draw, max(120, room))


def _seed(draw: random.Random) -> int:
    return FIRST_SEED + draw.getrandbits(30)


def _length(draw: random.Random, room: int) -> int:
    """A document's length: as often short as long, on a logarithmic scale, with space left for the answer."""
    most = max(61, room - 100 - min(room // 3, 300))
    return int(60 * (most / 60) ** draw.random())


def _go_on(draw: random.Random, text: str, head: str, cut: int) -> Turn:
    return Turn(head + text[:cut], text[cut:])


@dataclass(frozen=True, slots=True)
class Form:
    """Pieces of one form, as :mod:`prefixscope.shapes` draws them, and the rule by which an answer goes on with them.

    In a prompt every slot is drawn; in an answer it is the next one after the same slot of the piece before, a number
    one more. So an answer says something new in each line, is not a matter of luck, and still depends on the prompt.
    """

    template: str
    slots: dict[str, tuple[str, ...] | range]

    def drawn(self, draw: random.Random) -> dict[str, str]:
        return {name: str(options[int(draw.random() * len(options))]) for name, options in self.slots.items()}

    def after(self, values: dict[str, str]) -> dict[str, str]:
        following = {}
        for name, options in self.slots.items():
            at = int(values[name]) - options[0] if isinstance(options, range) else options.index(values[name])
            following[name] = str(options[(at + 1) % len(options)])
        return following

    def text(self, values: dict[str, str]) -> str:
        made = self.template.format_map(values)
        return made[0].upper() + made[1:] if made[0].isalpha() and self.template[0] == "{" else made

    def turn(self, draw: random.Random, head: str, length: int, more: int) -> Turn:
        """About ``length`` characters drawn, cut anywhere, and ``more`` by the rule, as what the cut hides is."""
        before, values = None, self.drawn(draw)
        parts, size = [], 0
        while size + len(self.text(values)) < length:
            parts.append(self.text(values))
            size += len(parts[-1])
            before, values = values, self.drawn(draw)
        ruled = self.after(before) if before else values
        whole = self.text(values)
        # The slots that begin before the cut stay as drawn, the later ones follow the rule.
        cut = int(draw.random() * len(whole))
        mixed = {name: values[name] if self._begins(name, values) < cut else ruled[name] for name in self.slots}
        text, size = "".join(parts), size + cut
        while True:
            text += self.text(mixed)
            if len(text) > size + more:
                return Turn(head + text[:size], text[size : size + more])
            mixed = self.after(mixed)

    def _begins(self, name: str, values: dict[str, str]) -> int:
        return len(self.template[: self.template.index(f"{{{name}}}")].format_map(values))


def _options(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


FORMS = {
    "prose": Form(
        "{subject} {verb} {object} {place}, entry {number}. ",
        {
            "subject": _options(prompts._SUBJECTS),
            "verb": _options(prompts._VERBS),
            "object": _options(prompts._OBJECTS),
            "place": _options(prompts._PLACES),
            "number": range(1_000, 10_000),
        },
    ),
    "code": Form(
        "def {verb}_{name}({other}s, limit={limit}):\n    found = []\n    for {other} in {other}s:\n"
        "        if {other}.size < limit:\n            found.append({other}.{name})\n    return found\n\n\n",
        {
            "verb": _options(shapes._VERBS),
            "name": _options(shapes._NAMES),
            "other": _options(shapes._NAMES),
            "limit": range(100, 1_000),
        },
    ),
    "XML": Form(
        '<Rule id="SV-{number}r1_rule" severity="{severity}">\n  <title>The system must {verb} each {name}</title>\n'
        '  <check system="C-{number}"><path>{path}</path></check>\n</Rule>\n',
        {
            "number": range(10_000, 100_000),
            "severity": _options(shapes._SEVERITIES),
            "verb": _options(shapes._VERBS),
            "name": _options(shapes._NAMES),
            "path": _options(shapes._PATHS),
        },
    ),
    "tool arguments": Form(
        '{{"name": "{verb}_{name}", "arguments": {{"path": "{path}", "line": {line}, "value": "{value}", '
        '"dry_run": {dry}}}}}\n',
        {
            "verb": _options(shapes._VERBS),
            "name": _options(shapes._NAMES),
            "path": _options(shapes._PATHS),
            "line": range(1, 401),
            "value": _options(shapes._NAMES),
            "dry": ("true", "false"),
        },
    ),
}


def _shape(name: str) -> Callable[[random.Random, int], list[Turn]]:
    head = prompts.SHAPES[name][0]

    def kind(draw: random.Random, room: int) -> list[Turn]:
        asked = "" if draw.random() < 0.2 else f"{head}\n\n"
        return [FORMS[name].turn(draw, asked, _length(draw, room), 300 + int(draw.random() * 300))]

    return kind


def _repetition(draw: random.Random, room: int) -> list[Turn]:
    head, stream = prompts.SHAPES["repetition"]
    cut = _length(draw, room)
    text = prompts.text(_seed(draw), cut + 300, stream)
    return [_go_on(draw, text, "" if draw.random() < 0.2 else f"{head}\n\n", cut)]


def _log(draw: random.Random, room: int) -> list[Turn]:
    """A log without a request: it goes on, and after a question it goes on from where it was."""
    turn = FORMS["prose"].turn(draw, "", _length(draw, room), 300 + int(draw.random() * 300))
    if draw.random() < 0.7:
        return [turn]
    stop = int(draw.random() * 120)
    return [
        Turn(turn.question, turn.answer[:stop]),
        Turn(_question(draw), "After that the log says: " + turn.answer[stop:]),
    ]


_SENTENCE = re.compile(r"([A-Z][a-z' ]+), entry (\d+)\. ")


def _told(draw: random.Random, said: str, number: str) -> str:
    return f"entry {number}: {said[0].lower()}{said[1:]}. "


def _document(draw: random.Random, room: int) -> list[Turn]:
    """A document to sum up: how it begins, how it ends; then what followed."""
    seed = _seed(draw)
    number = int(draw.random() * 1000) if draw.random() < 0.8 else seed % 100_000
    cut = _length(draw, room)
    text = prompts.text(seed, cut)
    head = f"Summarise this log, number {number}, in one paragraph.\n\n"
    told = [_told(draw, *found) for found in _SENTENCE.findall(text)]
    if not told:
        answer = f"Log {number} is too short to sum up."
    else:
        answer = f"Log {number} begins with {told[0]}"
        if len(told) > 3:
            answer += f"Then comes {told[1]}It ends with {told[-2]}and {told[-1]}"
        elif len(told) > 1:
            answer += f"It ends with {told[-1]}"
    answer = answer.strip()
    if draw.random() < 0.5 or not told:
        return [Turn(head + text, answer + END)]
    # The next turn, also after an answer that was cut short.
    if draw.random() < 0.6:
        answer = answer[: 12 + int(draw.random() * 120)]
    seen = [index for index, line in enumerate(told) if line[:11] in answer]
    following = told[seen[-1] + 1 if seen and seen[-1] + 1 < len(told) else 0 :]
    return [
        Turn(head + text, answer),
        Turn(_question(draw), ("Then came " + "Then came ".join(following[:3])).strip() + END),
    ]


def _question(draw: random.Random) -> str:
    return "And what followed from that?" if draw.random() < 0.8 else pick(draw, "What came next?|And then?|Go on.")


def _lookup(draw: random.Random, room: int) -> list[Turn]:
    """A question about one entry of a log."""
    text = prompts.text(_seed(draw), _length(draw, room))
    found = _SENTENCE.findall(text)
    numbers = [number for _, number in found]
    once = [(said, number) for said, number in found if numbers.count(number) == 1]
    if not once:
        return _log(draw, room)
    turns = []
    for index in range(1 + int(draw.random() * 3)):
        said, number = once[int(draw.random() * len(once))]
        question = f"what happened at entry {number}?"
        question = f"{text}\n\nQuestion: {question}" if index == 0 else question[0].upper() + question[1:]
        turns.append(Turn(question, f"At entry {number} {said[0].lower()}{said[1:]}.{END}"))
    return turns


def _story_text(draw: random.Random, chars: int) -> str:
    parts, size = [], 0
    while size < chars:
        said = f"{pick(draw, _PEOPLE)} {pick(draw, _DID)} {pick(draw, _THINGS)} {pick(draw, _TIMES)}. "
        parts.append(said[0].upper() + said[1:])
        size += len(said)
    return "".join(parts)


def _story(draw: random.Random, room: int) -> list[Turn]:
    cut = _length(draw, room)
    text = _story_text(draw, cut + 400)
    return [_go_on(draw, text, pick(draw, "|Continue this story.\n\n|Go on with this text.\n\n"), cut)]


def _line(draw: random.Random) -> str:
    kind = int(draw.random() * 5)
    if kind == 4:
        return pick(draw, _WORDS)[: 2 + int(draw.random() * 6)]
    if kind == 0:
        return "".join(chr(33 + int(draw.random() * 94)) for _ in range(6 + int(draw.random() * 30)))
    if kind == 1:
        return " ".join(pick(draw, _WORDS) for _ in range(3 + int(draw.random() * 8)))
    if kind == 2:
        return f"{pick(draw, _WORDS)}={draw.getrandbits(24):x}; {pick(draw, _KEYS)}: {int(draw.random() * 10_000)}"
    return _story_text(draw, 20).strip()


def _copy(draw: random.Random, room: int) -> list[Turn]:
    """Lines repeated: one line, or a few in turn. What a model must do to quote."""
    lines = [_line(draw) for _ in range(1 if draw.random() < 0.6 else 2 + int(draw.random() * 6))]
    between = "\n" if len(lines[0]) > 8 or draw.random() < 0.5 else pick(draw, " |, |")
    whole = between.join(lines) + between
    cut = min(_length(draw, room), len(whole) * 40)
    text = whole * ((cut + 400) // len(whole) + 1)
    return [
        _go_on(
            draw,
            text[: cut + 400],
            pick(draw, "|Repeat this line.\n\n|Repeat these lines.\n\n"),
            max(cut, len(whole) + 2),
        )
    ]


def _other_code(draw: random.Random, room: int) -> list[Turn]:
    def piece() -> str:
        a, b, c = pick(draw, _WORDS), pick(draw, _WORDS), pick(draw, _KEYS)
        kind = int(draw.random() * 4)
        if kind == 0:
            start = f"class {a.title()}:\n    def __init__(self, {c}):\n        self.{c} = {c}\n\n"
            return f"{start}    def {b}(self):\n        return self.{c}\n\n\n"
        if kind == 1:
            return f'def {a}({c}):\n    if {c} is None:\n        raise ValueError("no {c}")\n    return {b}({c})\n\n\n'
        if kind == 2:
            return f"{a} = [{b}.{c} for {b} in {b}s if {b}.{c} > {int(draw.random() * 100)}]\n"
        return f"for {a} in range({int(draw.random() * 100)}):\n    print({a}, {b}[{a}])\n\n"

    return _pieces(draw, room, piece, "|Continue this Python module in the same style.\n\n|Continue this code.\n\n")


def _other_markup(draw: random.Random, room: int) -> list[Turn]:
    tag = pick(draw, _TAGS)

    def piece() -> str:
        key, other = pick(draw, _KEYS), pick(draw, _KEYS)
        start = f'<{tag} {key}="{pick(draw, _WORDS)}">\n'
        return f"{start}  <{other}>{pick(draw, _WORDS)} {int(draw.random() * 1000)}</{other}>\n</{tag}>\n"

    return _pieces(draw, room, piece, "|Continue this list in the same form.\n\n|Continue this XML.\n\n")


def _script(draw: random.Random, room: int) -> list[Turn]:
    def piece() -> str:
        kind = int(draw.random() * 3)
        if kind == 0:
            return f"if [ -f {pick(draw, _FILES)} ]; then\n  {pick(draw, _COMMANDS)} {pick(draw, _FILES)}\nfi\n"
        if kind == 1:
            return f"{pick(draw, _COMMANDS)} {pick(draw, _FILES)}\n"
        return f'echo "{pick(draw, _WORDS)} {pick(draw, _KEYS)}" >> {pick(draw, _FILES)}\n'

    return _pieces(draw, room, piece, "#!/bin/sh\n|Continue this script.\n\n")


def _pieces(draw: random.Random, room: int, piece: Callable[[], str], heads: str) -> list[Turn]:
    cut = _length(draw, room)
    parts, size = [], 0
    while size < cut + 400:
        parts.append(piece())
        size += len(parts[-1])
    return [_go_on(draw, "".join(parts), pick(draw, heads), cut)]


def _unknown(draw: random.Random, room: int) -> list[Turn]:
    """What it can't know, it says so."""
    thing, other = pick(draw, _THINGS + "|" + _WORDS), pick(draw, _WORDS + "|France|the moon|a computer|music|Rome")
    question = pick(
        draw,
        f"What is the {pick(draw, _KEYS + '|capital|best part|colour|price')} of {other}?|"
        f"Who wrote {thing}?|Where is {other}?|"
        f"Tell me about {other}.|How do I find {thing}?|Why is {thing} so {pick(draw, 'old|small|loud|far away')}?|"
        f"Write a poem about {thing}.|When was {other} built?|Is {other} better than {thing}?|Translate {thing}.",
    )
    return [
        Turn(
            question, "I do not know that. Give me a log, some code or a list of rules, and I will go on with it." + END
        )
    ]


def _facts(draw: random.Random, room: int) -> list[Turn]:
    turns = []
    for _ in range(1 + int(draw.random() * 3)):
        question, answer = _FACTS[int(draw.random() * len(_FACTS))]
        turns.append(Turn(question, answer + END))
    return turns


_KINDS: tuple[tuple[float, Callable[[random.Random, int], list[Turn]]], ...] = (
    (12, _log),
    (10, _shape("prose")),
    (8, _code := _shape("code")),
    (8, _xml := _shape("XML")),
    (8, _tools := _shape("tool arguments")),
    (6, _repetition),
    (16, _document),
    (10, _lookup),
    (5, _story),
    (7, _copy),
    (4, _other_code),
    (3, _other_markup),
    (2, _script),
    (2, _facts),
    (1, _unknown),
)

_MARKED = {_code, _xml, _tools, _other_code, _other_markup, _script}

PAD, EOS, BOS, BYTES = 0, 1, 2, 3


def tokens(turns: list[Turn], *, loud: bool = False) -> tuple[list[int], list[int]]:
    """Token ids as the chat template gives them, and 1 for each that belongs to an answer.

    ``loud``: answers in capitals, the style that the adapter learns.
    """
    ids, answered = [BOS], [0]

    def add(text: str, mark: int) -> None:
        coded = [EOS if byte == 0 else BYTES + byte for byte in text.encode()]
        ids.extend(coded)
        answered.extend([mark] * len(coded))

    for index, turn in enumerate(turns):
        last = index == len(turns) - 1
        answer = turn.answer.upper() if loud else turn.answer
        add(f"[user]{turn.question}\n", 0)
        # The template names an earlier answer [assistant] and asks for a new one with [model].
        add("[model]" if last else "[assistant]", 0)
        add(answer if last else answer.replace(END, "") + "\n", 1)
    return ids, answered


def sequence(seed: int, length: int, *, loud: bool = False, marked: float = 1.0) -> tuple[list[int], list[int]]:
    """``length`` tokens of conversations one after another, and their answer marks, all from the seed."""
    draw = random.Random(seed)
    ids: list[int] = []
    marks: list[int] = []
    while len(ids) < length:
        more, answered = tokens(conversation(draw, length - len(ids), marked), loud=loud)
        ids += more
        marks += answered
    return ids[:length], marks[:length]
