defmodule Mix.Tasks.Sconce.Train do
  alias Sconce.{Config, Preset, Switches, Trainer}
  alias Sconce.Trainer.{Curve, Progress, RangeTest, Report, Settings}

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
  @before [
    plan: [type: :boolean, default: false, doc: "Says what the run would take, and ends."],
    tune: [type: :boolean, default: false, doc: "Finds the batch size, and ends."],
    find_lr: [type: :boolean, default: false, doc: "Finds the learning rate, and ends."],
    svg: [type: :path, doc: "File for the curve of `--find-lr`."]
  ]
  @before_options Settings.schema(:tune) ++ Settings.schema(:range)
  @training Keyword.drop(Settings.schema(:training), [:loss])

  @moduledoc """
  Trains a policy by imitation of the games of a corpus, prints the report and writes it with the
  checkpoints and the learning curve into `--out`.

      $ mix sconce.train --corpus corpus --out run --backbone gru --hidden-size 128 --loss plain

  While it runs, a line tells the step, the loss and the time that is left. `--resume` goes on with
  a run that was ended before its time.

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

  #{Switches.docs(Settings.schema(:loss))}
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
    test = print(opts, &Trainer.find_learning_rate/1)

    with true <- svg != nil, {:error, error} <- RangeTest.write(test, svg) do
      Mix.raise(Exception.message(error))
    end
  end

  defp print(opts, measure) do
    case told(fn -> measure.(opts) end) do
      {:ok, measured} -> tap(measured, &Mix.shell().info(to_string(&1)))
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end

  defp train(opts) do
    # The progress line needs to know whether somebody reads it.
    with {:ok, run} <- told(fn -> Trainer.start_link(opts) end),
         {:ok, report} <- Progress.follow(run) do
      show(report)
    else
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end

  @doc false
  def schema do
    @own ++
      @before ++
      @before_options ++ Trainer.Switches.spec_schema() ++ @training ++ Settings.schema(:loss)
  end

  # What is to be done, and the options of that.
  defp parse(args) do
    told(fn ->
      {opts, rest} = Switches.parse!(args, schema())
      if rest != [], do: raise(ArgumentError, "unknown argument #{hd(rest)}")
      {actions, opts} = Keyword.split(opts, [:plan, :tune, :find_lr])
      action = action(for {name, true} <- actions, do: name)

      for name <- required(action), opts[name] == nil do
        raise ArgumentError, "#{Switches.switch(name)} is required"
      end

      meant!(opts, action)
      preset = fn -> Config.get(:preset) end
      {action, opts |> Keyword.put_new_lazy(:preset, preset) |> Trainer.Switches.training()}
    end)
  end

  defp action([]), do: :train
  defp action([name]), do: name

  defp action([one, other | _]) do
    raise ArgumentError, "#{Switches.switch(other)} does not go with #{Switches.switch(one)}"
  end

  defp required(:train), do: [:corpus, :out]
  defp required(:find_lr), do: [:corpus]
  defp required(_measured), do: []

  defp meant!(opts, action) do
    own = [
      tune: Keyword.keys(Settings.schema(:tune)),
      find_lr: [:svg | Keyword.keys(Settings.schema(:range))]
    ]

    for {other, names} <- own, other != action, name <- names, opts[name] != nil do
      raise ArgumentError, "#{Switches.switch(name)} needs #{Switches.switch(other)}"
    end
  end

  defp told(work) do
    work.()
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
