"""An OpenAI-compatible server that says the colour of a picture, so that an answer in the wrong row is seen.

As a script: ``colour_server.py HOST PORT SECONDS`` answers each request after so long, until it is killed.
"""

from __future__ import annotations

import asyncio
import base64
import io
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "remote"))

from standin import Asked, StandIn, completion


def colour_of(image: Image.Image) -> str:
    """The answer to a picture of one colour."""
    return "colour {} {} {}".format(*image.convert("RGB").getpixel((0, 0)))  # type: ignore[misc]


async def main(host: str, port: int, delay_s: float) -> None:
    async def answer(asked: Asked) -> None:
        parts = asked.body["messages"][-1]["content"]
        (uri,) = (part["image_url"]["url"] for part in parts if part["type"] == "image_url")
        image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
        await asyncio.sleep(delay_s)
        await asked.reply(200, completion(colour_of(image)))
        print(colour_of(image), flush=True)  # its log tells how many it has answered

    await StandIn(otherwise=answer, port=port, health=200, host=host).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
