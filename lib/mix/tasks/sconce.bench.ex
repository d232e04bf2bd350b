defmodule Mix.Tasks.Sconce.Bench do
  alias Sconce.{Corpus, Figures, Frame, Game, Policy, Session, Switches, Temporal, Trainer}
  alias Sconce.Frame.Player
  alias Sconce.Trainer.Report

  @formats [:f32, :bf16, :int8, :int4]

  @schema [
    corpus: [
      type: :path,
      doc: "Folder of a corpus whose first game gives the frames; without it they are synthetic."
    ],
    backbone: [
      type: {:in, Temporal.backbones()},
      default: :gru,
      doc: "Backbone of a new policy, for a call without a checkpoint."
    ],
    weights: [
      type: {:list, {:in, @formats}},
      default: @formats,
      doc: "Formats in which a session keeps the weights."
    ],
    seconds: [
      type: :float,
      min: 0.0,
      default: 2.0,
      doc: "Seconds in which each format is measured."
    ],
    batch_size: [type: :pos_integer, default: 32, doc: "Windows of a training step."],
    window_size: [type: :pos_integer, default: 60, doc: "Frames of a window."],
    threads: [type: :pos_integer, doc: "Threads of a training step, all by default."]
  ]

  @shortdoc "Measures a policy's decisions and training steps on this machine"

  @moduledoc """
  Measures how long a policy takes to decide and to learn on this machine.

      $ mix sconce.bench run/best.safetensors --corpus validation
      $ mix sconce.bench --backbone mamba --threads 1

  #{Switches.docs(@schema)}

  The table has a row for each format of the weights. Times are microseconds of
  single `Sconce.Session.act/2` calls from one process. `kept` is the format in
  which the session keeps most matrices, and `lane` is where a decision runs (see
  `Sconce.Session`). The last line is a training step, measured by
  `Sconce.Trainer.plan/2`.

  Other work on the machine increases the times. An MLP skips weights that would
  multiply a zero, so its times depend on the frames: measure it with `--corpus`.
  """

  use Mix.Task

  @requirements ["app.config"]
  @fewest 1_000
  @made 600

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || measure(args)

  defp measure(args) do
    {opts, checkpoint} = parse!(args)
    policy = policy!(checkpoint, opts[:backbone])
    frames = frames!(policy.spec.embedding, opts[:corpus])
    say(machine())
    say(Report.title(policy.spec, policy.num_weights) <> "\n")
    say(line(~w(weights kept lane median_us p99_us p99.9_us calls)))
    for format <- opts[:weights], do: policy |> decisions(format, frames, opts) |> line() |> say()
    say("\n" <> training(policy.spec, opts))
  end

  defp parse!(args) do
    Switches.parse_checkpoint!(args, @schema)
  rescue
    error in ArgumentError -> Switches.fail!(error, @schema)
  end

  defp policy!(nil, backbone), do: value!(Policy.init([backbone: backbone], seed: 0))
  defp policy!(checkpoint, _backbone), do: value!(Policy.load(checkpoint))

  defp machine do
    info = value!(Sconce.native_info())
    features = for {name, true} <- info.cpu, do: " #{name}"

    "#{info.target},#{features}, #{Figures.counted(info.threads, "thread")}, " <>
      "Elixir #{System.version()}, OTP #{System.otp_release()}"
  end

  defp frames!(embedding, nil), do: for(i <- 1..@made, do: made(embedding, i))

  defp frames!(_embedding, dir) do
    recording = dir |> Corpus.open() |> value!() |> Corpus.recording(0) |> value!()
    for {frame, _labels} <- recording, do: frame
  end

  defp made({:normalised, own}, i), do: made({:vector, length(own[:mean])}, i)
  defp made({:net, spec}, i), do: made({:vector, Sconce.Net.Spec.numbers(spec)}, i)
  defp made({:vector, n}, i), do: for(k <- 1..n, do: :math.sin(i * k))

  defp made({%Game{} = game, _options}, i), do: Game.Frame.made(game, i)

  defp made({:melee, _options}, i) do
    [own, opponent] =
      for side <- [-1, 1] do
        %Player{x: side * (20.0 + rem(i, 10)), y: rem(i, 30) / 1, facing: -side, stock: 4}
        |> struct!(action: rem(i * 13, 399), character: 2, on_ground: true, percent: i / 1)
      end

    %Frame{own: own, opponent: opponent, stage: 31, frame: i}
  end

  defp decisions(policy, format, frames, opts) do
    session = value!(Session.open(policy, weights: format, seed: 0))
    {:ok, info} = Session.info(session)
    until = now() + round(opts[:seconds] * 1.0e9)
    us = frames |> Stream.cycle() |> Enum.reduce_while([], &timed(session, &1, until, &2))
    :ok = Session.close(session)
    times = for percent <- [50, 99, 99.9], do: us |> Figures.percentile(percent) |> decimal()
    ["#{format}", "#{info.weights}", "#{info.lane}"] ++ times ++ [Figures.grouped(length(us))]
  end

  defp timed(session, frame, until, us) do
    start = now()
    _action = value!(Session.act(session, frame))
    took = now() - start
    us = [took / 1000 | us]
    enough? = start + took >= until and length(us) >= @fewest
    {if(enough?, do: :halt, else: :cont), us}
  end

  defp training(spec, opts) do
    options = Keyword.take(opts, [:batch_size, :window_size, :threads])
    plan = value!(Trainer.plan(spec, options))

    "a training step of #{plan.batch_size} windows of #{plan.window_size} frames, " <>
      "#{Figures.counted(plan.threads, "thread")}, #{plan.precision}: " <>
      "#{decimal(1000 * plan.step_seconds)} ms, " <>
      "#{Figures.grouped(round(plan.frames_per_second))} frames/s"
  end

  defp line([format, kept, lane | figures]) do
    texts = for text <- [format, kept, lane], do: String.pad_trailing(text, 9)
    numbers = for text <- figures, do: String.pad_leading(text, 11)
    Enum.join(texts ++ numbers)
  end

  defp value!({:ok, value}), do: value
  defp value!({:error, error}), do: Switches.fail!(error, @schema)

  defp decimal(number), do: Figures.decimal(number)
  defp now, do: System.monotonic_time(:nanosecond)
  defp say(text), do: Mix.shell().info(text)
end
