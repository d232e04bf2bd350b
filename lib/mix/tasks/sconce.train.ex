defmodule Mix.Tasks.Sconce.Train do
  alias Sconce.{Config, Device, Error, Native, Preset, Switches, Text, Trainer}
  alias Sconce.Trainer.{Catalogue, Curve, Progress, RangeTest, Report, Signals}
  alias Sconce.Monitor.{Detached, Snapshot}
  alias Sconce.Trainer.Curve.Page

  @shortdoc "Trains a policy on a corpus"

  @own [
    corpus: [type: :path, doc: "Folder of the corpus to train on, required."],
    out: [type: :path, doc: "Folder of the run, required."],
    resume: [type: :path, doc: "Folder of the run to resume; without a folder that of `--out`."],
    options: [
      type: :path,
      doc: "File of options, for example the `run.json` of another run; switches override it."
    ],
    preset: [
      type: {:or, [nil, :string]},
      doc: "Named settings, see below; other switches override them."
    ],
    device: [
      type: Device.run_type(),
      doc: "`cpu`, `cuda`, `cuda:1`, `cuda:0,1` or `auto`, see `Sconce.Device`."
    ],
    loss: [type: {:in, [:full, :plain]}, default: :full, doc: "`plain` is the NLL alone."],
    verbose: [type: :boolean, default: false, doc: "Ends with the full report."],
    detach: [
      type: :boolean,
      default: false,
      doc: "Trains in the background, with its output in the file `OUT.log`, and returns at once."
    ],
    monitor: [
      type: :boolean,
      default: false,
      doc: "The same, and watches the run; the run goes on when its view ends."
    ]
  ]
  @before [
    plan: [
      type: :boolean,
      default: false,
      doc: "Prints the memory and time of the run, and ends."
    ],
    tune: [type: :boolean, default: false, doc: "Finds the batch size, and ends."],
    find_lr: [type: :boolean, default: false, doc: "Finds the learning rate, and ends."],
    svg: [type: :path, doc: "File for the curve of `--find-lr`."]
  ]
  @before_options Catalogue.schema(:tune) ++ Catalogue.schema(:range)
  @training Keyword.drop(Catalogue.schema(:training), [:loss, :resume])

  @presets Preset.names()
           |> Enum.chunk_every(4)
           |> Enum.map_join(",\n", fn names -> Enum.map_join(names, ", ", &"`#{&1}`") end)

  @moduledoc """
  Trains a policy on the games of a corpus, and writes checkpoints, the report
  and the learning curve into `--out`.

      $ mix sconce.train --corpus corpus --out run --backbone gru --loss plain

  A line shows the step, the loss and the remaining time. The last screen shows
  the scores, the curve and the files; `--verbose` shows the full report instead
  of the scores.

  SIGTERM, SIGHUP and SIGQUIT (`kill`, a closed terminal, Ctrl-Backslash) end the
  run with its state saved; under `nohup` a SIGHUP is ignored. Ctrl-C ends the VM
  and loses all steps since the last save, by default at most 5 minutes
  (`--save-minutes`). An interrupted run resumes from its last saved state. The
  options of the run are read from its folder, and some of them may change:

      $ mix sconce.train --resume run
      $ mix sconce.train --resume run --steps 2000 --decay-steps 1900

  `Sconce.Trainer` lists the options that may change; `guides/training.livemd`
  explains all options.

      $ mix sconce.train --detach --corpus corpus --out run
      $ mix sconce.monitor run
      $ mix sconce.runs

  watch it from any other terminal, and `mix sconce.runs stop ID` ends it with its
  state saved.

  #{Switches.docs(@own)}

  ## Before a run

      $ mix sconce.train --plan --corpus corpus --backbone mamba --batch-size 256

  These switches train nothing and do not touch `--out`; see
  `Sconce.Trainer.plan/2`, `tune/2` and `find_learning_rate/2`. `--plan` and
  `--tune` need no `--corpus`.

  #{Switches.docs(@before ++ @before_options)}

  ## Presets

      $ mix sconce.train --preset standard --corpus corpus --out run

  The presets are #{@presets}.
  `exphil:NAME` is a preset as ExPhil's command line trains in fact, and
  `gpu:rtx_3090` one for a card, see `Sconce.Preset`.
  `Sconce.Preset` lists their values; a run logs the values without effect when it
  begins. Presets for a GPU need `--device cpu` on a machine without one. The
  default is the preset of `SCONCE_PRESET` or `EXPHIL_DEFAULT_PRESET`, see
  `Sconce.Config`; `--preset none` uses none.

  ## The model

  Options of `Sconce.Policy.Spec` and their defaults; a list of sizes is written as
  `512,256`:

  #{Switches.docs(Trainer.Switches.spec_schema())}

  ## The training

  #{Switches.docs(@training)}

  ## The loss

  Factors of `--loss full`; `none` turns a factor off:

  #{Switches.docs(Catalogue.schema(:loss))}
  """

  use Mix.Task

  @requirements ["app.config"]

  # Lines of the last screen. `@blank` of them are blank: one above each of its three parts.
  @screen 24
  @blank 3
  # The least and the most rows of the curve.
  @lowest 2
  @highest 8

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || args |> parse() |> act(args)

  defp act({:train, opts}, args) do
    {apart, opts} = Keyword.split(opts, [:detach, :monitor])

    if apart[:detach] || apart[:monitor],
      do: detached(args, opts[:out], apart),
      else: opts |> Keyword.pop(:verbose, false) |> train()
  end

  defp act(measurement, _args), do: act(measurement)
  defp act({action, opts}), do: measure(action, Keyword.delete(opts, :verbose))

  # The process of its own checks all options again, and says in the log what is wrong with the corpus, for example.
  defp detached(args, out, apart) do
    log = Path.expand(out) <> ".log"

    case Detached.start("sconce.train", Enum.reject(args, &apart?/1), log) do
      {:ok, pid} ->
        Mix.shell().info("Process #{pid} trains #{out}; its output is in #{log}.")

        if apart[:monitor],
          do: watched(pid, out, log, System.os_time(:millisecond)),
          else: Mix.shell().info("mix sconce.monitor #{out} watches it.")

      {:error, reason} ->
        Mix.raise("--detach: #{reason}")
    end
  end

  defp watched(pid, out, log, since) do
    begun? = fn ->
      {:ok, snapshots} = Snapshot.list()
      Enum.any?(snapshots, &(&1.meta["out"] == Path.expand(out) and &1.started_ms >= since))
    end

    case Detached.await(pid, log, begun?) do
      :ok -> Mix.Task.run("sconce.monitor", [out])
      {:ended, last} -> Mix.raise("the run ended before it began, with this in #{log}:\n#{last}")
    end
  end

  # With `--detach` the process would start another one.
  defp apart?(arg), do: arg =~ ~r/\A--(detach|monitor)(=|\z)/

  defp measure(:plan, opts), do: print(opts, &Trainer.plan/1)
  defp measure(:tune, opts), do: print(opts, &Trainer.tune/1)

  defp measure(:find_lr, opts) do
    {svg, opts} = Keyword.pop(opts, :svg)
    # An invalid path is refused before the test runs.
    with {:error, error} <- Page.check(svg, :write_curve), do: refuse(error)
    test = print(opts, &Trainer.find_learning_rate/1)

    with true <- svg != nil, {:error, error} <- RangeTest.write(test, svg), do: refuse(error)
  end

  defp print(opts, measure) do
    case checked(fn -> measure.(opts) end) do
      {:ok, measured} -> tap(measured, &Mix.shell().info(to_string(&1)))
      {:error, error} -> refuse(error)
    end
  end

  defp train({verbose?, opts}) do
    # `System.stop/0` waits for a run to save its state only if the application is started.
    {:ok, _apps} = Application.ensure_all_started(:sconce)

    case Signals.stopping(fn -> follow(opts) end) do
      {:ok, report} ->
        show(report, verbose?)

      # The run ended, but none of its states could be saved.
      {:error, %Error{details: %{report: report}} = error} ->
        show(report, verbose?)
        refuse(error)

      {:error, error} ->
        refuse(error)
    end
  end

  defp follow(opts) do
    with {:ok, run} <- checked(fn -> Trainer.start_link(opts) end) do
      Progress.follow(run, note: Signals.text(save_minutes(opts)))
    end
  end

  # Without the switch, a resumed run keeps its recorded `:save_minutes`.
  defp save_minutes(opts) do
    default = Catalogue.schema(:training)[:save_minutes][:default]

    case {Keyword.fetch(opts, :save_minutes), opts[:resume]} do
      {{:ok, minutes}, _resume} ->
        minutes

      {:error, true} ->
        case Native.train_record(Path.expand(opts[:out])) do
          {:ok, %{options: %{saving: %{save_minutes: minutes}}}} -> minutes
          _no_record -> default
        end

      {:error, _anew} ->
        default
    end
  end

  defp checked(work), do: Switches.checked!(schema(), work)
  defp refuse(error), do: Switches.fail!(error, schema())

  @doc false
  def schema do
    @own ++
      @before ++
      @before_options ++ Trainer.Switches.spec_schema() ++ @training ++ Catalogue.schema(:loss)
  end

  # Returns the action and its options.
  defp parse(args) do
    checked(fn ->
      {opts, rest} = args |> Switches.resumable() |> Switches.parse!(schema())
      if rest != [], do: raise(ArgumentError, "unknown argument #{hd(rest)}")
      {actions, opts} = Keyword.split(opts, [:plan, :tune, :find_lr])
      action = action(for {name, true} <- actions, do: name)
      meant!(opts, action)
      {action, opts |> complete!(action) |> Trainer.Switches.training()}
    end)
  end

  defp action([]), do: :train
  defp action([name]), do: name

  defp action([one, other | _]) do
    raise ArgumentError, "#{Switches.switch(other)} does not go with #{Switches.switch(one)}"
  end

  defp complete!(opts, :train) do
    if opts[:resume], do: Switches.resumed!(opts), else: anew!(opts)
  end

  defp complete!(opts, action) do
    opts[:resume] &&
      raise ArgumentError, "--resume does not go with #{Switches.switch(action)}"

    if action == :find_lr && !opts[:options], do: Switches.needed!(opts, :corpus)
    preset(opts)
  end

  defp meant!(opts, action) do
    own = [
      train: [:detach, :monitor],
      tune: Keyword.keys(Catalogue.schema(:tune)),
      find_lr: [:svg | Keyword.keys(Catalogue.schema(:range))]
    ]

    for {other, names} <- own, other != action, name <- names, opts[name] != nil do
      needs =
        if other == :train,
          do: "does not go with #{Switches.switch(action)}",
          else: "needs #{Switches.switch(other)}"

      raise ArgumentError, "#{Switches.switch(name)} #{needs}"
    end
  end

  defp anew!(opts) do
    for name <- [:corpus, :out],
        name == :out or !opts[:options],
        do: Switches.needed!(opts, name)

    preset(opts)
  end

  defp preset(opts), do: Keyword.put_new_lazy(opts, :preset, fn -> Config.get(:preset) end)

  # Prints without Mix's shell, which no longer runs while a signal stops the VM.
  defp show(report, verbose?) do
    scores = if verbose?, do: Report.format(report), else: Report.brief(report)
    files = files(report)
    curve = curve(report, @screen - lines(scores) - length(files) - @blank)
    parts = [scores, curve, Enum.join(files, "\n")]
    IO.puts("\n" <> (parts |> Enum.reject(&(&1 == "")) |> Enum.join("\n\n")))
  end

  # Draws the curve into `lines` lines, two of which are its title and its axis.
  defp curve(report, lines) do
    height = (lines - 2) |> max(@lowest) |> min(@highest)
    report |> Curve.text(60, height) |> String.trim_trailing("\n")
  end

  defp lines(text), do: text |> String.split("\n") |> length()

  defp files(report) do
    best = Path.join(report.out, "best.safetensors")

    # A run that ended before its first validation has no `best.safetensors`.
    for {name, text, true} <- [
          {"policy", best, File.exists?(best)},
          {"curve", report.curve, report.curve != nil},
          {"resume", "mix sconce.train --resume #{report.out}", report.stopped == :stopped}
        ],
        do: Text.printable(String.pad_trailing(name, 8) <> text)
  end
end
