"""The command line: what can be started, and with what. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zellige.flows.usage import JsonUsage

if TYPE_CHECKING:
    from zellige.tasks.job import Flow

app = typer.Typer(
    name="zellige",
    cls=JsonUsage,
    help="Captions and questions images by the million on your own GPUs: every image ends as a row.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
runs_app = typer.Typer(help="Look at the runs of a store.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")
bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
config_app = typer.Typer(help="Look at settings.", no_args_is_help=True)
app.add_typer(config_app, name="config")

WHAT, HOW, WHERE, OF_WHAT, RUNNING = "What to do", "How to ask", "Where", "Of what", "How to run"

Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="INPUT", help="Images, folders, globs, archives, tables and lists; here or at s3://…"),
]
Store = Annotated[str | None, typer.Option(metavar="DIR", help="Folder of runs and answers.", rich_help_panel=WHERE)]
Tile = Annotated[
    str | None,
    typer.Option(
        metavar="auto|off|PIXELS",
        help="Cut large images into tiles of the model's own size (auto), of PIXELS, or not. Default: auto.",
        rich_help_panel=WHAT,
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Take the first N items.", rich_help_panel=WHAT)]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Count items and vision tokens, time a few; write nothing.", rich_help_panel=WHAT),
]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Finish this run.", rich_help_panel=WHAT)]
Retry = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND", help="With --resume: answer rows that failed so again; failed: all.", rich_help_panel=WHAT
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="One request an item, and the answer as the engine gave it: no tiles, no second tries, nothing refused.",
        rich_help_panel=WHAT,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of one answer at most. Default: 256, to read 1024.", rich_help_panel=HOW),
]
Temperature = Annotated[float | None, typer.Option(min=0, max=10, help="0 is greedy. Default: 0.", rich_help_panel=HOW)]
Seed = Annotated[int | None, typer.Option(help="Makes sampled answers repeatable.", rich_help_panel=HOW)]
Model = Annotated[
    Path | None,
    typer.Option(
        help="Checkpoint folder in Hugging Face layout. Default: the small one that ships; it knows shapes and "
        "printed text.",
        rich_help_panel=WHERE,
    ),
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Ask the OpenAI-compatible server at http://HOST:PORT/v1 instead; of several (given often, or with "
        "commas), the one with the least to do.",
        rich_help_panel=WHERE,
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="cpu|cuda[:N]", help="Where the model runs.", rich_help_panel=WHERE)
]
Dtype = Annotated[
    str | None, typer.Option(metavar="float32|bfloat16|float16", help="Type of the weights.", rich_help_panel=WHERE)
]
ShardItems = Annotated[
    int | None,
    typer.Option(min=1, help="Items answered and committed together. Default: 256.", rich_help_panel=WHERE),
]
Include = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Take only files like this.", rich_help_panel=OF_WHAT)
]
Exclude = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Leave files like this out.", rich_help_panel=OF_WHAT)
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column of a table or list that holds the images.", rich_help_panel=OF_WHAT),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Keep this column beside the answers; may be given often.", rich_help_panel=OF_WHAT
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Processes that decode images. Default: one a CPU.", rich_help_panel=RUNNING),
]
NoDedupe = Annotated[
    bool, typer.Option("--no-dedupe", help="Ask about each copy of an image anew.", rich_help_panel=RUNNING)
]
NoPrefect = Annotated[
    bool, typer.Option("--no-prefect", help="Run the same steps without Prefect.", rich_help_panel=RUNNING)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=RUNNING)]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress and no summary; errors are still told.", rich_help_panel=RUNNING)
]
Preset = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Settings that ship (zellige config presets); may be given often, and every flag counts more.",
        rich_help_panel=HOW,
    ),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings from this TOML file.", rich_help_panel=HOW)]
Schema = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="JSON schema that every answer has to meet.", rich_help_panel=HOW),
]
LogFile = Annotated[Path | None, typer.Option(help="Write a log of the run here.", rich_help_panel=RUNNING)]
RunStore = Annotated[Path, typer.Option("--store", help="Folder of runs and answers.")]
PlainJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command()
def caption(
    inputs: Inputs = None,
    store: Store = None,
    prompt: Annotated[
        str | None, typer.Option(help="What to say to the model. Default: Describe the image.", rich_help_panel=WHAT)
    ] = None,
    tile: Tile = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    retry: Retry = None,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    column: Column = None,
    keep: Keep = None,
    workers: Workers = None,
    no_dedupe: NoDedupe = False,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    preset: Preset = None,
    config: Config = None,
    schema: Schema = None,
) -> None:
    """Caption every image."""
    parameters = _parameters(locals()) | {"prompt": prompt, "json_schema": schema}
    _start(
        "caption", parameters, dry_run=dry_run, prefect=not no_prefect, as_json=as_json, quiet=quiet, log_file=log_file
    )


@app.command()
def ask(
    inputs: Inputs = None,
    store: Store = None,
    question: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A question about every image; may be given often.", rich_help_panel=WHAT),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Questions from a JSONL, CSV or Parquet file: question, and question_id where wanted.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="What to say around each question, with {question} in it.", rich_help_panel=WHAT),
    ] = None,
    tile: Tile = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    retry: Retry = None,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    column: Column = None,
    keep: Keep = None,
    workers: Workers = None,
    no_dedupe: NoDedupe = False,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    preset: Preset = None,
    config: Config = None,
    schema: Schema = None,
) -> None:
    """Ask questions about every image."""
    asked = {"questions": question or [], "questions_file": None if questions is None else _address(questions)}
    parameters = _parameters(locals()) | asked | {"prompt": prompt, "json_schema": schema}
    _start("ask", parameters, dry_run=dry_run, prefect=not no_prefect, as_json=as_json, quiet=quiet, log_file=log_file)


@app.command()
def read(
    inputs: Inputs = None,
    store: Store = None,
    prompt: Annotated[
        str | None, typer.Option(help="What to say to the model. Default: Read the text.", rich_help_panel=WHAT)
    ] = None,
    tile: Tile = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    retry: Retry = None,
    raw: Raw = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    include: Include = None,
    exclude: Exclude = None,
    column: Column = None,
    keep: Keep = None,
    workers: Workers = None,
    no_dedupe: NoDedupe = False,
    no_prefect: NoPrefect = False,
    as_json: Json = False,
    quiet: Quiet = False,
    log_file: LogFile = None,
    preset: Preset = None,
    config: Config = None,
) -> None:
    """Read all text of every image, in reading order."""
    parameters = _parameters(locals()) | {"prompt": prompt}
    _start("read", parameters, dry_run=dry_run, prefect=not no_prefect, as_json=as_json, quiet=quiet, log_file=log_file)


@runs_app.command("list")
def list_runs(store: RunStore, as_json: PlainJson = False) -> None:
    """Every run of the store, oldest first."""
    from zellige.flows.runs_commands import list_runs

    raise typer.Exit(list_runs(store, as_json))


@runs_app.command("show")
def show_run(run: Annotated[str, typer.Argument(metavar="RUN")], store: RunStore, as_json: PlainJson = False) -> None:
    """One run: its counts, what failed and why, its throughput, and where its rows are."""
    from zellige.flows.runs_commands import show_run

    raise typer.Exit(show_run(run, store, as_json))


@runs_app.command("status")
def run_status(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    watch: Annotated[bool, typer.Option("--watch", help="Look again until the run ends.")] = False,
    as_json: PlainJson = False,
) -> None:
    """How far a run is, how fast it goes and how long it will take; also while it is worked on."""
    from zellige.flows.runs_commands import run_status

    raise typer.Exit(run_status(run, store, watch, as_json))


@runs_app.command("delete")
def delete_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: PlainJson = False,
) -> None:
    """Remove a run and its answers for good."""
    from zellige.flows.runs_commands import delete_run

    raise typer.Exit(delete_run(run, store, yes, as_json))


@runs_app.command("compare")
def compare_runs(
    first: Annotated[str, typer.Argument(metavar="A")],
    second: Annotated[str, typer.Argument(metavar="B")],
    store: RunStore,
    agreement: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Of the answers ok in both, how many must be equal.")
    ] = 0.99,
    throughput: Annotated[
        float, typer.Option(min=0, metavar="RATIO", help="What items a second of B over A must reach.")
    ] = 0.8,
    as_json: PlainJson = False,
) -> None:
    """Two runs side by side: counts, answers, kernels, throughput; exit code 3 where B is worse than it may be."""
    from zellige.flows.compare_command import compare_runs
    from zellige.tasks.compare import Limits

    raise typer.Exit(compare_runs(first, second, store, Limits(agreement, throughput), as_json))


@runs_app.command("rebuild")
def rebuild_index(store: RunStore, as_json: PlainJson = False) -> None:
    """Make the store's index anew from its files."""
    from zellige.flows.runs_commands import rebuild_index

    raise typer.Exit(rebuild_index(store, as_json))


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


