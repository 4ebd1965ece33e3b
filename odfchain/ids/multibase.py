"""Multibase text: base16 here, every other encoding through the `multiformats` library.

The specification asks for all encodings that the multibase registry lists as final; base16 is the one that
is printed (specification "Hash Representation", RFC-012 of ODF). Base16 is on every hot path and done
natively; the library is loaded only when another prefix is met.
"""

from __future__ import annotations

import binascii

from odfchain.errors import InvalidIdError

FINAL_PREFIXES = {
    "f": "base16",
    "F": "base16upper",
    "b": "base32",
    "B": "base32upper",
    "z": "base58btc",
    "m": "base64",
    "u": "base64url",
    "U": "base64urlpad",
}
"""Prefix to name of every encoding in state "final"."""

_MAX_TEXT = 256


def encode_base16(data: bytes) -> str:
    """Lower-case base16 with its prefix `f`."""
    return "f" + data.hex()


def encode(data: bytes, encoding: str) -> str:
    """`data` in the named encoding, with its prefix.

    Raises:
        InvalidIdError: the encoding is not one of `FINAL_PREFIXES`.
    """
    if encoding == "base16":
        return encode_base16(data)
    if encoding not in FINAL_PREFIXES.values():
        raise InvalidIdError(f"unsupported multibase encoding {encoding!r}")
    import multiformats.multibase  # noqa: PLC0415 - slow to load, rarely needed

    return str(multiformats.multibase.encode(data, encoding))


def decode(text: str) -> bytes:
    """The bytes that `text` stands for, whatever final encoding it is in.

    Raises:
        InvalidIdError: empty, too long, an unknown prefix, or characters outside the encoding's alphabet.
    """
    if not text:
        raise InvalidIdError("an empty multibase string")
    if len(text) > _MAX_TEXT:
        raise InvalidIdError(f"a multibase string of {len(text)} characters (at most {_MAX_TEXT})")
    prefix = text[0]
    if prefix in "fF":
        # Mixed case is read under either prefix, as the reference implementation does.
        try:
            return binascii.unhexlify(text[1:])
        except (binascii.Error, ValueError):
            raise InvalidIdError(f"malformed base16 in {text!r}") from None
    if prefix not in FINAL_PREFIXES:
        raise InvalidIdError(
            f"unsupported multibase prefix {prefix!r} in {text!r}",
            hint="hashes and keys are usually written in base16 and start with 'f'",
        )
    import multiformats.multibase  # noqa: PLC0415 - slow to load, rarely needed

    try:
        return bytes(multiformats.multibase.decode(text))
    except Exception as error:
        raise InvalidIdError(f"malformed {FINAL_PREFIXES[prefix]} in {text!r}") from error
