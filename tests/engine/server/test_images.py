"""What ``image_url`` may say (D23) and what becomes of the pixels."""

from __future__ import annotations

import base64
import io
import logging
import zlib
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from server_harness import LiveServer, card, chat, encoded, uri

from zellige.engine.api import VisionBudget, ask
from zellige.engine.server.decode import decode, open_image
from zellige.engine.server.errors import ApiError

PNG = encoded(card(size=(96, 64)))
JPEG = encoded(card(size=(640, 480)), "JPEG", quality=95)
B64 = base64.b64encode(PNG).decode()
#: With + and / in it, so that other alphabets show.
NOISE = encoded(Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 64, 3), dtype=np.uint8)))
NOISE_B64 = base64.b64encode(NOISE).decode()
AS_IT_IS = VisionBudget(16, 2, 1, 10**9)


@pytest.mark.parametrize(
    "url",
    [
        uri(PNG),
        uri(PNG, "data:image/jpeg;base64,"),  # labels are not believed
        uri(PNG, "data:;base64,"),
        uri(PNG, "data:image/png;charset=utf-8;base64,"),
        uri(PNG, "DATA:IMAGE/PNG;BASE64,"),
        "data:image/png;base64," + quote(B64, safe=""),
        "data:image/png;base64," + "\r\n".join(B64[i : i + 76] for i in range(0, len(B64), 76)),
    ],
)
def test_every_spelling_of_the_same_bytes_is_the_same_image(fake: LiveServer, url: str) -> None:
    fake.post(chat(url, "?")).raise_for_status()
    assert fake.engine.texts == ["<96 x 64>", "?"]
    (image, _) = fake.engine.seen[-1].messages[0].parts
    assert np.array_equal(image.pixels, np.asarray(card(size=(96, 64))))


@pytest.mark.parametrize(
    "url",
    [
        uri(PNG)[:-1],  # padding
        "data:image/png;base64," + NOISE_B64.replace("+", " "),
        "data:image/png;base64," + NOISE_B64.replace("+", "-").replace("/", "_"),
        "data:image/png;base64,",
        "data:image/png;base64,====",
        "data:image/png,%89PNG",
        "data:image/png",
        "data:image/png;base64;" + B64,
        uri(JPEG[:-128]),
        uri(JPEG[:400]),
        uri(PNG[:50]),
        uri(PNG[:-30]),
        uri(b"GIF89a"),
        uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "data:image/svg+xml;base64,"),
        uri(b"%PDF-1.7"),
        "data:image/png;base64,Ünïcödé",
        "",
        "cat.png",
    ],
)
def test_damaged_payloads_are_refused_by_number_and_not_repeated(
    fake: LiveServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = chat(uri(PNG), "and", uri(PNG))
    body["messages"][0]["content"][2]["image_url"]["url"] = url
    with caplog.at_level(logging.DEBUG):
        reply = fake.post(body)
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error["message"].startswith("image 2 (messages[0].content[2])")
    assert error["param"] == "messages[0].content[2]"
    said = reply.text + "".join(r.getMessage() for r in caplog.records if r.name.startswith(("zellige", "uvicorn")))
    assert not url[22:60] or url[22:60] not in said
    assert not fake.engine.seen


def test_a_photo_becomes_what_the_model_sees() -> None:
    """Upright, over white, in 8 bits: what is compared with is told by the pixels and not by the decoder."""
    red_then_blue = Image.new("RGB", (64, 32), "red")
    red_then_blue.paste("blue", (32, 0, 64, 32))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rows of the file are columns of the picture
    turned = seen(encoded(red_then_blue, "PNG", exif=exif.tobytes()))
    assert turned.shape == (64, 32, 3)
    assert turned[0, 0].tolist() == [255, 0, 0]
    assert turned[-1, 0].tolist() == [0, 0, 255]

    clear = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    assert seen(encoded(clear)).min() == 255
    palette = Image.new("P", (32, 32), 3)
    palette.putpalette([0] * 768)
    assert seen(encoded(palette, "PNG", transparency=3)).min() == 255

    deep = Image.fromarray(np.full((32, 32), 0xABCD, np.uint16))
    assert set(seen(encoded(deep)).ravel()) == {0xAB}
    assert seen(encoded(Image.new("CMYK", (32, 32), (0, 0, 0, 0)), "JPEG")).min() > 250
    assert seen(encoded(Image.new("1", (32, 32), 1))).min() == 255
    for kind in ("WEBP", "GIF", "BMP"):
        blue = seen(encoded(Image.new("RGB", (64, 32), "blue"), kind))
        assert np.abs(blue.astype(int) - (0, 0, 255)).max() < 8


def test_resizing_here_is_the_processors_own_resizing(demo: LiveServer) -> None:
    """The engine answers the same whether it or the server makes the image small."""
    budget = VisionBudget(16, 2, 8192, 200_704)
    photo = np.random.default_rng(2).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    ours = decode(open_image(encoded(Image.fromarray(photo)), 10**7), budget)
    processor = demo.engine._processor
    (theirs,) = processor.prepare(ask("?", photo)).images
    assert np.array_equal(ours, theirs.pixels)
    (again,) = processor.prepare(ask("?", ours)).images
    assert again.key == theirs.key


def test_the_pixel_limit_is_held_by_the_header_alone() -> None:
    """A bomb: few bytes, many pixels. Decoding it would take gigabytes, and its pixels are not even there."""
    file = io.BytesIO()
    Image.new("1", (8, 8)).save(file, "PNG")
    bomb = bytearray(file.getvalue())
    bomb[16:24] = (40_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    with pytest.raises(ApiError) as caught:
        open_image(bytes(bomb), 64_000_000)
    assert caught.value.status == 413
    assert "40000 x 40000" in caught.value.message


def test_an_image_too_narrow_to_be_seen_is_refused(fake: LiveServer) -> None:
    reply = fake.post(chat(uri(encoded(Image.new("RGB", (3000, 2)))), "?"))
    assert reply.status_code == 400
    assert "image 1" in reply.json()["error"]["message"]


def seen(data: bytes) -> np.ndarray:
    return decode(open_image(data, 10**7), AS_IT_IS)
