"""The curve of ed25519 in plain arithmetic (RFC 8032, section 5.1): an oracle, slow and not secret."""

from __future__ import annotations

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SQRT_MINUS_1 = pow(2, (P - 1) // 4, P)

Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P,
    )


def multiply(point: Point, times: int) -> Point:
    found = NEUTRAL
    while times:
        if times & 1:
            found = add(found, point)
        point, times = add(point, point), times >> 1
    return found


def x_of(y: int) -> int | None:
    """One of the two x of the points with this y, None when there are none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * SQRT_MINUS_1 % P
    return x if x * x % P == square else None


def small_order() -> set[Point]:
    """The eight points whose eightfold is the neutral element: multiples of any point, times L."""
    found: set[Point] = set()
    y = 2
    while len(found) < 8:
        y += 1
        x = x_of(y)
        if x is not None:
            torsion = multiply((x, y), L)
            found |= {multiply(torsion, k) for k in range(8)}
    return found


def encodings(point: Point) -> list[bytes]:
    """Every 32 bytes that some decoder takes for the point: y or y + p, and both signs where x is 0."""
    x, y = point
    signs = (0, 1) if x == 0 else (x & 1,)
    return [
        (value | sign << 255).to_bytes(32, "little")
        for value in (y, y + P)
        if value < 2**255
        for sign in signs
    ]
