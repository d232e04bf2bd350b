defmodule Mix.Tasks.Sconce.Train do
  alias Sconce.{Config, Preset, Switches, Trainer}
  alias Sconce.Trainer.{Curve, Progress, Report, Settings}

  @shortdoc "Trains a policy on a corpus"

  @own [
    corpus: [type: :path, doc: "Folder of the corpus to train on, required."],
    out: [type: :path, doc: "Folder of the run, required."],
    resume: [type: :path, doc: "Folder of a run to go on with; without one that of `--out`."],
    preset: [
      type: {:or, [nil, :string]},
      doc: "Named settings, see below; every other switch is worth more."
    ],
    device: [type: {:in, Config.devices()}, doc: "This version has `cpu` alone."],
    loss: [type: {:in, [:full, :plain]}, default: :full, doc: "`plain` is the NLL alone."]
  ]
  @training Keyword.drop(Settings.schema(:training), [:loss, :resume])

  @moduledoc """
  Trains a policy by imitation of the games of a corpus, prints the report and writes it with the
  checkpoints and the learning curve into `--out`.

      $ mix sconce.train --corpus corpus --out run --backbone gru --hidden-size 128 --loss plain

  While it runs, a line tells the step, the loss and the time that is left. A run that was ended before
  its time, by `kill` or Ctrl-C say, goes on from the last state that it saved. Its folder knows its
  options; those that may change can be said anew, to make it longer for example:

      $ mix sconce.train --resume run
      $ mix sconce.train --resume run --steps 2000 --decay-steps 1900

  `Sconce.Trainer` says which may, and what becomes of the schedule.

  #{Switches.docs(@own)}

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

  #{Switches.docs(Settings.schema(:loss))}
  """

  use Mix.Task

  @requirements ["app.config"]

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || train(args)

  defp train(args) do
    # The progress line needs to know whether somebody reads it.
    with {:ok, run} <- start(args), {:ok, report} <- Progress.follow(run) do
      show(report)
    else
      {:error, error} -> refuse(error)
    end
  end

  defp refuse(error), do: error |> Switches.message(schema()) |> Mix.raise()

  @doc false
  def schema, do: @own ++ Trainer.Switches.spec_schema() ++ @training ++ Settings.schema(:loss)

  defp start(args) do
    # So that SIGTERM and `System.stop/0` let a run save its state.
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    {opts, rest} = args |> whole() |> Switches.parse!(schema())
    if rest != [], do: raise(ArgumentError, "unknown argument #{hd(rest)}")
    opts |> folder!() |> Trainer.Switches.training() |> Trainer.start_link()
  rescue
    error in ArgumentError -> refuse(error)
  end

  # A `--resume` without a folder would take the next switch for one.
  defp whole(["--resume", "--" <> _ = next | rest]), do: ["--resume=" | whole([next | rest])]
  defp whole(["--resume"]), do: ["--resume="]
  defp whole([argument | rest]), do: [argument | whole(rest)]
  defp whole([]), do: []

  defp folder!(opts) do
    case Keyword.pop(opts, :resume) do
      {nil, opts} ->
        for name <- [:corpus, :out], do: needed!(opts, name)
        Keyword.put_new_lazy(opts, :preset, fn -> Config.get(:preset) end)

      {"", opts} ->
        needed!(opts, :out)
        [resume: true] ++ opts

      {folder, opts} ->
        Keyword.get(opts, :out, folder) == folder ||
          raise ArgumentError,
                "--resume #{folder} goes on in its folder, not in --out #{opts[:out]}"

        [resume: true, out: folder] ++ Keyword.delete(opts, :out)
    end
  end

  defp needed!(opts, name) do
    opts[name] || raise ArgumentError, "#{Switches.switch(name)} is required"
  end

  defp show(report) do
    shell = Mix.shell()
    shell.info("\n" <> Report.format(report) <> "\n")
    text = Curve.text(report)
    if text != "", do: shell.info(text)
    best = Path.join(report.out, "best.safetensors")
    # A run that was ended before its first validation has none.
    if File.exists?(best), do: shell.info("policy  #{best}")
    if report.curve, do: shell.info("curve   #{report.curve}")

    if report.stopped == :stopped,
      do: shell.info("go on   mix sconce.train --resume #{report.out}")
  end
end
