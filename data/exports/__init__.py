"""A run's rows in the forms that other programs read, one file a format.

| format         | what is written                                                                                    |
| -------------- | -------------------------------------------------------------------------------------------------- |
| `jsonl`        | one object a row, failed ones too, every column                                                    |
| `txt`          | one text beside each image, or below a folder (``txt.py`` has the rule for names)                  |
| `webdataset`   | tar shards of `key.jpg`, `key.txt`, `key.json`; the key is the row's id                            |
| `hf`           | a folder for ``datasets.load_dataset``: Parquet with an Image column, and a card                   |
| `coco`         | COCO captions                                                                                      |
| `openai-batch` | lines like the output file of OpenAI's batch API, failed rows as its errors                        |

Files are written whole or not at all. All but ``jsonl`` and ``openai-batch`` hold the rows that are ok; the others are
counted by reason.
"""

from zellige.data.exports.base import Exported, ExportError, ExportOptions, WrongPlace
from zellige.data.exports.choose import FORMATS, export_run

__all__ = ["FORMATS", "ExportError", "ExportOptions", "Exported", "WrongPlace", "export_run"]
