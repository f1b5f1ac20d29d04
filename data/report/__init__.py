"""One page about one run: its rows, pictures, charts and kernels in one HTML file that loads nothing from anywhere.

| file        | what it makes                                                                          |
| ----------- | -------------------------------------------------------------------------------------- |
| `rows.py`   | which rows the page holds, and what of each                                            |
| `series.py` | the run over time: rows, tokens, latency, queue, temperature                           |
| `page.py`   | the file: style and script of the page, the data, and the policy that lets in no other |
"""
