defmodule Mix.Tasks.Sconce.Demo do
  alias Sconce.Env.CartPole
  alias Sconce.{Policy, Switches, Temporal, Trainer}
  alias Sconce.Trainer.{Curve, Progress, Report}

  @shortdoc "Shows that memory pays: balances a pole whose speed is hidden"

  @schema [
    backbone: [
      type: {:in, Temporal.backbones() -- [:mlp]},
      default: :gru,
      doc: "Backbone of the recurrent policy."
    ],
    games: [type: :pos_integer, default: 100, doc: "Expert games to learn from."],
    steps: [type: :pos_integer, default: 2000, doc: "Training steps of each policy."],
    seed: [type: :non_neg_integer, default: 0, doc: "Seed of all randomness."],
    out: [
      type: :path,
      doc: "Folder for the corpus and both runs; by default a new temporary one."
    ]
  ]

  @moduledoc """
  Trains a policy from nothing and lets it play, without a download and in a
  minute or two.

      $ mix sconce.demo

  An expert that sees the full state plays CartPole; some of its actions are
  replaced by random ones. Two policies learn the expert's answers from frames
  that hide the velocities: a recurrent one, which can remember where the pole
  was, and an MLP with the same training, which cannot. Each then plays 20
  episodes of at most 500 steps. The output ends with

      recurrent 487.2 of 500 · memoryless 61.0 · 31 us a decision

  The exit status is 1 unless the recurrent policy reaches 450 and the MLP stays
  below half of the recurrent policy's score.

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]

  @episodes 20
  @enough 450
  @perturb 0.2

  # Both policies train with these options, in about a minute. Two frames determine the velocity; a window has 32.
  @training [
    loss: :plain,
    batch_size: 32,
    window_size: 32,
    stride: 16,
    learning_rate: 1.0e-2,
    validation_mode: :carry,
    head_hidden_size: 32,
    dropout: 0.0
  ]
  @memoryless [backbone: :mlp, hidden_sizes: [64, 64]]
  @small [
    hidden_size: 32,
    num_layers: 1,
    layer_norm: false,
    num_heads: 2,
    head_dim: 16,
    state_size: 8,
    qk_layernorm: false
  ]

  # With one layer, such a backbone cannot tell a frame from the previous one, or lacks one of its two kinds of blocks.
  @two_layers [:sliding_window, :causal_transformer, :retnet, :rwkv, :xlstm]

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || demo(args)

  defp demo(args) do
    opts = parse(args)
    out = opts[:out] || temporary()

    with {:ok, corpus} <- demonstrate(opts, out),
         {:ok, recurrent} <- learn(:recurrent, small(opts[:backbone]), corpus, opts, out),
         {:ok, memoryless} <- learn(:memoryless, @memoryless, corpus, opts, out) do
      conclude(recurrent, memoryless)
    else
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end

  defp parse(args) do
    case Switches.parse!(args, @schema) do
      {given, []} ->
        Keyword.merge(for({name, spec} <- @schema, do: {name, spec[:default]}), given)

      {_given, [argument | _]} ->
        raise ArgumentError, "unknown argument #{argument}"
    end
  rescue
    error in ArgumentError -> Mix.raise(Exception.message(error))
  end

  defp temporary do
    name = "sconce-demo-#{System.os_time(:second)}-#{System.pid()}"
    Path.join(System.tmp_dir!(), name)
  end

  defp demonstrate(opts, out) do
    wanted = [games: opts[:games], perturb: @perturb, seed: opts[:seed]]

    with {:ok, games} <- CartPole.demonstrations(wanted),
         {:ok, corpus} <- CartPole.corpus(games, into: Path.join(out, "corpus")) do
      say("An expert played CartPole, one action in five at random: #{inspect(corpus)}")
      say("The frames show where cart and pole are, not how fast they move.")
      say("All files stay in #{out}")
      {:ok, corpus}
    end
  end

  # Options for the fewest layers with which a backbone has all its kinds of blocks.
  defp small(backbone) do
    names = Keyword.keys(Temporal.options(backbone))

    layers =
      cond do
        :attention_every in names -> [num_layers: 3]
        backbone in @two_layers -> [num_layers: 2]
        true -> []
      end

    [backbone: backbone] ++ Keyword.merge(Keyword.take(@small, names), layers)
  end

  defp learn(name, policy, corpus, opts, out) do
    folder = Path.join(out, to_string(name))
    say("\nA #{name} policy learns the expert's actions")

    training =
      [corpus: corpus, out: folder, steps: opts[:steps], seed: opts[:seed]] ++
        [validate_every: max(1, div(opts[:steps], 8))] ++ @training ++ policy

    with {:ok, run} <- Trainer.start_link(training),
         {:ok, report} <- Progress.follow(run),
         :ok <- GenServer.stop(run),
         show(name, report),
         {:ok, policy} <- Policy.load(Path.join(folder, "best.safetensors")) do
      CartPole.play(policy, episodes: @episodes, seed: opts[:seed])
    end
  end

  defp show(:recurrent, report) do
    say("\n" <> Curve.text(report))
    say(Report.title(report.spec, report.weights))
    if report.curve, do: say("curve   #{report.curve}")
    say("policy  #{Path.join(report.out, "best.safetensors")}")
  end

  defp show(:memoryless, report), do: say(Report.title(report.spec, report.weights))

  defp conclude(recurrent, memoryless) do
    say(
      "\nEach played #{@episodes} episodes; an episode ends after 500 steps or when the pole falls."
    )

    say(
      "recurrent #{number(recurrent.mean)} of 500 · memoryless #{number(memoryless.mean)} · " <>
        "#{microseconds(recurrent.median_us)} us a decision"
    )

    if recurrent.mean < @enough or memoryless.mean >= recurrent.mean / 2,
      do: exit({:shutdown, 1})
  end

  defp number(value), do: :erlang.float_to_binary(value / 1, decimals: 1)
  defp microseconds(value) when value < 9.95, do: number(value)
  defp microseconds(value), do: round(value)

  defp say(text), do: Mix.shell().info(text)
end
