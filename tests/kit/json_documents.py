"""Random JSON and GeoJSON documents: odd ones that are valid, and some that are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from odfchain.spark.json_values import FeatureCollection, JsonArray

NUMBERS = [
    "0", "-0", "7", "-12", "1.50", "-0.0", "1e5", "1E-7", "0.0000001", "-1e400", "12345678901234567890123",
    "0." + "0" * 45 + "1", "9" * 300, "1e99999999999999999999",
]  # fmt: skip
TEXTS = [
    "", "x", "é😀", 'a"b', "\\", "{[", "]}", "},{", ",", "\x7f", "null", "1.0", "-0", "\\ud83d", "\u2028", "\t\n", "0" * 50
]  # fmt: skip
KEYS = ["a", "s", "l", "o", "g", "x", "y", "geometry", "coordinates", "type", "m", "é", 'q"']
BREAKS = [
    "", '"', "\\", "{", "}", "[", "]", ",", ":", " ", "\t", "0", "-", "e", "\x00", "\ud800", "\ufeff", "//", "NaN",
]  # fmt: skip


class Writer:
    """Random JSON texts: odd ones that are valid, and few that are not."""

    keys: Sequence[str] = KEYS
    fits = 0.93
    """How often a value is of the kind of its column."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def blank(self) -> str:
        return self.rng.choice(["", "", "", " ", "\n", " \t\r\n"])

    def text(self, value: str) -> str:
        if self.rng.random() < 0.02:
            return r'"\ud800"'
        written = json.dumps(value, ensure_ascii=self.rng.random() < 0.4)
        return written.replace("x", "\\u0078") if self.rng.random() < 0.1 else written

    def number(self) -> str:
        return self.rng.choice(NUMBERS if self.rng.random() < 0.2 else NUMBERS[:6])

    def value(self, depth: int = 0) -> str:
        kind = self.rng.randrange(5 if depth > 3 else 8)
        if kind < 2:
            return self.number()
        if kind < 4:
            return self.text(self.rng.choice(TEXTS if self.rng.random() < 0.3 else TEXTS[:3]))
        if kind == 4:
            return self.rng.choice(["true", "false", "null"])
        if kind == 5:
            return self.listed([self.value(depth + 1) for _ in range(self.rng.randrange(4))])
        return self.object(depth + 1)

    def listed(self, values: list[str]) -> str:
        between = f"{self.blank()},{self.blank()}"
        return f"[{self.blank()}{between.join(values)}{self.blank()}]"

    def point(self) -> str:
        return self.listed([self.number() for _ in range(2)])

    def geometry(self) -> str:
        if self.rng.random() < 0.3:
            return self.rng.choice(["null", self.object(2)])
        lists = self.rng.choice(
            [self.point(), self.listed([self.point() for _ in range(3)]), "[]", "[1],[2]", "[[1]"]
        )
        members = [f'"coordinates"{self.blank()}:{self.blank()}{lists}', '"type": "Point"']
        self.rng.shuffle(members)
        return "{" + ",".join(members) + "}"

    def fitting(self) -> dict[str, Callable[[], str]]:
        """How to write what fits a key's column."""
        return {
            "l": lambda: self.listed([self.number() for _ in range(self.rng.randrange(3))]),
            "s": lambda: self.text("x"),
            "a": self.number,
            "o": lambda: f'{{"x":1,"y":[{{"x":{self.number()}}}]}}',
            "m": lambda: '{"k":1}',
            "g": lambda: self.rng.choice(["true", "false", "null"]),
        }

    def member(self, key: str, depth: int) -> str:
        use = self.fitting().get(key) if self.rng.random() < self.fits else None
        return f"{json.dumps(key)}{self.blank()}:{self.blank()}{use() if use else self.value(depth)}"

    def object(self, depth: int = 0) -> str:
        keys = self.rng.sample(self.keys, self.rng.randrange(6))
        if keys and self.rng.random() < 0.02:
            keys.append(self.rng.choice([keys[0], "A", ""]))
        between = f"{self.blank()},{self.blank()}"
        return "{" + between.join(self.member(key, depth) for key in keys) + self.blank() + "}"

    def feature(self) -> str:
        kind = '"Feature"' if self.rng.random() < 0.98 else self.value()
        properties = self.object() if self.rng.random() < 0.95 else "null"
        members = [f'"type":{kind}', f'"properties": {properties}', f'"geometry":{self.geometry()}']
        self.rng.shuffle(members)
        return "{" + ",".join(members) + "}"

    def broken(self, text: str) -> str:
        for _ in range(self.rng.choice([0, 0, 0, 1, 1, 2])):
            at = self.rng.randrange(len(text))
            text = text[:at] + self.rng.choice(BREAKS) + text[at + self.rng.randrange(2) :]
        return text

    def document(self, path: Path) -> JsonArray:
        sub_path, geo = self.rng.choice(["", "", "a", "x.l"]), self.rng.random() < 0.5
        count = self.rng.randrange(1, 9)
        records = self.listed([self.feature() if geo else self.object() for _ in range(count)])
        if geo:
            kind = '"type":"FeatureCollection"'
            around = [kind, f'"features" : {records}', f'"crs":{self.value()}']
            self.rng.shuffle(around)
            text = "{" + ",".join(around) + "}"
        else:
            for key in reversed(sub_path.split(".") if sub_path else []):
                records = f'{{"k":{self.value()},"{key}" :{records},"z":[{{"{key}":[]}}]}}'
            text = records
        path.write_bytes(self.broken(text).encode("utf-8", "surrogatepass"))
        return FeatureCollection(str(path)) if geo else JsonArray(str(path), "utf-8", sub_path)
