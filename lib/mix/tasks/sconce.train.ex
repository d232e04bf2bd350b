defmodule Mix.Tasks.Sconce.Train do
  alias Sconce.{Config, Device, Error, Native, Preset, Switches, Text, Trainer}
  alias Sconce.Trainer.{Catalogue, Curve, Progress, RangeTest, Report, Signals}
  alias Sconce.Trainer.Curve.Page

  @shortdoc "Trains a policy on a corpus"

  @own [
    corpus: [type: :path, doc: "Folder of the corpus to train on, required."],
    out: [type: :path, doc: "Folder of the run, required."],
    resume: [type: :path, doc: "Folder of a run to go on with; without one that of `--out`."],
    options: [
      type: :path,
      doc:
        "File of options, the `run.json` of another run for example; every switch counts over it."
    ],
    preset: [
      type: {:or, [nil, :string]},
      doc: "Named settings, see below; every other switch is worth more."
    ],
    device: [
      type: Device.run_type(),
      doc: "`cpu`, `cuda`, `cuda:1`, `cuda:0,1` or `auto`, see `Sconce.Device`."
    ],
    loss: [type: {:in, [:full, :plain]}, default: :full, doc: "`plain` is the NLL alone."]
  ]
  @before [
    plan: [type: :boolean, default: false, doc: "Says what the run would take, and ends."],
    tune: [type: :boolean, default: false, doc: "Finds the batch size, and ends."],
    find_lr: [type: :boolean, default: false, doc: "Finds the learning rate, and ends."],
    svg: [type: :path, doc: "File for the curve of `--find-lr`."]
  ]
  @before_options Catalogue.schema(:tune) ++ Catalogue.schema(:range)
  # What stands below in the documentation of the trainer does not here.
  @training (for {name, spec} <- Keyword.drop(Catalogue.schema(:training), [:loss, :resume]) do
               doc = String.replace(spec[:doc], "see below", "see `Sconce.Trainer`")
               {name, Keyword.replace!(spec, :doc, doc)}
             end)

  @moduledoc """
  Trains a policy by imitation of the games of a corpus, prints the report and writes it with the
  checkpoints and the learning curve into `--out`.

      $ mix sconce.train --corpus corpus --out run --backbone gru --hidden-size 128 --loss plain

  While it runs, a line tells the step, the loss and the time that is left. SIGTERM, SIGHUP and SIGQUIT (`kill`, a
  terminal that is closed, Ctrl-\\) end the run with its state saved; `nohup` is heeded. Ctrl-C belongs to the
  VM and loses what came after the last save, by default at most 5 minutes (`--save-minutes`). A run that was ended
  before its time goes on from the last state that it saved. Its folder knows its options; those that may change
  can be said anew, to make it longer for example:

      $ mix sconce.train --resume run
      $ mix sconce.train --resume run --steps 2000 --decay-steps 1900

  `Sconce.Trainer` says which may, and what becomes of the schedule.

  #{Switches.docs(@own)}

  ## Before a run

      $ mix sconce.train --plan --corpus corpus --backbone mamba --batch-size 256

  These train nothing and leave `--out` alone; `Sconce.Trainer.plan/2`, `tune/2` and
  `find_learning_rate/2` say what they do. `--tune` needs no `--corpus` either.

  #{Switches.docs(@before ++ @before_options)}

  ## Presets

      $ mix sconce.train --preset standard --corpus corpus --out run

  One of #{Enum.map_join(Preset.names(), ", ", &"`#{&1}`")}. `Sconce.Preset` has their values;
  which of them have no effect here is said when the run begins. Those that are made for a GPU need
  `--device cpu`. Without `--preset` the one of `SCONCE_PRESET` or `EXPHIL_DEFAULT_PRESET` counts, see
  `Sconce.Config`; `--preset none` is none.

  ## The model

  What is trained, with the defaults of `Sconce.Policy.Spec`; a size of several numbers is written
  `512,256`:

  #{Switches.docs(Trainer.Switches.spec_schema())}

  ## The training

  #{Switches.docs(@training)}

  ## The loss

  Unless it is plain; `none` turns a factor off:

  #{Switches.docs(Catalogue.schema(:loss))}
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || args |> parse() |> act()

  defp act({:train, opts}), do: train(opts)

  defp act({:plan, opts}), do: print(opts, &Trainer.plan/1)
  defp act({:tune, opts}), do: print(opts, &Trainer.tune/1)

  defp act({:find_lr, opts}) do
    {svg, opts} = Keyword.pop(opts, :svg)
    # Not after all the steps.
    with {:error, error} <- Page.check(svg, :write_curve), do: refuse(error)
    test = print(opts, &Trainer.find_learning_rate/1)

    with true <- svg != nil, {:error, error} <- RangeTest.write(test, svg), do: refuse(error)
  end

  defp print(opts, measure) do
    case told(fn -> measure.(opts) end) do
      {:ok, measured} -> tap(measured, &Mix.shell().info(to_string(&1)))
      {:error, error} -> refuse(error)
    end
  end

  defp train(opts) do
    # `System.stop/0` then lets a run save its state.
    {:ok, _apps} = Application.ensure_all_started(:sconce)

    case Signals.stopping(fn -> follow(opts) end) do
      {:ok, report} ->
        show(report)

      # None of its states was saved.
      {:error, %Error{details: %{report: report}} = error} ->
        show(report)
        refuse(error)

      {:error, error} ->
        refuse(error)
    end
  end

  defp follow(opts) do
    with {:ok, run} <- told(fn -> Trainer.start_link(opts) end) do
      Progress.follow(run, note: Signals.text(save_minutes(opts)))
    end
  end

  # A resumed run keeps its `:save_minutes`.
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

  defp refuse(error), do: error |> Switches.message(schema()) |> Mix.raise()

  @doc false
  def schema do
    @own ++
      @before ++
      @before_options ++ Trainer.Switches.spec_schema() ++ @training ++ Catalogue.schema(:loss)
  end

  # What is to be done, and the options of that.
  defp parse(args) do
    told(fn ->
      {opts, rest} = args |> resumable() |> Switches.parse!(schema())
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

  defp complete!(opts, :train), do: folder!(opts)

  defp complete!(opts, action) do
    opts[:resume] &&
      raise ArgumentError, "--resume does not go with #{Switches.switch(action)}"

    if action == :find_lr && !opts[:options], do: needed!(opts, :corpus)
    preset(opts)
  end

  defp meant!(opts, action) do
    own = [
      tune: Keyword.keys(Catalogue.schema(:tune)),
      find_lr: [:svg | Keyword.keys(Catalogue.schema(:range))]
    ]

    for {other, names} <- own, other != action, name <- names, opts[name] != nil do
      raise ArgumentError, "#{Switches.switch(name)} needs #{Switches.switch(other)}"
    end
  end

  defp told(work) do
    work.()
  rescue
    error in ArgumentError -> refuse(error)
  end

  # A `--resume` without a folder would take the next switch for one.
  defp resumable(["--resume", "--" <> _ = next | rest]),
    do: ["--resume=" | resumable([next | rest])]

  defp resumable(["--resume"]), do: ["--resume="]
  defp resumable([argument | rest]), do: [argument | resumable(rest)]
  defp resumable([]), do: []

  defp folder!(opts) do
    case Keyword.pop(opts, :resume) do
      {nil, opts} ->
        for name <- [:corpus, :out], name == :out or !opts[:options], do: needed!(opts, name)
        preset(opts)

      {"", opts} ->
        needed!(opts, :out)
        [resume: true] ++ opts

      {folder, opts} ->
        Path.expand(Keyword.get(opts, :out, folder)) == Path.expand(folder) ||
          raise ArgumentError,
                "--resume #{folder} goes on in its folder, not in --out #{opts[:out]}"

        [resume: true, out: folder] ++ Keyword.delete(opts, :out)
    end
  end

  defp preset(opts), do: Keyword.put_new_lazy(opts, :preset, fn -> Config.get(:preset) end)

  defp needed!(opts, name) do
    opts[name] || raise ArgumentError, "#{Switches.switch(name)} is required"
  end

  defp show(report) do
    # Not by Mix's shell, which is gone where a signal ends the system.
    IO.puts("\n" <> Report.format(report) <> "\n")
    text = Curve.text(report)
    if text != "", do: IO.puts(text)
    best = Path.join(report.out, "best.safetensors")
    # A run that was ended before its first validation has none.
    if File.exists?(best), do: IO.puts(Text.printable("policy  #{best}"))
    if report.curve, do: IO.puts(Text.printable("curve   #{report.curve}"))

    if report.stopped == :stopped,
      do: IO.puts(Text.printable("go on   mix sconce.train --resume #{report.out}"))
  end
end
