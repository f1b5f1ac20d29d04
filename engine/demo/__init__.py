"""The small checkpoint that ships and all that made it; ``model/MODEL_CARD.md`` says how to make it again.

tokenizer -> train -> export -> evaluate. Training rows come from ``stream`` (with ``drawing``, ``packing``, ``grids``)
by way of ``pools``; the model is ``net`` (with ``vision``, ``decoder``, ``experts``, ``geometry``; sizes in
``architecture``); a step is ``augment``, ``step`` and ``optimizer``, on every GPU of a ``world``. Evaluation asks an
engine the held-out ``suites``.
"""
