defmodule Sconce.Bench.Backbones do
  @moduledoc false
  # One row for each backbone: its score on real games after equal training, and its cost.

  alias Sconce.Bench.{Cases, Machine, Output, Resident}
  alias Sconce.{Corpus, Error, Figures, Temporal, Trainer}
  alias Sconce.Policy.Spec

  # The options of the run in the README; all others are the backbone's defaults.
  @policy [heads: :autoregressive, prior: true, dropout: 0.3, input_dropout: 0.3]
  @training [
    batch_size: 32,
    window_size: 60,
    loss: :plain,
    mirror: 0.5,
    # Only one short validation, at the end of the run. The score is computed after the run.
    validate_every: 1_000_000,
    validation_stride: 1000,
    evaluate: false,
    seed: 0
  ]
  # All backbones are scored on the same frames of the validation games.
  @scored_stride 5
  @batch 32
  @window 60

  @columns [
    {"backbone", 20, :left},
    {"size", 6, :right},
    {"weights", 8, :right},
    {"NLL", 6, :right},
    {"changed", 7, :right},
    {"act, us", 7, :right},
    {"state", 8, :right},
    {"steps/s", 7, :right},
    {"peak", 8, :right}
  ]

  @doc """
  Measures the named backbones, each with `steps` training steps if there are games. Calls `say` with each
  line of the table. If a backbone fails, its row has the reason, and the other backbones follow. Returns an
  error, such as `:not_found`, if the games cannot be imported.
  """
  @spec run([atom], keyword, (String.t() -> term)) :: {:ok, [map]} | {:error, Exception.t()}
  def run(names, opts, say) do
    with_games(opts[:replays], fn games ->
      say.(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))
      for name <- names, do: name |> measured(games, opts) |> tap(&say.(line(&1)))
    end)
  end

  defp measured(name, games, opts) do
    name |> row(games, opts) |> Map.put(:ok, true)
  rescue
    error -> failed(name, Exception.message(error))
  catch
    kind, reason -> failed(name, "#{kind} #{inspect(reason)}")
  end

  defp failed(name, reason), do: %{name: name, ok: false, failed: reason}

  defp with_games(nil, fun), do: {:ok, fun.(nil)}

  defp with_games(replays, fun) do
    name = "sconce-backbones-#{System.pid()}-#{System.unique_integer([:positive])}"
    dir = Path.join(System.tmp_dir!(), name)

    try do
      with {:ok, train} <- imported(replays, "train", dir),
           {:ok, validation} <- imported(replays, "validation", dir),
           do: {:ok, fun.([dir, train, validation])}
    after
      File.rm_rf!(dir)
    end
  end

  defp imported(replays, side, dir) do
    games = Path.join(replays, side)

    case Corpus.import(games, into: Path.join(dir, side), progress: false) do
      {:ok, %{info: %{games: 0}}} -> {:error, none(games)}
      {:ok, corpus} -> {:ok, corpus.dir}
      error -> error
    end
  end

  defp none(games),
    do: %Error{kind: :not_found, op: :import, details: %{what: "a game in #{games}"}}

  defp row(name, games, opts) do
    steps = Cases.steps(@batch, @window, opts[:threads])
    packed = Spec.new(backbone: name, embedding: {:melee, layout: :packed}, dropout: 0.0)
    {step_us, step} = Cases.training(packed, %{steps | seconds: opts[:budget]})
    learned = Spec.new([backbone: name] ++ @policy)
    {act_us, act} = Cases.decisions(learned, [mode: :carry], opts[:budget])

    Map.merge(learned(learned, games, opts), %{
      name: name,
      size: size(learned),
      weights: act.weights,
      state_bytes: act.bytes,
      act_us: Figures.percentile(act_us, 50),
      act_p95_us: Figures.percentile(act_us, 95),
      step_us: Figures.percentile(step_us, 50),
      steps_per_s: 1.0e6 / Figures.percentile(step_us, 50),
      weights_packed: step.weights,
      peak_bytes: Resident.peak(packed, steps),
      threads: opts[:threads]
    })
  end

  defp size(%{backbone: {:mlp, options}}), do: Enum.join(options[:hidden_sizes], "-")
  defp size(%{backbone: {_, options}}), do: "#{options[:hidden_size]}x#{options[:num_layers]}"

  defp learned(_spec, nil, _opts), do: %{}

  defp learned(spec, [dir, train, validation], opts) do
    {name, _options} = spec.backbone
    out = Path.join(dir, to_string(name))

    training =
      [spec: spec, corpus: train, validation: validation, out: out] ++
        [steps: opts[:steps], threads: opts[:threads]] ++ @training

    report = trained(training)
    last = Path.join(out, "last.safetensors")
    scored = [stride: @scored_stride, threads: opts[:threads]]
    scores = Machine.value!(Trainer.evaluate(last, validation, scored)).policy

    %{
      nll: scores.nll,
      nll_changed: scores.nll_changed,
      frames: scores.frames,
      trained_steps: report.steps,
      trained_seconds: report.seconds
    }
  end

  defp trained(training) do
    {:ok, run} = Trainer.start_link(training)

    try do
      Machine.value!(Trainer.await(run))
    after
      GenServer.stop(run)
    end
  end

  defp line(%{ok: false} = row), do: "#{row.name} FAILED: #{row.failed}"

  defp line(row) do
    Output.line(@columns, [
      to_string(row.name),
      row.size,
      Figures.grouped(row.weights),
      decimals(row[:nll], 3),
      decimals(row[:nll_changed], 3),
      Figures.decimal(row.act_us),
      Figures.size(row.state_bytes),
      decimals(row.steps_per_s, 1),
      if(row.peak_bytes, do: Figures.size(row.peak_bytes), else: "-")
    ])
  end

  defp decimals(nil, _digits), do: "-"
  defp decimals(value, digits), do: :erlang.float_to_binary(value / 1, decimals: digits)

  @doc "The backbones whose name matches; all for nil."
  @spec named(Regex.t() | nil) :: [atom]
  def named(nil), do: Temporal.backbones()
  def named(regex), do: Enum.filter(Temporal.backbones(), &(to_string(&1) =~ regex))
end
