defmodule Mix.Tasks.Sconce.Train do
  alias Sconce.{Config, Preset, Switches, Trainer}
  alias Sconce.Trainer.{Curve, Progress, Report, Settings}

  @shortdoc "Trains a policy on a corpus"

  @own [
    corpus: [type: :path, doc: "Folder of the corpus to train on, required."],
    out: [type: :path, doc: "Folder of the run, required."],
    preset: [
      type: {:or, [nil, :string]},
      doc: "Named settings, see below; every other switch is worth more."
    ],
    device: [type: {:in, Config.devices()}, doc: "This version has `cpu` alone."],
    loss: [type: {:in, [:full, :plain]}, default: :full, doc: "`plain` is the NLL alone."]
  ]
  @training Keyword.drop(Settings.schema(:training), [:loss])

  @moduledoc """
  Trains a policy by imitation of the games of a corpus, prints the report and writes it with the
  checkpoints and the learning curve into `--out`.

      $ mix sconce.train --corpus corpus --out run --backbone gru --hidden-size 128 --loss plain

  While it runs, a line tells the step, the loss and the time that is left. `--resume` goes on with
  a run that was ended before its time.

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
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end

  @doc false
  def schema, do: @own ++ Trainer.Switches.spec_schema() ++ @training ++ Settings.schema(:loss)

  defp start(args) do
    {opts, rest} = Switches.parse!(args, schema())
    if rest != [], do: raise(ArgumentError, "unknown argument #{hd(rest)}")

    for name <- [:corpus, :out], opts[name] == nil do
      raise ArgumentError, "#{Switches.switch(name)} is required"
    end

    opts
    |> Keyword.put_new_lazy(:preset, fn -> Config.get(:preset) end)
    |> Trainer.Switches.training()
    |> Trainer.start_link()
  rescue
    error in ArgumentError -> Mix.raise(Exception.message(error))
  end

  defp show(report) do
    shell = Mix.shell()
    shell.info("\n" <> Report.format(report) <> "\n")
    shell.info(Curve.text(report))
    best = Path.join(report.out, "best.safetensors")
    # A run that was ended before its first validation has none.
    if File.exists?(best), do: shell.info("policy  #{best}")
    if report.curve, do: shell.info("curve   #{report.curve}")
  end
end