@app.command("export")
def export_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    to: Annotated[str, typer.Option(metavar="jsonl|txt|webdataset|hf|coco|openai-batch", help="What is written.")],
    dest: Annotated[
        Path | None, typer.Argument(metavar="DEST", help="A new file, or for txt, webdataset and hf a folder.")
    ] = None,
    beside: Annotated[bool, typer.Option("--beside", help="txt: write each text beside its image.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at DEST.")] = False,
    if_exists: Annotated[
        str | None,
        typer.Option(metavar="skip|overwrite|append|prepend", help="txt: a text that is there. Default: skip."),
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="txt: goes before each answer.")] = None,
    suffix: Annotated[str | None, typer.Option(help="txt: goes after each answer.")] = None,
    shard_bytes: Annotated[
        int | None, typer.Option(min=1, help="webdataset, hf: bytes of images a file, about. Default: 1 GiB.")
    ] = None,
    as_json: PlainJson = False,
) -> None:
    """Write a run's answers for other programs: text files, WebDataset, Hugging Face, COCO, JSON lines."""
    from zellige.flows.export_command import export

    options: dict[str, Any] = {
        "beside": beside,
        "overwrite": overwrite,
        "if_exists": if_exists,
        "prefix": prefix,
        "suffix": suffix,
    }
    raise typer.Exit(export(run, to, dest, store, **options, shard_bytes=shard_bytes, as_json=as_json))


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


