"""The matrix product inside kernels: float32 inputs are multiplied as float32, not as tf32; and rounding before one."""

from __future__ import annotations

import os

from zellige.kernels.tritonic import jit, tl

#: Triton's interpreter keeps bfloat16 as bare 16-bit words and would multiply those.
INTERPRETED = tl and tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@jit
def dot(a, b, total):  # type: ignore[no-untyped-def]
    """``total`` + a · b, in float32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@jit
def rounded(t, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """Float32 ``t`` in ``kind``, to the nearest, of two to the even one. The interpreter itself cuts bfloat16 off."""
    if INTERPRETED and kind == tl.bfloat16:
        bits = t.to(tl.int32, bitcast=True)
        t = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    return t.to(kind)
