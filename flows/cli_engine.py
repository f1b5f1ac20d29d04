"""``zellige serve``, ``quantize``, ``doctor`` and ``bench …``: the engine and this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.flows.cli_options import (
    Config,
    Device,
    Dtype,
    Model,
    PlainJson,
    Preset,
)

app = typer.Typer()
bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.command("pipeline")
def bench_pipeline(
    items: Annotated[
        int, typer.Option(min=10, help="JPEGs of one megapixel; memory is measured over 10, listing over 200 times it.")
    ] = 5000,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Add the rows to this file of JSON lines.")] = None,
    as_json: PlainJson = False,
) -> None:
    """What a run costs around the engine: against a bare loop over the same files, in memory, and in listing."""
    from zellige.flows.bench_command import bench_pipeline

    raise typer.Exit(bench_pipeline(items, out, as_json))


@bench_app.command("engine")
def bench_engine(
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint to measure on this CPU. Without it the one that ships."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead a model of this published size, on a GPU.")
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Give a shape random weights: only its speed is measured.")
    ] = False,
    images: Annotated[int, typer.Option(min=16, help="Images a round, on a CPU.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="The median of so many counts.")] = 3,
    alone: Annotated[bool, typer.Option("--alone", help="A shape without transformers beside it.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Add the rows to this file of JSON lines.")] = None,
) -> None:
    """The engine's speed beside transformers' generate, in one run; no speed is told where the two disagree."""
    if (shape is not None) != random_weights or (shape is not None and model is not None):
        raise typer.BadParameter("--shape NAME and --random-weights go together, and without --model")
    if shape is not None:
        from zellige.engine.bench_shape import bench as bench_shape

        raise typer.Exit(bench_shape(shape, rounds, out, alone=alone))
    from zellige.engine.bench import bench as bench_model

    raise typer.Exit(bench_model(model, images, rounds=rounds, out=out))


@bench_app.command("kernels")
def bench_kernels(
    check: Annotated[bool, typer.Option("--check", help="First hold every operator against its reference.")] = False,
    sweep: Annotated[bool, typer.Option("--sweep", help="Also time other block sizes of the same kernels.")] = False,
) -> None:
    """How near the GPU's operators come to what this card can do, and what peers take for the same work."""
    from zellige.kernels.bench import bench

    raise typer.Exit(bench(check_first=check, time_them=True, sweep=sweep))


@app.command("serve")
def serve_engine(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    device: Device = None,
    dtype: Dtype = None,
    api_keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of name:key; without one of them nobody is answered.")
    ] = None,
    image_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="Fetch image_url from this host; may be given often. An address or network stands for itself, "
            "for those that are not public.",
        ),
    ] = None,
    preset: Preset = None,
    config: Config = None,
) -> None:
    """Serve the engine on one port: OpenAI-compatible API, chat page, health and metrics."""
    try:
        from zellige.engine.server.run import serve
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"no module {error.name}: install zellige[serve]", param_hint="serve") from error
    from zellige.engine.connect import EngineSpec, open_local
    from zellige.flows.serve_command import serve_command
    from zellige.flows.settings import SettingError, limits_in, resolve

    flags = {"model": None if model is None else str(model), "device": device, "dtype": dtype}
    try:
        found = resolve(flags, preset or [], config, os.environ)
    except SettingError as error:
        raise typer.BadParameter(str(error), param_hint="serve") from error
    named: dict[str, Any] = {key: found[key].value if key in found else None for key in flags}
    spec = EngineSpec(**named, limits=tuple(limits_in(found).items()))

    def run(tell: Callable[[str], None]) -> None:
        serve(
            lambda: open_local(spec),
            host=host,
            port=port,
            api_keys=api_keys,
            image_hosts=tuple(image_host or ()),
            on_listening=tell,
        )

    raise typer.Exit(serve_command(run, has_keys=api_keys is not None))


@app.command("quantize")
def quantize_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Checkpoint folder in Hugging Face layout.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the quantised checkpoint.")],
    bits: Annotated[int, typer.Option(metavar="2|3|4|8", help="Bits of the weights of the decoder's layers.")] = 4,
    experts_bits: Annotated[
        int | None, typer.Option(metavar="2|3|4|8", help="Bits of experts' weights. Default: those of --bits.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave matrices alone whose names hold this regular expression."),
    ] = None,
    tensor: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=BITS", help="Bits of matrices whose names hold PATTERN; the first that fits."),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(metavar="32|64|128", help="Inputs that share a scale. Default: 32 at 2 and 3 bits, else 128."),
    ] = None,
    sensitive: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.5,
            metavar="SHARE",
            help="Inputs kept in 8 bits, those that cost most. Default: 0.04 at 2 and 3 bits, else 0.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Drawn samples to calibrate with.")] = 96,
    report_samples: Annotated[
        int, typer.Option(min=0, help="Held-out samples to measure what it cost with; 0: do not.")
    ] = 100,
    device: Device = None,
    dtype: Dtype = None,
    as_json: PlainJson = False,
) -> None:
    """Write a checkpoint with weights of 2, 3, 4 or 8 bits, and measure what that cost."""
    from zellige.flows.quantize_command import quantize_command

    def work(tell: Callable[[str], None]) -> dict[str, Any]:
        from zellige.engine.quantize.plan import make_plan
        from zellige.engine.quantize.run import quantize_and_judge

        plan = make_plan(bits, experts_bits, keep or [], tensor or [], group, sensitive)
        how: dict[str, Any] = {"samples": samples, "judges": report_samples, "device": device, "dtype": dtype}
        return quantize_and_judge(model, to, plan, **how, tell=tell)

    raise typer.Exit(quantize_command(work, to, as_json))


@app.command("doctor")
def examine(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="With --sanitize: what to run. Default: the operators' self-tests."),
    ] = None,
    layers: Annotated[
        Path | None,
        typer.Option(metavar="IMAGE", help="Compare the model's layers on this image with float32 on the CPU."),
    ] = None,
    model: Model = None,
    device: Device = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="float32|bfloat16|float16", help="With --layers. Default: bfloat16.")
    ] = None,
    dump: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help="With --layers: write what comes out of this place; may be given often."),
    ] = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where --dump writes.")] = Path(),
    sanitize: Annotated[
        str | None,
        typer.Option(
            metavar="memcheck|racecheck|initcheck|synccheck",
            help="Run COMMAND under compute-sanitizer and tell its report by operator.",
        ),
    ] = None,
    as_json: PlainJson = False,
) -> None:
    """Look at what may be wrong: the GPUs, every operator against its reference, a model's layers."""
    from zellige.engine.doctor import Doctor
    from zellige.flows import doctor_command as doctor

    looks_at = Doctor(device)
    if sanitize is not None:
        raise typer.Exit(doctor.sanitize(looks_at, command or [], sanitize, as_json))
    if command:
        raise typer.BadParameter("a command is run with --sanitize memcheck", param_hint="COMMAND")
    if layers is not None:
        folder = None if model is None else str(model)
        raise typer.Exit(doctor.layers(looks_at, layers, folder, dtype, dump or [], to, as_json))
    raise typer.Exit(doctor.examine(looks_at, as_json))