@app.command("report")
def report_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file to write. Default: report-RUN.html.")
    ] = None,
    as_json: PlainJson = False,
) -> None:
    """Write one HTML file about a run: images, tiles, answers, charts, kernels; it opens without a network."""
    from zellige.flows.report_command import report

    raise typer.Exit(report(run, store, out, as_json))


@app.command("review")
def review_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    store: RunStore,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    reviewer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Stands beside each verdict. Default: the user's name.")
    ] = None,
) -> None:
    """Serve a run's page to this machine, to accept, edit or reject its answers."""
    from zellige.flows.review_command import review

    raise typer.Exit(review(run, store, port, reviewer))


@config_app.command("show")
def show_config(
    flow: Annotated[str | None, typer.Argument(metavar="[caption|ask|read]")] = None,
    preset: Preset = None,
    config: Config = None,
    prompt: Annotated[str | None, typer.Option(help="What to say to the model.", rich_help_panel=WHAT)] = None,
    tile: Tile = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    schema: Schema = None,
    model: Model = None,
    engine: Engines = None,
    device: Device = None,
    dtype: Dtype = None,
    shard_items: ShardItems = None,
    workers: Workers = None,
    as_json: PlainJson = False,
) -> None:
    """Every setting of a flow, and whether a flag, the environment, a file, a preset or nothing said it."""
    from zellige.flows.config_command import show
    from zellige.flows.settings import KEYS

    given = {
        **locals(),
        "engines": engine,
        "json_schema": schema,
        "model": None if model is None else str(model.absolute()),
    }
    flags = {key: given[key] for key in KEYS}
    raise typer.Exit(show(flow, preset or [], config, flags, as_json))


@config_app.command("presets")
def list_presets(as_json: PlainJson = False) -> None:
    """The presets that ship, and what each is for."""
    from zellige.flows.config_command import presets

    raise typer.Exit(presets(as_json))


def _parameters(given: dict[str, Any]) -> dict[str, Any]:
    """What every flow is started with, as small plain values: None for what was left out."""
    plain = ("tile", "limit", "resume", "max_tokens", "temperature", "seed", "device", "dtype", "shard_items", "column")
    return {
        "inputs": given["inputs"] or [],
        "store": given["store"] and (given["store"] if "://" in given["store"] else _address(Path(given["store"]))),
        "model": None if given["model"] is None else str(given["model"].absolute()),
        "engines": given["engine"] or [],
        "raw": given["raw"] or None,
        "include": given["include"] or [],
        "exclude": given["exclude"] or [],
        "keep": given["keep"] or [],
        "retry": given["retry"] or [],
        "workers": given["workers"],
        "presets": given["preset"] or [],
        "config": given["config"],
        "dedupe": not given["no_dedupe"],
        **{name: given[name] for name in plain},
    }


def _address(path: Path) -> str:
    from zellige.data.uri import to_uri

    return to_uri(path)


def _start(task: Flow, parameters: dict[str, Any], **how: Any) -> None:
    from zellige.flows.commands import start

    raise typer.Exit(start(task, parameters, **how))


def main() -> None:
    """The ``zellige`` command."""
    app()
