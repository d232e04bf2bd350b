defmodule Sconce.Trainer.ResumePropertyTest do
  # A property: with any options, a run that was cut and resumed ends with the same bits and the same curve as an
  # uninterrupted one. The options are drawn anew each time; `mix test --seed` repeats them.
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Native, Temporal, Trainer}
  alias Sconce.Trainer.Optimiser

  @cases 30
  @steps 8

  # Each option is drawn from its values.
  @choices [
    prior: [false, true],
    dropout: [0.0, 0.3],
    input_dropout: [0.0, 0.2],
    optimizer: Optimiser.names(),
    weight_decay: [nil, 0.1],
    ema_decay: [nil, 0.9],
    max_grad_norm: [0.1, 1.0],
    warmup_steps: [0, 3],
    accumulation_steps: [1, 3],
    batch_size: [1, 4],
    burn_in: [0, 2],
    truncate_bptt: [nil, 3],
    mirror: [0.0, 0.5],
    noise: [0.0, 0.5],
    previous_dropout: [0.0, 0.3],
    frame_delay: [0, 2],
    frame_delay_max: [nil, 5],
    neutral_weight: [0.0, 0.5, 1.0],
    transition_weight: [1.0, 3.0],
    loss: [:plain, [], [head_normalize: true]],
    validation_mode: [:window, :carry],
    val_split: [0.0, 0.5],
    seed: [0, 1]
  ]

  # One row of options is drawn as a whole.
  @heads [
    [heads: :independent, head_hidden_size: 4],
    [heads: :autoregressive, stream_size: 4]
  ]
  @schedules [
    [lr_schedule: :constant],
    [lr_schedule: :linear, decay_steps: 8],
    [lr_schedule: :cosine],
    [lr_schedule: :cosine_restarts, restart_period: 2, restart_mult: 2],
    [lr_schedule: :exponential, decay_rate: 0.5]
  ]
  @precisions [
    [precision: :f32],
    [precision: :bf16, force_precision: true],
    [precision: :f16, force_precision: true]
  ]
  @walks [
    [unroll: :carry],
    [unroll: :window, stride: 3],
    [unroll: :window, sampling: :weighted, weights: [1.0, 0.0, 2.0, 0.5]],
    [unroll: :window, sampling: :balanced],
    [unroll: :window, sampling: :transitions, action_oversample: 4.0]
  ]

  @embedding [action_embed_size: 4, character_embed_size: 4, stage_embed_size: 2]
  @deep {:melee, @embedding ++ [queue_depth: 3, num_delays: 4]}
  @inputs [
    [embedding: {:melee, @embedding}],
    [embedding: @deep],
    [embedding: @deep, scheduled_sampling: 0.5],
    [embedding: @deep, scheduled_sampling: 0.9] ++
      [scheduled_sampling_steps: 4, scheduled_sampling_slots: 2]
  ]

  # Options that may change when a run is resumed.
  @computed [
    threads: [1, 2],
    prefetch: [0, 1, 4],
    loader_threads: [1, 2],
    gradient_checkpoint: [false, true]
  ]

  @small [hidden_size: 8, hidden_sizes: [8, 8], num_layers: 2, num_heads: 2, head_dim: 4] ++
           [window_size: 4, state_size: 4, attention_every: 2, conv_size: 3]
  @fixed [
    learning_rate: 1.0e-2,
    window_size: 5,
    steps: @steps,
    validate_every: 3,
    validation_stride: 100,
    save_every: 1,
    keep_last: @steps,
    evaluate: false
  ]

  setup_all do
    dir = Path.join(System.tmp_dir!(), "sconce-resume-#{System.pid()}")
    on_exit(fn -> File.rm_rf!(dir) end)
    :ok = Native.corpus_fixtures(Path.join(dir, "replays"))
    games = for name <- ~w(valid valid_2 nana items), do: Path.join(dir, "replays/#{name}.slp")
    {:ok, corpus} = Corpus.import(games, into: Path.join(dir, "corpus"))
    {:ok, corpus: corpus}
  end

  for n <- 1..@cases do
    @tag capture_log: true
    test "with drawn options, #{n}", %{corpus: corpus} do
      :rand.seed(:exsss, {ExUnit.configuration()[:seed], unquote(n), 0})
      dir = tmp_dir!("resume")
      options = [corpus: corpus] ++ options()
      said = inspect(options, limit: :infinity, pretty: true)

      whole = Path.join(dir, "whole")
      want = run!([out: whole] ++ drawn(@computed) ++ options)
      # The folder as a killed process leaves it, after a step and before the next save.
      step = whole |> saved() |> List.delete(@steps) |> Enum.random()
      cut = Path.join(dir, "cut")
      File.mkdir_p!(cut)
      File.cp!(numbered(whole, step), last(cut))
      got = run!([out: cut, resume: true] ++ drawn(@computed) ++ options)

      assert {step, tensors(last(cut))} == {step, tensors(last(whole))}, said
      assert {step, curve(got)} == {step, curve(want)}, said
      assert got.best_step == want.best_step, said

      for later <- saved(cut), later in saved(whole) do
        assert {step, later, tensors(numbered(cut, later))} ==
                 {step, later, tensors(numbered(whole, later))},
               said
      end
    end
  end

  defp options do
    name = Enum.random(Temporal.backbones())
    {rates, choices} = Keyword.split(drawn(@choices), [:dropout, :input_dropout])
    sizes = Keyword.take(@small, Keyword.keys(Temporal.options(name)))
    rows = Enum.flat_map([@heads, @schedules, @precisions, @walks, @inputs], &Enum.random/1)
    [backbone: {name, sizes ++ rates}] ++ rows ++ choices ++ nesterov(choices) ++ @fixed
  end

  defp nesterov(choices), do: if(choices[:optimizer] == :sgd, do: [nesterov: true], else: [])

  defp drawn(choices), do: for({name, values} <- choices, do: {name, Enum.random(values)})

  defp run!(options) do
    {:ok, run} = Trainer.start_link(options)
    {:ok, %{stopped: :finished, steps: @steps} = report} = Trainer.await(run, 60_000)
    GenServer.stop(run)
    report
  end

  # Steps with a saved state; other steps have none if the writer was busy.
  defp saved(out) do
    for path <- Path.wildcard(Path.join(out, "last-*.safetensors")),
        do:
          path
          |> Path.basename(".safetensors")
          |> String.trim_leading("last-")
          |> String.to_integer()
  end

  defp numbered(out, step),
    do: Path.join(out, "last-#{String.pad_leading(to_string(step), 8, "0")}.safetensors")

  defp last(out), do: Path.join(out, "last.safetensors")

  # Digest of weights, moments, averages and carried states, without the manifest, which contains times.
  defp tensors(path) do
    <<length::64-little, _header::binary-size(length), tensors::binary>> = File.read!(path)
    :crypto.hash(:sha256, tensors)
  end

  defp curve(report),
    do:
      for(
        point <- report.history,
        do: Map.take(point, [:step, :loss, :learning_rate, :nll, :heads])
      )
end
